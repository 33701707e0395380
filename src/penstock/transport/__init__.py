"""Sockets, TLS, timeouts and request/response matching: the only room that touches the network."""
