"""Messages as users see them and as bytes: no I/O in this room."""
