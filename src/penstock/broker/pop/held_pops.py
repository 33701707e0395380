"""Long polling: pops and notifications that found nothing wait here for a message, or for their time to end.

They wait in lines, one for each (topic, group, requested queue; -1 stands for all) and filter, the one that
ends first in front. Whoever is woken runs its whole request again, which may deliver, wait again or time out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, Final

from penstock.broker.filters import PullFilter, wants
from penstock.broker.settings import BrokerSettings
from penstock.message.names import pop_retry_topic_v1, pop_retry_topic_v2
from penstock.wire.command import Command
from penstock.wire.headers import NotificationHeader, PopHeader
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.offsets import Offsets
    from penstock.store.consume_queue import ConsumeQueue
    from penstock.store.results import Arrival, ArrivedMessage
    from penstock.store.store import Store

ALL_QUEUES: Final = -1
EARLY_MS: Final = 50
"""Protocol: a poll is over this much before its time, so that the answer arrives within it."""

_numbers = count()


class Verdict(Enum):
    HELD = auto()
    FULL = auto()
    TIMEOUT = auto()


class HeldPop:
    __slots__ = ("command", "done", "filter", "header", "number", "peer", "until_ms")

    def __init__(
        self, peer: Peer, command: Command, header: PopHeader | NotificationHeader, wanted: PullFilter
    ) -> None:
        self.peer = peer
        self.command = command
        self.header = header
        self.filter = wanted
        self.until_ms = header.born_time + header.poll_time - EARLY_MS
        self.number = next(_numbers)
        self.done = False

    def __lt__(self, other: HeldPop) -> bool:
        return (self.until_ms, self.number) < (other.until_ms, other.number)


class _Line:
    """Everybody who waits for one queue, or for all, of a topic on behalf of a group."""

    __slots__ = ("by_filter", "count")

    def __init__(self) -> None:
        self.by_filter: dict[PullFilter, list[HeldPop]] = {}
        self.count = 0

    def leave(self, held: HeldPop) -> None:
        """Its place in the heap is forgotten when it comes up, or when there are too many like it."""
        self.count -= 1
        waiting = self.by_filter.get(held.filter, [])
        if len(waiting) > 2 * self.count + 64:
            waiting[:] = sorted(other for other in waiting if not other.done)

    def everybody(self) -> list[HeldPop]:
        return [held for waiting in self.by_filter.values() for held in sorted(waiting) if not held.done]

    def first(self, takes_it: Callable[[PullFilter], bool]) -> HeldPop | None:
        """The first in line of those whose filter passes."""
        found: HeldPop | None = None
        for wanted, waiting in list(self.by_filter.items()):
            while waiting and waiting[0].done:
                heapq.heappop(waiting)
            if not waiting:
                del self.by_filter[wanted]
            elif (found is None or waiting[0] < found) and takes_it(wanted):
                found = waiting[0]
        return found


def _anything(wanted: PullFilter) -> bool:
    return True


class HeldPops:
    def __init__(
        self,
        store: Store,
        offsets: Offsets,
        settings: BrokerSettings,
        resume: Callable[[HeldPop, int], None],
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._settings = settings
        self._resume = resume
        self._topics: dict[str, dict[str, dict[int, _Line]]] = {}
        """topic → group → requested queue."""
        self._retries: dict[str, set[tuple[str, str]]] = {}
        """POP retry topic → the (topic, group) pairs with somebody waiting that it belongs to."""
        self._peers: dict[Peer, set[HeldPop]] = {}
        self._ends: list[HeldPop] = []
        self._count = 0
        self._woken: deque[HeldPop] = deque()
        self._draining = False
        self._unfinished: list[HeldPop] = []

    def __len__(self) -> int:
        return self._count

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        line = self._line(topic, group, queue_id)
        return line.count if line is not None else 0

    def _line(self, topic: str, group: str, queue_id: int) -> _Line | None:
        groups = self._topics.get(topic)
        lines = groups.get(group) if groups is not None else None
        return lines.get(queue_id) if lines is not None else None

    # ---- coming ---------------------------------------------------------------------------------

    def hold(self, held: HeldPop, now_ms: int, *, unfinished: bool = False) -> Verdict:
        """`unfinished`: there is more that it has not looked at, so it goes on with the next tick."""
        header = held.header
        if header.poll_time <= 0:
            return Verdict.TIMEOUT
        if self._count >= self._settings.max_pop_polling_size:
            return Verdict.FULL
        if now_ms > held.until_ms:
            return Verdict.TIMEOUT
        topic, group = header.topic, header.consumer_group
        lines = self._topics.setdefault(topic, {}).setdefault(group, {})
        if not lines:
            for name in (pop_retry_topic_v1(group, topic), pop_retry_topic_v2(group, topic)):
                self._retries.setdefault(name, set()).add((topic, group))
        line = lines.setdefault(max(ALL_QUEUES, header.queue_id), _Line())
        if line.count > self._settings.pop_polling_size:
            return Verdict.FULL
        line.count += 1
        heapq.heappush(line.by_filter.setdefault(held.filter, []), held)
        self._peers.setdefault(held.peer, set()).add(held)
        self._count += 1
        heapq.heappush(self._ends, held)
        if unfinished:
            self._unfinished.append(held)
        return Verdict.HELD

    # ---- going ----------------------------------------------------------------------------------

    def _remove(self, held: HeldPop) -> None:
        held.done = True
        self._count -= 1
        header = held.header
        topic, group, queue_id = header.topic, header.consumer_group, max(ALL_QUEUES, header.queue_id)
        groups = self._topics[topic]
        lines = groups[group]
        lines[queue_id].leave(held)
        if not lines[queue_id].count:
            del lines[queue_id]
            if not lines:
                del groups[group]
                self._forget_retries(topic, group)
                if not groups:
                    del self._topics[topic]
        mine = self._peers[held.peer]
        mine.remove(held)
        if not mine:
            del self._peers[held.peer]

    def _forget_retries(self, topic: str, group: str) -> None:
        for name in (pop_retry_topic_v1(group, topic), pop_retry_topic_v2(group, topic)):
            pairs = self._retries[name]
            pairs.discard((topic, group))
            if not pairs:
                del self._retries[name]

    def drop_peer(self, peer: Peer) -> None:
        for held in list(self._peers.get(peer, ())):
            self._remove(held)

    def take_group(self, peer: Peer, group: str) -> list[HeldPop]:
        """What a client has waiting for a group; it waits no more."""
        waiting = [held for held in self._peers.get(peer, ()) if held.header.consumer_group == group]
        for held in waiting:
            self._remove(held)
        return sorted(waiting)

    # ---- waking ---------------------------------------------------------------------------------

    def wake(self, topic: str, group: str, queue_id: int, now_ms: int) -> bool:
        """One of those who asked for exactly this, if there is one; runs at once, or after who runs now."""
        line = self._line(topic, group, queue_id)
        held = line.first(_anything) if line is not None else None
        if held is None:
            return False
        self._remove(held)
        self._woken.append(held)
        self._drain(now_ms)
        return True

    def wake_any(self, topic: str, group: str, queue_id: int, now_ms: int) -> None:
        """Something is there in this queue: for one who asked for all queues, or for one who asked for it."""
        if not self.wake(topic, group, ALL_QUEUES, now_ms):
            self.wake(topic, group, queue_id, now_ms)

    def wake_all(self, topic: str, group: str, now_ms: int) -> None:
        """Everything may be different now, so everybody looks again."""
        lines = self._topics.get(topic, {}).get(group, {})
        waiting = [held for line in lines.values() for held in line.everybody()]
        for held in waiting:
            self._end(held)
        self._drain(now_ms)

    def _drain(self, now_ms: int) -> None:
        """Runs who was woken, one after the other: a request that wakes another must not run it inside."""
        if self._draining:
            return
        self._draining = True
        try:
            while self._woken:
                self._resume(self._woken.popleft(), now_ms)
        finally:
            self._draining = False

    def arrived(self, arrivals: list[Arrival], now_ms: int) -> None:
        """Messages became visible: for each that nobody took yet, one who wants it is woken."""
        topics = self._topics
        if not topics:
            return
        for arrival in arrivals:
            if arrival.topic in topics or arrival.topic in self._retries:
                for message in arrival.messages():
                    self._arrived_one(arrival.queue, message, now_ms)

    def _arrived_one(self, queue: ConsumeQueue, message: ArrivedMessage, now_ms: int) -> None:
        groups = self._topics.get(queue.topic)
        if groups is not None:
            for group in list(groups):
                if not self._is_taken(group, queue, message):
                    self._wake_for(group, queue, message, now_ms)
        elif queue.topic in self._retries:
            for topic, group in sorted(self._retries[queue.topic]):
                self._wake_for_retry(topic, group, queue, message, now_ms)

    def _is_taken(self, group: str, queue: ConsumeQueue, message: ArrivedMessage) -> bool:
        return message.queue_offset < self._offsets.query(group, queue.topic, queue.queue_id)

    def _wake_for(self, group: str, queue: ConsumeQueue, message: ArrivedMessage, now_ms: int) -> None:
        """One who asked for all queues; if there is none, or it left the message, one of its queue."""

        def takes_it(wanted: PullFilter) -> bool:
            return wants(wanted, message, self._store)

        for queue_id in (ALL_QUEUES, queue.queue_id):
            line = self._line(queue.topic, group, queue_id)
            held = line.first(takes_it) if line is not None else None
            if held is not None:
                self._remove(held)
                self._woken.append(held)
                self._drain(now_ms)
                if self._is_taken(group, queue, message):
                    return

    def _wake_for_retry(
        self, topic: str, group: str, queue: ConsumeQueue, message: ArrivedMessage, now_ms: int
    ) -> None:
        """Every pop of the topic reads its retries, whichever queue it asked for, unless it is an orderly
        one: so one of each line is woken until the message is taken."""
        for queue_id in sorted(self._topics[topic][group]):
            if self._is_taken(group, queue, message):
                return
            self.wake(topic, group, queue_id, now_ms)

    # ---- time -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        unfinished, self._unfinished = self._unfinished, []
        for held in unfinished:
            self._end(held)
        ends = self._ends
        while ends and (ends[0].done or ends[0].until_ms < now_ms):
            self._end(heapq.heappop(ends))
        if len(ends) > 2 * self._count + 1_000:
            self._ends = [held for held in ends if not held.done]
            heapq.heapify(self._ends)
        self._drain(now_ms)

    def _end(self, held: HeldPop) -> None:
        if not held.done:
            self._remove(held)
            self._woken.append(held)
