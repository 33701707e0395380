"""What a server talks to."""

from __future__ import annotations

from typing import Protocol

from penstock.wire.command import Command
from penstock.wire.peer import Peer


class Service(Protocol):
    """What a server serves. All calls come from the event loop."""

    def connected(self, peer: Peer) -> None: ...

    def handle(self, peer: Peer, command: Command) -> None:
        """One request or response; replies go out by `peer.send`, now or later."""

    def batch_end(self) -> None:
        """The frames that were read in this loop turn have been handled."""

    def disconnected(self, peer: Peer) -> None: ...
