"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX, one queue a level, and move to their topic when due.

A queue entry of that topic holds the due time where others hold the tag code, so looking for what is due
reads no messages. Progress counts only once the delivered copy is durable: a crash delivers a message again
rather than not at all.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock import limits
from penstock.broker.persistence import Kind, Note, other_members, read_version
from penstock.broker.stored_copy import append_copy
from penstock.errors import InvalidArgument, StoreFull
from penstock.message.names import HALF_TOPIC, SCHEDULE_TOPIC
from penstock.message.properties import Key, find_property
from penstock.message.record import RecordView
from penstock.wire.bodies import DataVersion

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.broker")

FIRST_DELIVERY_MS = 1_000
LOOK_MS = 100
_ENTRY = struct.Struct(">iq")


class DelayLevels:
    file_name = "delayOffset.json"
    prompt = False

    def __init__(self, broker: Broker, note: Note, delays_ms: tuple[int, ...], *, now_ms: int) -> None:
        self._broker = broker
        self._note = note
        self._delays_ms = delays_ms
        self.data_version = DataVersion(timestamp=now_ms)
        self.dirty = False
        self.progress: dict[int, int] = {}
        """level → offset in its queue; everything before it was delivered, durably."""
        self._next: dict[int, int] = {}
        """level → offset to look at; ahead of the progress by what is not durable yet."""
        self._moving: deque[tuple[int, int, int]] = deque()
        """(position of the delivered copy, level, offset behind the message)."""
        self._next_look_ms = now_ms + FIRST_DELIVERY_MS
        self._other_members: dict[str, Any] = {}

    @property
    def max_level(self) -> int:
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        return self._delays_ms[min(level, self.max_level) - 1]

    # ---- delivering -----------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        if now_ms < self._next_look_ms or self._broker.settings.broker_role == "SLAVE":
            return
        self._next_look_ms = now_ms + LOOK_MS
        try:
            for level in range(1, self.max_level + 1):
                self._deliver_due(level, now_ms)
        except StoreFull:
            pass  # nothing is lost: the same messages are looked at again
        self.durable(self._broker.store.durable, now_ms)  # for what was passed over and needs no flush

    def _deliver_due(self, level: int, now_ms: int) -> None:
        store = self._broker.store
        queue_id = level - 1
        newest = store.max_offset(SCHEDULE_TOPIC, queue_id)
        offset = self._next.get(level, self.progress.get(level, 0))
        clamped = min(max(offset, store.min_offset(SCHEDULE_TOPIC, queue_id)), newest)
        if clamped != offset:
            offset = self._next[level] = clamped
            self._moving.append((store.end, level, offset))
        if offset < newest and store.end - store.durable <= limits.PENDING_FLUSH_BYTES:
            due = store.entries(SCHEDULE_TOPIC, queue_id, offset, limits.DELAY_DELIVERIES_PER_TICK)
            for physical_offset, _, due_ms in due:
                if now_ms < due_ms <= now_ms + self._delays_ms[queue_id]:
                    break
                self._deliver(physical_offset, now_ms)
                offset += 1
                self._next[level] = offset
                self._moving.append((store.end, level, offset))

    def _deliver(self, physical_offset: int, now_ms: int) -> None:
        """Stores the message where it was meant to go; one that cannot be read is passed over."""
        store = self._broker.store
        stored = store.read_record(physical_offset)
        if stored is None:
            return
        record = RecordView(stored)
        properties = record.properties_text
        topic = find_property(properties, Key.REAL_TOPIC)
        queue_id = find_property(properties, Key.REAL_QID) or ""
        if topic is None or topic == HALF_TOPIC or not queue_id.isdecimal():
            return
        before = store.end
        try:
            append_copy(store, record, topic, int(queue_id), properties, record.reconsume_times, now_ms)
        except InvalidArgument as error:
            log.warning("a delayed message of topic %s cannot be delivered: %s", topic, error)
            return
        self._broker.statistics.count_put(topic, int(queue_id), 1, store.end - before)

    def durable(self, position: int, now_ms: int) -> None:
        moving = self._moving
        moved: dict[int, int] = {}
        while moving and moving[0][0] <= position:
            _, level, offset = moving.popleft()
            moved[level] = offset
        for level, offset in moved.items():
            self.progress[level] = offset
            self.data_version = self.data_version.next(now_ms)
            self.dirty = True
            self._note(Kind.DELAY_PROGRESS, _ENTRY.pack(level, offset))

    def flush_failed(self) -> None:
        """The copies are gone with their group: they are delivered again."""
        self._moving.clear()
        self._next.clear()

    # ---- the file -------------------------------------------------------------------------------

    def load(self, saved: Mapping[str, Any]) -> None:
        progress = {int(level): int(offset) for level, offset in (saved.get("offsetTable") or {}).items()}
        self.data_version = read_version(saved, self.data_version)
        self.progress = progress
        self._other_members = other_members(saved, "dataVersion", "offsetTable")

    def snapshot(self) -> dict[str, Any]:
        return {**self._other_members, "dataVersion": self.data_version, "offsetTable": self.progress}

    def replay(self, kind: int, payload: bytes) -> bool:
        if kind != Kind.DELAY_PROGRESS:
            return False
        level, offset = _ENTRY.unpack(payload)
        self.progress[level] = offset
        self.dirty = True
        return True
