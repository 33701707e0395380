"""TLS: settings, contexts, and a TLS layer over bytes.

A server learns from the first byte whether a connection is TLS, so the bytes are already read when the
handshake begins. `TlsLayer` therefore works on bytes instead of sockets.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from penstock.errors import InvalidArgument

CLIENT_HELLO = 0x16
"""First byte of a TLS connection. A plain frame starts with 0x00 because frames are below 16 MiB."""

_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How a server meets TLS: `permissive` takes both kinds of connections, `enforcing` only TLS."""

    certificate: str
    key: str
    key_password: str | None = None
    mode: Literal["permissive", "enforcing"] = "permissive"
    client_authorities: str | None = None
    """File of authorities; when given, clients must show a certificate signed by one of them."""

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key, self.key_password)
            if self.client_authorities is not None:
                context.load_verify_locations(self.client_authorities)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(
                f"TLS certificate {self.certificate} with key {self.key} cannot be used: {error}"
            ) from None
        return context


def client_context(
    *,
    authorities: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    verify: bool = True,
) -> ssl.SSLContext:
    """A context for clients. `verify=False` accepts any server, as Apache's clients do by default."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authorities)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


class TlsLayer:
    """The server's side of one TLS connection, from bytes to bytes. Raises ssl.SSLError when it is broken."""

    __slots__ = ("_incoming", "_open", "_outgoing", "_tls", "_waiting", "ended")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._open = False
        self.ended = False
        """The peer has said that it sends no more."""
        self._waiting: list[bytes | memoryview] = []

    @property
    def handshaking(self) -> bool:
        return not self._open

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Takes bytes of the socket; gives the plain bytes in them and what must be sent in answer."""
        self._incoming.write(data)
        if not self._open:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return b"", self._outgoing.read()
            self._open = True
            waiting, self._waiting = self._waiting, []
            for part in waiting:
                self._tls.write(part)
        plain = []
        try:
            while chunk := self._tls.read(_CHUNK_BYTES):
                plain.append(chunk)
            self.ended = True
            self._tls.unwrap()  # the peer waits for our goodbye before it closes its side
        except ssl.SSLWantReadError:
            pass
        return b"".join(plain), self._outgoing.read()

    def encrypt(self, parts: Iterable[bytes | memoryview]) -> bytes:
        """The bytes to send for these parts; what comes before the handshake is done goes out after it."""
        if not self._open:
            self._waiting.extend(parts)
        if not self._open or self.ended:
            return b""
        for part in parts:
            if part:
                self._tls.write(part)
        return self._outgoing.read()
