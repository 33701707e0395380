"""The remoting protocol without I/O: frames, commands, typed headers and JSON bodies."""
