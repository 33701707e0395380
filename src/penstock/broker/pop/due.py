"""When leases end: keys by time, in slots narrow enough that nobody notices, wide enough to be cheap.

Adding and taking cost the same whether there are ten leases or a million. An acked lease leaves its key
behind; a slot is swept when most of its keys are dead, so long leases that are acked soon cost nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.pop.leases import LeaseQueue

SLOT_MS: Final = 40
"""Also the longest that a lease can be kept past its end for want of a finer clock."""


class _Keys(list[int]):
    """Keys of one queue's leases that end in one slot."""

    __slots__ = ("dead",)

    def __init__(self) -> None:
        super().__init__()
        self.dead = 0


class DueTimes:
    def __init__(self) -> None:
        self._slots: dict[int, dict[LeaseQueue, _Keys]] = {}
        self._order: list[int] = []

    def add(self, queue: LeaseQueue, key: int, due_ms: int) -> None:
        number = due_ms // SLOT_MS
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            if len(self._order) > 2 * len(self._slots) + 1_000:
                self._order = list(self._slots)
                heapq.heapify(self._order)
            else:
                heapq.heappush(self._order, number)
        keys = slot.get(queue)
        if keys is None:
            keys = slot[queue] = _Keys()
        keys.append(key)

    def ended(self, queue: LeaseQueue, due_ms: int) -> None:
        """A lease that was to end then is no more in its queue."""
        number = due_ms // SLOT_MS
        slot = self._slots.get(number)
        keys = slot.get(queue) if slot is not None else None
        if slot is None or keys is None:
            return
        keys.dead += 1
        if 2 * keys.dead >= len(keys):
            keys[:] = [key for key in keys if key in queue.leases]
            keys.dead = 0
            if not keys:
                del slot[queue]
                if not slot:
                    del self._slots[number]

    def take(self, now_ms: int) -> Iterator[tuple[LeaseQueue, int]]:
        """Keys whose slot is over, in the order of slots and of leasing; some may be of leases that ended."""
        order = self._order
        while order and (order[0] + 1) * SLOT_MS <= now_ms:
            for queue, keys in self._slots.pop(heapq.heappop(order), {}).items():
                for key in keys:
                    yield queue, key

    def walk(self, concerns: Callable[[LeaseQueue], bool]) -> Iterator[tuple[LeaseQueue, int]]:
        """Keys of some queues in the order of slots; some may be of leases that ended."""
        for number in sorted(self._slots):
            for queue, keys in self._slots[number].items():
                if concerns(queue):
                    for key in keys:
                        yield queue, key

    def drop_queue(self, queue: LeaseQueue) -> None:
        """Forgets a queue whose leases are all gone."""
        for number, slot in list(self._slots.items()):
            if slot.pop(queue, None) is not None and not slot:
                del self._slots[number]
