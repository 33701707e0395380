"""How far a POP group is: what waits, what is with a consumer, what was put off, and how old it all is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.pop.frontier import Frontier
from penstock.broker.pop.leases import CHANGED, Lease, Leases
from penstock.message.names import pop_retry_topic_v1, pop_retry_topic_v2

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class PopLag(NamedTuple):
    ready: int
    """Could be popped now, retries included."""
    in_flight: int
    """With a consumer, under the lease of its pop."""
    delayed: int
    """Kept longer by a change of the invisible time: put off for a retry, or the lease extended."""
    oldest_ms: int | None
    """Store time of the oldest of all these; None if there are none."""

    @property
    def total(self) -> int:
        return self.ready + self.in_flight + self.delayed


class LeasedMessages(NamedTuple):
    """One lease, as the tools show it."""

    topic: str
    group: str
    queue_id: int
    lease: Lease

    @property
    def is_delayed(self) -> bool:
        return bool(self.lease.flags & CHANGED)


class PopLags:
    def __init__(self, broker: Broker, leases: Leases, frontier: Frontier) -> None:
        self._broker = broker
        self._leases = leases
        self._frontier = frontier

    def lag(self, group: str, topic: str) -> PopLag:
        """Over all queues of a topic and of the group's retry topics for it."""
        store, topics = self._broker.store, self._broker.topics
        ready = in_flight = delayed = 0
        times: list[int] = []
        for name in (topic, pop_retry_topic_v1(group, topic), pop_retry_topic_v2(group, topic)):
            config = topics.get(name)
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                start = max(self._frontier.look(group, name, queue_id), store.min_offset(name, queue_id))
                waiting = store.max_offset(name, queue_id) - start
                if waiting > 0:
                    ready += waiting
                    times.append(store.store_time(name, queue_id, start))
                queue = self._leases.find_queue(name, group, queue_id)
                if queue is not None and queue.leases:
                    in_flight += queue.in_flight - queue.delayed
                    delayed += queue.delayed
                    first = min(next(lease.offsets()) for lease in self._leases.all_of(queue))
                    times.append(store.store_time(name, queue_id, first))
        known = [time_ms for time_ms in times if time_ms >= 0]
        return PopLag(ready, in_flight, delayed, min(known) if known else None)

    def leases(self, group: str) -> list[LeasedMessages]:
        """Everything of a group that is in flight, in the order in which it comes back."""
        found = [
            LeasedMessages(queue.topic, group, queue.queue_id, lease)
            for queue in self._leases.queues()
            if queue.group == group
            for lease in self._leases.all_of(queue)
        ]
        return sorted(found, key=lambda leased: leased.lease.visible_ms)
