"""The cached messages of one assigned queue, and the offset that may be committed.

A slow message at the head pins the committable offset, so after a crash everything from it on comes
again: at least once. All calls come from the event loop; workers never touch a process queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from penstock.client.pulled import PulledMessage
from penstock.client.stats import TopicStats
from penstock.message.queue import MessageQueue

NOTHING = -1
"""No offset to commit."""


class ProcessQueue:
    """Times are milliseconds of the event loop's clock, so that a jump of the wall clock changes nothing."""

    __slots__ = (
        "_order",
        "backlog",
        "cached",
        "cached_bytes",
        "consuming",
        "dropped",
        "held",
        "last_consume_ms",
        "last_lock_ms",
        "last_pull_ms",
        "listener_done",
        "locked",
        "max_offset",
        "on_room",
        "queue",
        "release_ms",
        "room_at",
        "stats",
        "taken",
        "unlock_tries",
    )

    def __init__(self, queue: MessageQueue, now_ms: float, stats: TopicStats | None = None) -> None:
        self.queue = queue
        self.stats = stats or TopicStats()
        self.cached: dict[int, PulledMessage] = {}
        self._order: deque[int] = deque()  # offsets ascending; those no longer cached are skipped when met
        self.taken: dict[int, PulledMessage] = {}
        """Orderly consumption: handed to the listener and not yet committed."""
        self.cached_bytes = 0
        self.max_offset = 0
        self.backlog = 0
        """Messages at the broker behind the last one pulled."""
        self.dropped = False
        """Given up; never taken back. Nothing more is pulled, consumed or committed."""
        self.held = False
        """Dropped while its offset is repaired: a rebalance leaves it alone if it is still assigned."""
        self.consuming = False
        """Orderly consumption: a task for this queue is queued, running or scheduled."""
        self.locked = False
        self.last_lock_ms = now_ms
        self.last_pull_ms = now_ms
        self.last_consume_ms = now_ms
        self.listener_done: asyncio.Event | None = None
        """Orderly consumption: set when the listener that runs now has returned."""
        self.unlock_tries = 0
        self.release_ms: float | None = None
        """Orderly consumption: when it was first tried to let the queue go."""
        self.on_room: Callable[[], None] | None = None
        """Called once when no more than `room_at` messages are cached: a pull waits for it."""
        self.room_at = 0

    @property
    def count(self) -> int:
        return len(self.cached) + len(self.taken)

    @property
    def first_offset(self) -> int | None:
        order, cached = self._order, self.cached
        while order and order[0] not in cached:
            order.popleft()
        return order[0] if order else None

    @property
    def last_offset(self) -> int | None:
        order, cached = self._order, self.cached
        while order and order[-1] not in cached:
            order.pop()
        return order[-1] if order else None

    @property
    def span(self) -> int:
        first, last = self.first_offset, self.last_offset
        return 0 if first is None or last is None else last - first

    @property
    def first(self) -> PulledMessage | None:
        first = self.first_offset
        return None if first is None else self.cached[first]

    def holds(self, message: PulledMessage) -> bool:
        """Still cached here: neither consumed nor sent back by the cleaner."""
        return self.cached.get(message.record.queue_offset) is message

    def put(self, messages: Sequence[PulledMessage], broker_max_offset: int = 0) -> bool:
        """Caches pulled messages; True if an orderly task has to be started for them."""
        cached, order = self.cached, self._order
        in_order = True
        last = order[-1] if order else -1
        added = 0
        for message in messages:
            record = message.record
            offset = record.queue_offset
            if offset not in cached:
                added += record.size
                if offset <= last:
                    in_order = False
                last = offset
                order.append(offset)
                self.max_offset = offset
            cached[offset] = message
        self.cached_bytes += added
        if not in_order:
            self._sort()
        if messages:
            self.backlog = max(0, broker_max_offset - messages[-1].record.queue_offset)
        if cached and not self.consuming:
            self.consuming = True
            return True
        return False

    def remove(self, messages: Iterable[PulledMessage], now_ms: float) -> int:
        """Takes consumed messages out; the offset that may be committed now, or NOTHING."""
        self.last_consume_ms = now_ms
        cached = self.cached
        if not cached:
            return NOTHING
        freed = 0
        for message in messages:
            removed = cached.pop(message.record.queue_offset, None)
            if removed is not None:
                freed += removed.record.size
        self.cached_bytes -= freed
        if self.on_room is not None:
            self._tell_room()
        first = self.first_offset
        return self.max_offset + 1 if first is None else first

    def take(self, count: int, now_ms: float) -> list[PulledMessage]:
        """The lowest messages, for an orderly listener; none left ends the orderly task."""
        self.last_consume_ms = now_ms
        batch: list[PulledMessage] = []
        while len(batch) < count:
            first = self.first_offset
            if first is None:
                break
            self._order.popleft()
            message = self.cached.pop(first)
            self.taken[first] = message
            batch.append(message)
        if not batch:
            self.consuming = False
        return batch

    def commit(self) -> int:
        """Everything taken is consumed; the offset behind it, or NOTHING."""
        if not self.taken:
            return NOTHING
        last = max(self.taken)
        for message in self.taken.values():
            self.cached_bytes -= message.record.size
        self.taken.clear()
        if self.on_room is not None:
            self._tell_room()
        return last + 1

    def _tell_room(self) -> None:
        if self.on_room is not None and self.count <= self.room_at:
            on_room, self.on_room = self.on_room, None
            on_room()

    def rollback(self) -> None:
        """Everything taken is consumed again."""
        self.again(list(self.taken.values()))

    def again(self, messages: Iterable[PulledMessage]) -> None:
        """These are consumed again."""
        for message in messages:
            self.taken.pop(message.record.queue_offset, None)
            self.cached[message.record.queue_offset] = message
        self._sort()

    def clear(self) -> None:
        self.cached.clear()
        self.taken.clear()
        self._order.clear()
        self.cached_bytes = 0
        self.max_offset = 0

    def lock_expired(self, now_ms: float, max_live_ms: int) -> bool:
        return now_ms - self.last_lock_ms > max_live_ms

    def _sort(self) -> None:
        self._order = deque(sorted(self.cached))
