"""Orderly pops: a queue is blocked for its group until the batch it gave out is acked or its time is over.

There are no leases and no retry topic: the group's offset stays at the first message that is not acked, so
what is not acked comes again, in order. What was given out is remembered here, by queue, in a file that
Apache reads and, between two savings, in the journal.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

import msgspec

from penstock.broker.offsets import offset_key
from penstock.broker.persistence import Kind, Note, other_members
from penstock.message.handles import retry_flag

KEPT_MS: Final = 86_400_000
"""Protocol: what nobody popped for this long is forgotten."""

QueueKey = tuple[str, str, int]
"""(topic, group, queue id)."""


class OrderInfo(msgspec.Struct, rename={"pop_ms": "popTime"}):
    """The last batch of a queue; the one-letter names are the file's."""

    pop_ms: int = 0
    i: int | None = None
    """Invisible time; old files have none."""
    o: list[int] = []
    """Offsets: in memory as they are, in the file all but the first relative to it."""
    cm: int = 0
    """Bit i: the message at o[i] is acked."""
    ot: dict[int, int] | None = None
    """Offset → time from which it may be given out again, where that was changed."""
    oc: dict[int, int] | None = None
    """Offset → how often it was given out before, where it was."""
    l: int = 0  # noqa: E741 - the file's name
    """Time of the delivery."""
    a: str | None = None
    """Attempt id: who repeats it gets the same again."""

    def visible_ms(self, index: int) -> int | None:
        changed = self.ot.get(self.o[index]) if self.ot else None
        if changed is not None:
            return changed
        return self.pop_ms + self.i if self.i is not None and self.i > 0 else None

    def unacked(self) -> list[int]:
        """Indexes of the messages that are not acked."""
        return [index for index in range(len(self.o)) if not self.cm >> index & 1]

    def times_given(self) -> dict[int, int]:
        """Offset → how often it was given out, this batch included."""
        counts = dict(self.oc or {})
        for offset in self.o:
            counts[offset] = counts.get(offset, 0) + 1
        return counts

    def next_offset(self) -> int:
        waiting = self.unacked()
        return self.o[waiting[0]] if waiting else self.o[-1] + 1


class Verdict(Enum):
    ACKED = auto()
    STALE = auto()
    """Of a delivery that is over: nothing to do."""
    ILLEGAL = auto()
    """Never given out."""


