"""Answers: refusals, and replies that wait until what they confirm is on the disk."""

from __future__ import annotations

from collections import deque

from penstock import limits
from penstock.errors import PenstockError
from penstock.wire.codes import ResponseCode
from penstock.wire.command import Command, Ext, encode_response
from penstock.wire.peer import Peer


class Refusal(PenstockError):
    """Raised by a handler: the request is answered with this code and remark, and nothing else happens."""

    def __init__(self, code: ResponseCode, remark: str, ext: Ext | None = None) -> None:
        if len(remark) > limits.REMARK_CHARS:
            remark = f"{remark[: limits.REMARK_CHARS]}..."
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = ext


class WaitingReplies:
    """Replies in the order of the positions they wait for."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Peer, Command, tuple[bytes | memoryview, ...]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= limits.WAITING_REPLIES

    def add(self, peer: Peer, command: Command, position: int, *parts: bytes | memoryview) -> None:
        """Positions never go down, because log and journal only grow."""
        self._waiting.append((position, peer, command, parts))

    def release(self, durable: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable:
            _, peer, _, parts = waiting.popleft()
            peer.send(*parts)

    def fail(self, remark: str) -> None:
        """Everything that waits was cut off with its group: none of it will ever be on the disk."""
        waiting, self._waiting = self._waiting, deque()
        for _, peer, command, _ in waiting:
            peer.send(encode_response(command, ResponseCode.SERVICE_NOT_AVAILABLE, remark))
