"""How far each consumer group has come in each queue.

Three tables: committed offsets (durable), how far a group has pulled (for the tools' eyes), and pending
server-side resets (memory only). A reset hides its queue from commits until the group's next pull has
seen it, because a commit that was on its way would undo it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from penstock import limits
from penstock.broker.persistence import Kind, Note, other_members, read_version
from penstock.wire.bodies import DataVersion

_ENTRY = struct.Struct(">iq")
_COMMITS_PER_VERSION = 500
"""Protocol: the data version grows once per this many commits, not with each."""

OffsetTable = dict[str, dict[int, int]]
"""`topic@group` → queue id → offset."""


def offset_key(topic: str, group: str) -> str:
    return f"{topic}@{group}"


class Offsets:
    file_name = "consumerOffset.json"
    prompt = False

    def __init__(self, note: Note, keep: Note, *, now_ms: int) -> None:
        """`keep` repeats what a failed flush loses. Resets need that: what they end in other tables is
        repeated, too, and must not outlive them."""
        self.table: OffsetTable = {}
        self.pulled: OffsetTable = {}
        self.data_version = DataVersion(timestamp=now_ms)
        self.dirty = False
        self._resets: OffsetTable = {}
        self._unnoted: dict[tuple[str, int], int] = {}
        """Commits that came with pulls and are not in the journal yet, the last one of each queue."""
        self._note = note
        self._keep = keep
        self._count = 0
        self._pulled_count = 0
        self._commits = 0
        self._other_members: dict[str, Any] = {}

    # ---- asking ---------------------------------------------------------------------------------

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The pending reset, else the committed offset, else -1."""
        key = offset_key(topic, group)
        if self._resets:
            pending = self._resets.get(key)
            if pending is not None and queue_id in pending:
                return pending[queue_id]
        queues = self.table.get(key)
        return queues.get(queue_id, -1) if queues is not None else -1

    def begins(self, group: str, topic: str) -> Mapping[int, int]:
        """queue id → what `query` tells, for those queues that have it."""
        key = offset_key(topic, group)
        committed = self.table.get(key, {})
        pending = self._resets.get(key) if self._resets else None
        return {**committed, **pending} if pending else committed

    def query_pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Next offset of the group's last pull, -1 if it never pulled."""
        queues = self.pulled.get(offset_key(topic, group))
        return queues.get(queue_id, -1) if queues is not None else -1

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """queue id → committed offset."""
        return self.table.get(offset_key(topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        """Topics with committed offsets of the group (keys of more than two parts are not group offsets)."""
        return sorted(topic for topic, owner in self.pairs() if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """Groups with committed offsets on the topic."""
        return sorted(group for name, group in self.pairs() if name == topic)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Every (topic, group) with committed offsets."""
        for key in self.table:
            parts = key.split("@")
            if len(parts) == 2:
                yield parts[0], parts[1]

    # ---- changing -------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> int | None:
        """Last write wins, unless a reset is pending. Tells the journal position; None if the table is full.

        A commit that a pending reset swallows, or that changes nothing, has position 0: durable already.
        """
        key = offset_key(topic, group)
        if self._resets and queue_id in self._resets.get(key, ()):
            return 0
        return self._store(key, queue_id, offset, now_ms)

    def commit_soon(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> None:
        """A commit that came with a pull. Nobody waits for it to be durable, so it stays in memory until the
        next tick: a group that reads thousands of messages a second costs a journal entry for a queue then,
        not a write to disk for each pull."""
        key = offset_key(topic, group)
        if self._resets and queue_id in self._resets.get(key, ()):
            return
        if self.place(key, queue_id, offset, now_ms):
            self._unnoted[key, queue_id] = offset

    def tick(self) -> None:
        if self._unnoted:
            for (key, queue_id), offset in self._unnoted.items():
                self._note(Kind.OFFSET, _ENTRY.pack(queue_id, offset) + key.encode())
            self._unnoted.clear()

    def _store(self, key: str, queue_id: int, offset: int, now_ms: int) -> int | None:
        if not self.place(key, queue_id, offset, now_ms):
            return None
        return self._note(Kind.OFFSET, _ENTRY.pack(queue_id, offset) + key.encode())

    def place(self, key: str, queue_id: int, offset: int, now_ms: int) -> bool:
        """A commit that the caller journals, with what must not be separated from it; False if full."""
        queues = self.table.get(key)
        if queues is None:
            if self._count >= limits.OFFSETS_PER_BROKER:
                return False
            queues = self.table[key] = {}
        if queue_id not in queues:
            if self._count >= limits.OFFSETS_PER_BROKER:
                return False
            self._count += 1
        queues[queue_id] = offset
        if self._unnoted:
            self._unnoted.pop((key, queue_id), None)  # this one is the last now
        self._commits += 1
        if self._commits % _COMMITS_PER_VERSION == 0:
            self.data_version = self.data_version.next(now_ms)
        self.dirty = True
        return True

    def note_pulled(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        key = offset_key(topic, group)
        queues = self.pulled.get(key)
        if queues is None:
            queues = self.pulled[key] = {}
        if queue_id not in queues:
            if self._pulled_count >= limits.OFFSETS_PER_BROKER:
                return
            self._pulled_count += 1
        queues[queue_id] = next_offset

    def reset(self, group: str, topic: str, queue_id: int, offset: int, now_ms: int) -> int | None:
        """Server-side reset: commits now, and the group's next pull of the queue is sent there."""
        key = offset_key(topic, group)
        if not self.place(key, queue_id, offset, now_ms):
            return None
        self._resets.setdefault(key, {})[queue_id] = offset
        return self._keep(Kind.OFFSET, _ENTRY.pack(queue_id, offset) + key.encode())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset of a queue, once."""
        if not self._resets:
            return None
        key = offset_key(topic, group)
        pending = self._resets.get(key)
        if pending is None:
            return None
        offset = pending.pop(queue_id, None)
        if not pending:
            del self._resets[key]
        return offset

    def clone(self, source: str, target: str, topic: str, now_ms: int) -> int:
        """The target group continues where the source group is; tells the last journal position."""
        position = 0
        for queue_id, offset in self.table.get(offset_key(topic, source), {}).items():
            position = self._store(offset_key(topic, target), queue_id, offset, now_ms) or position
        return position

    def drop_topic(self, topic: str, now_ms: int) -> int:
        """Forgets all groups' progress on a deleted topic."""
        return self._drop([offset_key(topic, group) for group in self.groups_of(topic)], now_ms)

    def drop_group(self, group: str, now_ms: int) -> int:
        return self._drop([offset_key(topic, group) for topic in self.topics_of(group)], now_ms)

    def _drop(self, keys: list[str], now_ms: int) -> int:
        position = 0
        for key in keys:
            self._forget(key)
            self.data_version = self.data_version.next(now_ms)
            position = self._note(Kind.OFFSETS_DROPPED, key.encode())
        return position

    def _forget(self, key: str) -> None:
        self._count -= len(self.table.pop(key, ()))
        self._pulled_count -= len(self.pulled.pop(key, ()))
        self._resets.pop(key, None)
        self._unnoted = {place: offset for place, offset in self._unnoted.items() if place[0] != key}
        self.dirty = True

    # ---- the file -------------------------------------------------------------------------------

    def load(self, saved: Mapping[str, Any]) -> None:
        table, pulled = _read_table(saved.get("offsetTable")), _read_table(saved.get("pullOffsetTable"))
        self.data_version = read_version(saved, self.data_version)
        self.table, self.pulled = table, pulled
        self._count = sum(map(len, table.values()))
        self._pulled_count = sum(map(len, pulled.values()))
        # Apache derives its groupTopicMap from the rest, so a stale one must not stay.
        self._other_members = other_members(
            saved, "dataVersion", "offsetTable", "pullOffsetTable", "groupTopicMap"
        )

    def snapshot(self) -> dict[str, Any]:
        return {
            **self._other_members,
            "dataVersion": self.data_version,
            "offsetTable": self.table,
            "pullOffsetTable": self.pulled,
        }

    def replay(self, kind: int, payload: bytes) -> bool:
        if kind == Kind.OFFSET:
            queue_id, offset = _ENTRY.unpack_from(payload)
            self.restore(payload[_ENTRY.size :].decode(), queue_id, offset)
        elif kind == Kind.OFFSETS_DROPPED:
            self._forget(payload.decode())
        else:
            return False
        self.dirty = True
        return True

    def restore(self, key: str, queue_id: int, offset: int) -> None:
        """A commit that the journal tells of."""
        queues = self.table.setdefault(key, {})
        self._count += queue_id not in queues
        queues[queue_id] = offset
        self.dirty = True


def _read_table(saved: Any) -> OffsetTable:
    return {
        key: {int(queue_id): int(offset) for queue_id, offset in queues.items()}
        for key, queues in (saved or {}).items()
    }