class OrderInfos:
    file_name = "consumerOrderInfo.json"
    prompt = False

    def __init__(self, note: Note) -> None:
        self.dirty = False
        self.table: dict[QueueKey, OrderInfo] = {}
        self._note = note
        self._wake_ms: dict[QueueKey, int] = {}
        self._wakes: list[tuple[int, QueueKey]] = []
        self._other_members: dict[str, Any] = {}

    # ---- asking ---------------------------------------------------------------------------------

    def is_blocked(
        self, group: str, topic: str, queue_id: int, attempt: str | None, now_ms: int, invisible_ms: int = 0
    ) -> bool:
        """Whether part of the last batch is still with somebody else. `invisible_ms` stands in where an
        old file does not say how long."""
        info = self.table.get((topic, group, queue_id))
        if info is None or (info.a is not None and info.a == attempt):
            return False
        if info.i is None or info.i <= 0:
            info.i = invisible_ms
        return any((info.visible_ms(index) or 0) > now_ms for index in info.unacked())

    def held(self, topic: str, group: str, queue_id: int, now_ms: int) -> OrderInfo | None:
        """The last batch, while part of it is still with somebody."""
        if not self.is_blocked(group, topic, queue_id, None, now_ms):
            return None
        return self.table.get((topic, group, queue_id))

    def next_wake(self, info: OrderInfo, now_ms: int) -> int | None:
        """When nothing blocks the queue any more."""
        wake_ms = now_ms
        for index in info.unacked():
            visible_ms = info.visible_ms(index)
            if visible_ms is None:
                return None
            wake_ms = max(wake_ms, visible_ms)
        return wake_ms

    # ---- changing -------------------------------------------------------------------------------

    def delivered(
        self, key: QueueKey, offsets: list[int], pop_ms: int, invisible_ms: int, attempt: str | None
    ) -> list[str]:
        """Notes a batch; tells the items of the answer's orderCountInfo."""
        topic, _, queue_id = key
        before = self.table.get(key)
        info = OrderInfo(pop_ms, invisible_ms, offsets, l=pop_ms, a=attempt)
        times = before.times_given() if before is not None else {}
        if before is not None and attempt is not None and attempt == before.a:
            counts = {offset: n for offset, n in (before.oc or {}).items() if offset in offsets}
        else:
            counts = {offset: times[offset] for offset in offsets if offset in times}
        # What a smaller batch leaves for the next one was given out before all the same.
        info.oc = counts | {offset: n for offset, n in times.items() if offset > offsets[-1]}
        self._store(key, info, pop_ms)
        flag = retry_flag(topic)
        items = [f"{flag} qo{queue_id}%{offset} {times}" for offset, times in counts.items()]
        fewest = min(counts.values()) if counts and all(offset in counts for offset in offsets) else 0
        return [*items, f"{flag} {queue_id} {fewest}"]

    def ack(self, key: QueueKey, offset: int, pop_ms: int, now_ms: int) -> tuple[Verdict, int]:
        """With the offset that the group has come to."""
        info = self.table.get(key)
        if info is None or info.pop_ms != pop_ms:
            return Verdict.STALE, 0
        if offset not in info.o:
            return Verdict.ILLEGAL, 0
        info.cm |= 1 << info.o.index(offset)
        self._store(key, info, now_ms)
        return Verdict.ACKED, info.next_offset()

    def change(self, key: QueueKey, offset: int, pop_ms: int, visible_ms: int, now_ms: int) -> bool:
        """Whether there was such a message with somebody."""
        info = self.table.get(key)
        if info is None or info.pop_ms != pop_ms or offset not in info.o:
            return False
        if info.cm >> info.o.index(offset) & 1:
            return False
        info.ot = {**(info.ot or {}), offset: visible_ms}
        self._store(key, info, now_ms)
        return True

    def _store(self, key: QueueKey, info: OrderInfo, now_ms: int) -> None:
        self.table[key] = info
        self.dirty = True
        self._note(Kind.ORDER_INFO, msgspec.json.encode((*key, info)))
        self._arm(key, info, now_ms)

    def drop_queue(self, topic: str, group: str, queue_id: int) -> None:
        key = (topic, group, queue_id)
        if self.table.pop(key, None) is not None:
            self._wake_ms.pop(key, None)
            self.dirty = True
            self._note(Kind.ORDER_INFO, msgspec.json.encode((*key, None)))

    # ---- time -----------------------------------------------------------------------------------

    def _arm(self, key: QueueKey, info: OrderInfo, now_ms: int) -> None:
        wake_ms = self.next_wake(info, now_ms)
        if wake_ms is None:
            return
        self._wake_ms[key] = wake_ms
        heapq.heappush(self._wakes, (wake_ms, key))
        if len(self._wakes) > 2 * len(self._wake_ms) + 1_000:
            self._wakes = [(due_ms, key) for key, due_ms in self._wake_ms.items()]
            heapq.heapify(self._wakes)

    def start(self, now_ms: int) -> None:
        """After loading and replaying."""
        for key, info in self.table.items():
            self._arm(key, info, now_ms)

    def take_unblocked(self, now_ms: int) -> list[QueueKey]:
        """Queues that may have something to give again: whoever waits for them should look."""
        found = []
        while self._wakes and self._wakes[0][0] <= now_ms:
            due_ms, key = heapq.heappop(self._wakes)
            if self._wake_ms.get(key) == due_ms:
                del self._wake_ms[key]
                found.append(key)
        return found

    def forget_old(self, now_ms: int) -> None:
        """Not what somebody still holds: its ack must count."""
        old = [key for key, info in self.table.items() if info.l < now_ms - KEPT_MS]
        for topic, group, queue_id in old:
            if self.held(topic, group, queue_id, now_ms) is None:
                self.drop_queue(topic, group, queue_id)

    # ---- the file -------------------------------------------------------------------------------

    def load(self, saved: Mapping[str, Any]) -> None:
        table: dict[QueueKey, OrderInfo] = {}
        for name, queues in (saved.get("table") or {}).items():
            topic, _, group = name.partition("@")
            for queue_id, entry in queues.items():
                info = msgspec.convert(entry, OrderInfo, strict=False)
                info.o = [info.o[0], *(info.o[0] + offset for offset in info.o[1:])] if info.o else []
                if info.o:
                    table[topic, group, int(queue_id)] = info
        self.table = table
        self._other_members = other_members(saved, "table")

    def snapshot(self) -> dict[str, Any]:
        table: dict[str, dict[int, dict[str, Any]]] = {}
        for (topic, group, queue_id), info in self.table.items():
            entry = msgspec.to_builtins(info, builtin_types=())
            entry["o"] = [info.o[0], *(offset - info.o[0] for offset in info.o[1:])]
            shown = {name: value for name, value in entry.items() if value is not None}
            table.setdefault(offset_key(topic, group), {})[queue_id] = shown
        return {**self._other_members, "table": table}

    def replay(self, kind: int, payload: bytes) -> bool:
        if kind != Kind.ORDER_INFO:
            return False
        topic, group, queue_id, info = _decode(payload)
        if info is None:
            self.table.pop((topic, group, queue_id), None)
        else:
            self.table[topic, group, queue_id] = info
        self.dirty = True
        return True


_decode: Final = msgspec.json.Decoder(tuple[str, str, int, OrderInfo | None]).decode
