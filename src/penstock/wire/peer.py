"""What a protocol core sees of a connection."""

from __future__ import annotations

from typing import Protocol


class Peer(Protocol):
    """One connection; cores compare peers by identity and keep them as dictionary keys."""

    @property
    def remote(self) -> tuple[str, int]:
        """Address of the other side."""

    @property
    def remote_host(self) -> bytes:
        """The same address, packed as the record format stores hosts."""

    @property
    def closed(self) -> bool: ...

    def send(self, *parts: bytes | memoryview) -> None:
        """Queue bytes in order; never blocks and does nothing after close."""

    def close(self) -> None: ...
