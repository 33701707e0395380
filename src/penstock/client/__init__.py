"""The client: one async core of producer, consumers and everything they share."""
