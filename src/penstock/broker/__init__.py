"""The broker as a state machine: requests, time and finished flushes in, replies and disk work out."""
