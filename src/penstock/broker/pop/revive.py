"""Leases that ran out: their messages come back through the group's POP retry topic, or are dead.

A lease ends only when the copies of its messages are durable, so a crash makes one more copy rather than
none. Until then an ack still counts for the lease, but the copy is on its way and will be delivered.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.broker.pop.leases import SUSPENDED, Lease, LeaseQueue, Leases
from penstock.broker.stored_copy import add_origin, append_copy
from penstock.errors import CorruptRecord, MessageTooLarge, StoreFull
from penstock.message.names import dlq_topic, normal_topic, pop_retry_topic_v1, pop_retry_topic_v2
from penstock.message.properties import Key, add_property, drop_property, find_property
from penstock.message.record import RecordView
from penstock.wire.bodies import SubscriptionGroupConfig

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.broker")

RETRY_MS: Final = 1_000
"""A message that cannot be copied now is tried again this much later."""
RETRY_TOO_LARGE_MS: Final = 60_000
"""One that the settings do not allow any more waits for them to be put right."""
RETRY_QUEUES: Final = 1


class Reviver:
    def __init__(self, broker: Broker, leases: Leases) -> None:
        self._broker = broker
        self._store = broker.store
        self._leases = leases
        self._due: deque[tuple[LeaseQueue, int]] = deque()
        self._moving: deque[tuple[int, LeaseQueue, int, int]] = deque()
        """(position of the last copy, queue, key of the lease, bits of the messages copied)."""

    def tick(self, now_ms: int) -> None:
        store = self._store
        self._due += self._leases.due.take(self._leases.clock(now_ms))
        budget = limits.REVIVES_PER_TICK
        while self._due and budget > 0 and store.writable:
            if store.end - store.durable > limits.PENDING_FLUSH_BYTES:
                return
            queue, key = self._due.popleft()
            lease = self._leases.at(queue, key)
            if lease is not None:
                budget -= lease.unacked.bit_count()
                self._revive(queue, key, lease, now_ms)

    def _revive(self, queue: LeaseQueue, key: int, lease: Lease, now_ms: int) -> None:
        broker = self._broker
        group = broker.groups.get(queue.group)
        topic = normal_topic(queue.topic, queue.group)
        if group is None or broker.topics.get(topic) is None or broker.topics.get(queue.topic) is None:
            self._leases.release(queue, lease, lease.unacked)
            return
        gone = copied = 0
        try:
            for offset in lease.offsets():
                record = self._find(queue, lease, offset)
                if record is None:
                    gone |= 1 << offset - lease.start
                else:
                    self._copy(queue, lease, record, topic, group, now_ms)
                    copied |= 1 << offset - lease.start
        except StoreFull:
            self._leases.due.add(queue, key, self._leases.clock(now_ms) + RETRY_MS)
        except MessageTooLarge as error:
            log.error("a message of topic %s cannot come back to group %s: %s", topic, queue.group, error)
            self._leases.due.add(queue, key, self._leases.clock(now_ms) + RETRY_TOO_LARGE_MS)
        if copied:
            self._moving.append((self._store.end, queue, key, copied))
        if gone:
            self._leases.release(queue, lease, gone)

    def _find(self, queue: LeaseQueue, lease: Lease, offset: int) -> RecordView | None:
        """None if the message is gone, also where another one has its place: in a queue that began anew
        everything is younger than the lease."""
        for physical_offset, _, _ in self._store.entries(queue.topic, queue.queue_id, offset, 1):
            stored = self._store.read_record(physical_offset)
            try:
                record = RecordView(stored) if stored is not None else None
            except CorruptRecord:
                return None
            if record is not None and record.queue_offset == offset and record.store_ms <= lease.pop_ms:
                return record
        return None

    def _copy(
        self,
        queue: LeaseQueue,
        lease: Lease,
        record: RecordView,
        topic: str,
        group: SubscriptionGroupConfig,
        now_ms: int,
    ) -> None:
        broker, store = self._broker, self._store
        is_attempt = not lease.flags & SUSPENDED
        times = record.reconsume_times + is_attempt
        is_dead = is_attempt and times > group.retry_max_times and broker.settings.pop_dead_letter_enable
        text = record.properties_text
        if is_dead:
            target = dlq_topic(queue.group)
            longer = add_origin(text, record, topic)
            broker.statistics.add("SNDBCK2DLQ_TIMES", f"{topic}@{queue.group}")
        else:
            target = self._retry_topic(queue, topic)
            longer = _with_pop_properties(text, record, queue.group, lease)
        if broker.topics.ensure(target, RETRY_QUEUES, now_ms) is None:
            raise StoreFull("no room for another topic")
        if not is_dead and broker.offsets.query(queue.group, target, 0) < 0:
            broker.offsets.commit(queue.group, target, 0, 0, now_ms)
        before = store.end
        try:
            append_copy(store, record, target, 0, longer, times, now_ms)
        except MessageTooLarge:  # it fits as it was
            append_copy(store, record, target, 0, text, times, now_ms)
        broker.statistics.count_put(target, 0, 1, store.end - before)

    def _retry_topic(self, queue: LeaseQueue, topic: str) -> str:
        """A message that came from a retry topic goes back to the same one."""
        if queue.topic != topic:
            return queue.topic
        name = pop_retry_topic_v2 if self._broker.settings.enable_retry_topic_v2 else pop_retry_topic_v1
        return name(queue.group, topic)

    def durable(self, position: int) -> None:
        moving = self._moving
        while moving and moving[0][0] <= position:
            _, queue, key, bits = moving.popleft()
            lease = self._leases.at(queue, key)
            if lease is not None and lease.unacked & bits:
                self._leases.release(queue, lease, bits)

    def flush_failed(self) -> None:
        """The copies are gone with their group: they are made again."""
        self._due.extendleft((queue, key) for _, queue, key, _ in reversed(self._moving))
        self._moving.clear()


def _with_pop_properties(text: str, record: RecordView, group: str, lease: Lease) -> str:
    if record.reconsume_times == 0 or find_property(text, Key.FIRST_POP_TIME) is None:
        text = add_property(drop_property(text, Key.FIRST_POP_TIME), Key.FIRST_POP_TIME, str(lease.pop_ms))
    if find_property(text, Key.ORIGIN_GROUP) != group:
        text = add_property(drop_property(text, Key.ORIGIN_GROUP), Key.ORIGIN_GROUP, group)
    return text
