"""A consume queue: for each message of one queue of a topic 20 bytes that say where its record lies.

Entries are built from durable records and gather in memory; they go to the queue's files in the background,
because recovery can build them again from the log. A short stretch stays in memory after it was written, so
that consumers who keep up never touch a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from penstock.limits import MAX_TOPIC_CHARS
from penstock.message.record import MAGIC_V1, MAGIC_V2, RECORD_HEAD
from penstock.store.disk import Buffer, Disk
from penstock.store.files import OpenFiles
from penstock.store.segments import segment_name

DIRECTORY: Final = "consumequeue"
ENTRY: Final = struct.Struct(">qiq")
"""Position of the record, its size, tag code."""
ENTRY_SIZE: Final = ENTRY.size
FILL: Final = ENTRY.pack(0, 0x7FFF_FFFF, 0)
"""Stands where a queue that begins at a later offset has no message."""
FILL_SIZE: Final = FILL[8:12]

KEEP_BYTES: Final = 128 * ENTRY_SIZE
"""Newest entries kept in memory although they are on file: several full pulls."""

_LENGTH_BYTES: Final = 2
"""Of the properties' length field."""


def is_queue_name(topic: str, queue_id: int) -> bool:
    """Whether they can name a directory."""
    return bool(topic) and topic not in (".", "..") and not {"/", "\0"} & {*topic} and queue_id >= 0


class ConsumeQueue:
    __slots__ = (
        "_files",
        "_read_number",
        "_read_path",
        "directory",
        "first_file",
        "magic",
        "max_offset",
        "max_physical",
        "min_offset",
        "next_offset",
        "overhead",
        "per_file",
        "queue_id",
        "synced",
        "tail",
        "tail_start",
        "topic",
        "topic_field",
        "written",
    )

    def __init__(self, topic: str, queue_id: int, per_file: int, files: OpenFiles) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.per_file = per_file
        self._files = files
        self._read_number = -1
        self._read_path = ""
        """Of the file read last: a consumer reads many times from one."""
        self.directory = f"{DIRECTORY}/{topic}/{queue_id}"
        name = topic.encode()
        self.magic = MAGIC_V1 if len(name) <= MAX_TOPIC_CHARS else MAGIC_V2
        self.topic_field = len(name).to_bytes(1 if self.magic == MAGIC_V1 else 2, "big") + name
        self.overhead = RECORD_HEAD.size + len(self.topic_field) + _LENGTH_BYTES
        """A record's size without body and properties, with IPv4 hosts."""
        self.next_offset = 0
        """Of the next record appended."""
        self.max_offset = 0
        """Behind the last visible entry."""
        self.min_offset = 0
        self.max_physical = 0
        """Behind the record of the last entry."""
        self.tail = bytearray()
        self.tail_start = 0
        self.written = 0
        """Entries below this are in the files."""
        self.synced = 0
        """Entries below this are on the medium."""
        self.first_file = 0
        """Number of the oldest file that was not deleted yet."""

    def begin_at(self, offset: int) -> None:
        """An empty queue whose first message has this offset."""
        self.next_offset = self.max_offset = self.min_offset = offset
        self.tail_start = self.written = self.synced = offset
        self.first_file = offset // self.per_file
        self.max_physical = 0
        self.tail.clear()

    def append(self, offset: int, physical_offset: int, size: int, tag_code: int) -> None:
        self.tail += ENTRY.pack(physical_offset, size, tag_code)
        self.max_offset = offset + 1
        self.max_physical = physical_offset + size

    # ---- reading --------------------------------------------------------------------------------

    def read(self, offset: int, count: int) -> Buffer | None:
        """Entries that exist, from one file of the queue; None if that file is gone."""
        tail_start = self.tail_start
        if offset >= tail_start:
            start = (offset - tail_start) * ENTRY_SIZE
            return self.tail[start : start + count * ENTRY_SIZE]
        number = offset // self.per_file
        if number != self._read_number:
            self._read_number, self._read_path = number, self.path(number)
        file = self._files.get(self._read_path)
        if file is None:
            return None
        on_file = min(count, tail_start - offset)
        data = file.read(offset % self.per_file * ENTRY_SIZE, on_file * ENTRY_SIZE)
        if on_file < count:
            return bytes(data) + self.tail[: (count - on_file) * ENTRY_SIZE]
        return data

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Position, size and tag code; None if there is no such entry."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        data = self.read(offset, 1)
        return ENTRY.unpack(data) if data is not None else None

    def entries(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Entries from an offset on, across files, until one is missing."""
        end = min(offset + count, self.max_offset)
        while offset < end:
            step = min(end - offset, self.per_file - offset % self.per_file)
            data = self.read(offset, step)
            if data is None:
                return
            yield from ENTRY.iter_unpack(data)
            offset += step

    # ---- files ----------------------------------------------------------------------------------

    def path(self, file_index: int) -> str:
        return f"{self.directory}/{segment_name(file_index * self.per_file * ENTRY_SIZE)}"

    @property
    def unwritten_bytes(self) -> int:
        return (self.max_offset - self.written) * ENTRY_SIZE

    def was_written(self, up_to: int) -> None:
        self.written = max(self.written, up_to)
        spare = min((self.written - self.tail_start) * ENTRY_SIZE, len(self.tail) - KEEP_BYTES)
        if spare > 0:
            del self.tail[:spare]
            self.tail_start += spare // ENTRY_SIZE

    def unsynced_paths(self) -> list[str]:
        """Files with entries that were written but may not be on the medium."""
        if self.written <= self.synced:
            return []
        numbers = range(self.synced // self.per_file, (self.written - 1) // self.per_file + 1)
        return [self.path(number) for number in numbers]

    def drop_first_file(self) -> str:
        """Forget the oldest file; tells its path, to be deleted."""
        path = self.path(self.first_file)
        self._files.forget(path)
        self.first_file += 1
        self.synced = max(self.synced, self.first_file * self.per_file)
        return path


class QueueWrite:
    """What a queue has in memory on its way to the files, and no further than the operating system."""

    def __init__(self, disk: Disk, queue: ConsumeQueue) -> None:
        self._disk = disk
        self._directory = queue.directory
        self._per_file = queue.per_file
        self._first = queue.written
        self._data = bytes(queue.tail[(queue.written - queue.tail_start) * ENTRY_SIZE :])
        self.end = queue.max_offset

    def run(self) -> None:
        offset = self._first
        while offset < self.end:
            file_start = offset - offset % self._per_file
            file_end = min(self.end, file_start + self._per_file)
            self._write_file(file_start, offset, file_end)
            offset = file_end

    def _write_file(self, file_start: int, offset: int, end: int) -> None:
        path = f"{self._directory}/{segment_name(file_start * ENTRY_SIZE)}"
        data = self._data[(offset - self._first) * ENTRY_SIZE : (end - self._first) * ENTRY_SIZE]
        if not self._disk.exists(path):
            self._disk.make_dirs(self._directory, sync=False)
            data = FILL * (offset - file_start) + data
            offset = file_start
        file = self._disk.open(path, size=self._per_file * ENTRY_SIZE, create=True)
        try:
            file.write((offset - file_start) * ENTRY_SIZE, data)
        finally:
            file.close()
