"""Queue locks of orderly consumers: one client of a group owns a queue while it keeps renewing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock import limits
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from penstock.wire.codes import RequestCode
from penstock.wire.command import Command
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

LOCK_LIFE_MS = 60_000
"""Protocol: a lock that was not renewed for longer than this may be taken over."""


class QueueLocks:
    """group → queue → (owner's client id, last renewal). Memory only, as in the reference."""

    def __init__(self) -> None:
        self.table: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._count = 0

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """The queues that are the client's now: those it had, free ones, and those whose lock has expired."""
        owned = self.table.setdefault(group, {})
        granted = []
        for queue in queues:
            holder = owned.get(queue)
            if holder is None:
                if self._count >= limits.QUEUE_LOCKS_PER_BROKER:
                    continue
                self._count += 1
            elif holder[0] != client_id and now_ms - holder[1] <= LOCK_LIFE_MS:
                continue
            owned[queue] = (client_id, now_ms)
            granted.append(queue)
        if not owned:
            del self.table[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Only the owner's locks go; anything else is quietly left alone."""
        owned = self.table.get(group)
        if owned is None:
            return
        for queue in queues:
            holder = owned.get(queue)
            if holder is not None and holder[0] == client_id:
                del owned[queue]
                self._count -= 1
        if not owned:
            del self.table[group]

    def any_held(self, group: str, now_ms: int) -> bool:
        """Whether some client of the group consumes in order now."""
        owned = self.table.get(group)
        return owned is not None and any(
            now_ms - renewed_ms <= LOCK_LIFE_MS for _, renewed_ms in owned.values()
        )

    def owner(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        holder = self.table.get(group, {}).get(queue)
        return holder[0] if holder is not None and now_ms - holder[1] <= LOCK_LIFE_MS else None

    def drop_expired(self, now_ms: int) -> None:
        for group, owned in list(self.table.items()):
            for queue in [q for q, (_, renewed_ms) in owned.items() if now_ms - renewed_ms > LOCK_LIFE_MS]:
                del owned[queue]
                self._count -= 1
            if not owned:
                del self.table[group]


class LockRequests:
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.handlers: dict[int, Handler] = {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def lock(self, peer: Peer, command: Command, now_ms: int) -> None:
        body = LockBatchRequestBody.decode(command.body)
        granted = self._broker.locks.lock(body.consumer_group, body.client_id, body.mq_set, now_ms)
        self._broker.reply(peer, command, body=LockBatchResponseBody(granted).encode())

    def unlock(self, peer: Peer, command: Command, now_ms: int) -> None:
        body = UnlockBatchRequestBody.decode(command.body)
        self._broker.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        self._broker.reply(peer, command)
