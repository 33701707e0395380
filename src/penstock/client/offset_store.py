"""Where a group's progress is kept: at the broker for clustering, in a local file for broadcasting.

Both keep a table in memory that consumption updates, and write it out from time to time. A frozen
entry takes no updates until it is removed: it guards a repaired offset against listeners that finish late.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol

from penstock.errors import PenstockError, StoreDamaged
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import ResetOffsetBody  # the file has the same shape
from penstock.wire.dialect import DialectError

log = logging.getLogger("penstock.client")


class OffsetBackend(Protocol):
    """What the remote store needs of the client instance."""

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None: ...

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None: ...


class OffsetTable:
    """Offsets in memory, the part that both stores share."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        if queue in self._frozen:
            return
        if increase_only and offset <= self._offsets.get(queue, -1):
            return
        self._offsets[queue] = offset

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset
        self._frozen.add(queue)

    def memory(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def remove(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def table(self, topic: str = "") -> dict[MessageQueue, int]:
        """A copy of the offsets of a topic; of all topics if it is empty."""
        return {queue: offset for queue, offset in self._offsets.items() if not topic or queue.topic == topic}


class OffsetStore(Protocol):
    def load(self) -> None: ...

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None: ...

    def freeze(self, queue: MessageQueue, offset: int) -> None: ...

    def memory(self, queue: MessageQueue) -> int | None: ...

    def remove(self, queue: MessageQueue) -> None: ...

    def table(self, topic: str = "") -> dict[MessageQueue, int]: ...

    async def stored(self, queue: MessageQueue) -> int | None:
        """The stored offset, noted in memory; None if there is none. Raises where it cannot be known."""

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Writes the offsets of these queues; errors are logged, the next round tries again."""

    async def persist_only(self, queues: Collection[MessageQueue]) -> None:
        """Writes the offsets of the queues owned now and forgets all others."""


class RemoteOffsetStore(OffsetTable):
    """Clustering: the broker keeps the offsets. Loading does nothing, they are read queue by queue."""

    def __init__(self, group: str, backend: OffsetBackend) -> None:
        super().__init__()
        self._group = group
        self._backend = backend

    def load(self) -> None:
        return

    async def stored(self, queue: MessageQueue) -> int | None:
        offset = await self._backend.query_offset(self._group, queue)
        if offset is not None:
            self.update(queue, offset, increase_only=False)
        return offset

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            offset = self._offsets.get(queue)
            if offset is None:
                continue
            try:
                await self._backend.update_offset(self._group, queue, offset)
            except PenstockError as error:
                log.warning(
                    "offset %d of %s not persisted, the next round tries again: %s", offset, queue, error
                )

    async def persist_only(self, queues: Collection[MessageQueue]) -> None:
        if not queues:
            return
        for queue in [queue for queue in self._offsets if queue not in queues]:
            self.remove(queue)
        await self.persist([queue for queue in self._offsets if queue in queues])


class LocalOffsetStore(OffsetTable):
    """Broadcasting: every consumer keeps its own offsets, in a file that Apache's client could read."""

    def __init__(self, base: str, client_id: str, group: str) -> None:
        super().__init__()
        root = Path(base) if base else Path.home() / ".rocketmq_offsets"
        self.path = root / client_id / group / "offsets.json"
        self._backup = self.path.with_name("offsets.json.bak")

    def load(self) -> None:
        self._offsets.update(self._read())

    async def stored(self, queue: MessageQueue) -> int | None:
        offset = self._read().get(queue)
        if offset is not None:
            self.update(queue, offset, increase_only=False)
        return offset

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        changed = {queue: self._offsets[queue] for queue in queues if queue in self._offsets}
        if changed:
            self._write(changed)

    async def persist_only(self, queues: Collection[MessageQueue]) -> None:
        await self.persist(queues)

    def _read(self) -> dict[MessageQueue, int]:
        for path in (self.path, self._backup):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            if not text.strip():
                continue
            try:
                return ResetOffsetBody.decode(text).offset_table
            except DialectError as error:
                if path == self._backup:
                    raise StoreDamaged(
                        f"{path} and {self.path.name} cannot be read ({error}); "
                        "repair or delete them, the group then starts as a new one"
                    ) from None
                log.warning("%s cannot be read (%s), using %s", path, error, self._backup.name)
        return {}

    def _write(self, changed: dict[MessageQueue, int]) -> None:
        """Merges over what the file has: another consumer object may keep other topics in it."""
        try:
            merged = self._read() | changed
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                _replace(self._backup, self.path.read_bytes())
            _replace(self.path, ResetOffsetBody(merged).encode())
        except (OSError, StoreDamaged) as error:
            log.warning("offsets not written to %s, the next round tries again: %s", self.path, error)


def _replace(path: Path, data: bytes) -> None:
    """A reader sees the old or the new content, never half of one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
