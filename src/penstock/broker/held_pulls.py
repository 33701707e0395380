"""Long polling: pulls that found nothing wait here for a message that they want, or for their time to end.

Where the reference notices a time-out at its next scan, a held pull here is answered at its deadline. As
there, messages that its filter does not want leave it waiting until the next scan, which sends the client
on past them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import limits
from penstock.broker.filters import PullFilter, wants
from penstock.wire.command import Command
from penstock.wire.headers import PullHeader
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.store.results import Arrival
    from penstock.store.store import Store

SCAN_MS = 5_000


class HeldPull:
    __slots__ = ("command", "deadline_ms", "done", "filter", "header", "peer")

    def __init__(
        self, peer: Peer, command: Command, header: PullHeader, pull_filter: PullFilter, deadline_ms: int
    ) -> None:
        self.peer = peer
        self.command = command
        self.header = header
        self.filter = pull_filter
        self.deadline_ms = deadline_ms
        self.done = False

    def __lt__(self, other: HeldPull) -> bool:
        return self.deadline_ms < other.deadline_ms


class HeldPulls:
    def __init__(self, store: Store, resume: Callable[[HeldPull, int], None], *, now_ms: int) -> None:
        """`resume` executes a held pull again, this time to be answered whatever it finds."""
        self._store = store
        self._resume = resume
        self._queues: dict[tuple[str, int], list[HeldPull]] = {}
        self._peers: dict[Peer, set[HeldPull]] = {}
        self._deadlines: list[HeldPull] = []
        self._count = 0
        self._next_scan_ms = now_ms + SCAN_MS

    def __len__(self) -> int:
        return self._count

    def hold(self, held: HeldPull) -> bool:
        """False if there is no room: the pull must be answered now."""
        if self._count >= limits.HELD_PULLS_PER_BROKER:
            return False
        self._count += 1
        self._queues.setdefault((held.header.topic, held.header.queue_id), []).append(held)
        self._peers.setdefault(held.peer, set()).add(held)
        heapq.heappush(self._deadlines, held)
        return True

    def arrived(self, arrivals: list[Arrival], now_ms: int) -> None:
        """Messages became visible: pulls that want one of them are answered."""
        queues = self._queues
        if not queues:
            return
        for arrival in arrivals:
            waiting = queues.get((arrival.topic, arrival.queue_id))
            if waiting is not None:
                for held in [held for held in waiting if self._wants(held, arrival)]:
                    self._release(held, now_ms)

    def _wants(self, held: HeldPull, arrival: Arrival) -> bool:
        wanted_from = held.header.queue_offset
        return any(
            wants(held.filter, message, self._store)
            for message in arrival.messages()
            if message.queue_offset >= wanted_from
        )

    def tick(self, now_ms: int) -> None:
        deadlines = self._deadlines
        while deadlines and (deadlines[0].done or deadlines[0].deadline_ms <= now_ms):
            held = heapq.heappop(deadlines)
            if not held.done:
                self._release(held, now_ms)
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + SCAN_MS
            self._scan(now_ms)

    def _scan(self, now_ms: int) -> None:
        """Pulls that messages went past unwanted move on; the heap drops what it need not remember."""
        for (topic, queue_id), waiting in list(self._queues.items()):
            newest = self._store.max_offset(topic, queue_id)
            for held in [held for held in waiting if newest > held.header.queue_offset]:
                self._release(held, now_ms)
        if len(self._deadlines) > 2 * self._count + 1_000:
            self._deadlines = [held for held in self._deadlines if not held.done]
            heapq.heapify(self._deadlines)

    def drop_peer(self, peer: Peer) -> None:
        for held in list(self._peers.get(peer, ())):
            self._remove(held)

    def _release(self, held: HeldPull, now_ms: int) -> None:
        self._remove(held)
        self._resume(held, now_ms)

    def _remove(self, held: HeldPull) -> None:
        held.done = True
        self._count -= 1
        key = (held.header.topic, held.header.queue_id)
        waiting = self._queues[key]
        waiting.remove(held)
        if not waiting:
            del self._queues[key]
        mine = self._peers[held.peer]
        mine.remove(held)
        if not mine:
            del self._peers[held.peer]
