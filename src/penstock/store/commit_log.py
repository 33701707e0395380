"""The commit log: every record of every topic in the order of arrival, in files of one size.

Everything appended since the last flush is one group. A Flush carries it to the disk, possibly in a worker
thread, while the next group gathers; only then do its records become visible.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.message.record import MAGIC_BLANK
from penstock.store.disk import Disk, File
from penstock.store.journal import JournalWrite
from penstock.store.results import Arrival
from penstock.store.segments import segment_name

DIRECTORY: Final = "commitlog"
V6_EXTRA_BYTES: Final = 12
"""By which an IPv6 host is longer."""
BLANK: Final = struct.Struct(">iI")
OPEN_SEGMENTS: Final = 64
"""Segments held open for reading: 64 GiB of backlog at the default size without opening any again."""


def segment_path(start: int) -> str:
    return f"{DIRECTORY}/{segment_name(start)}"


class CommitLog:
    """The files, and where valid data begins and ends in them."""

    def __init__(self, disk: Disk, file_size: int) -> None:
        self.disk = disk
        self.file_size = file_size
        self.min_offset = 0
        self.durable = 0
        """Behind the last record that may be read."""
        self.starts: list[int] = []
        """Of the segments that exist."""
        self._files: dict[int, File] = {}
        """Open for reading, by start."""
        self.last_file: File | None = None
        """The segment being written, once it exists."""

    def load(self, starts: list[int]) -> None:
        self.starts = starts
        self.min_offset = starts[0] if starts else 0

    def read(self, position: int, size: int) -> bytes | memoryview | None:
        """Bytes of the readable log; None if any of them is gone or not there yet."""
        if position < self.min_offset or position + size > self.durable or size < 0:
            return None
        return self.read_raw(position, size)

    def read_raw(self, position: int, size: int) -> bytes | memoryview:
        """Bytes of a segment that exists, whatever they are."""
        at = position % self.file_size
        file = self._files.get(position - at)
        if file is None:
            file = self._open_for_reading(position - at)
        return file.read(at, size)

    def _open_for_reading(self, start: int) -> File:
        if len(self._files) >= OPEN_SEGMENTS:
            self._files.pop(next(iter(self._files))).close()
        file = self._files[start] = self.disk.open(segment_path(start))
        return file

    def _close_for_reading(self, start: int) -> None:
        file = self._files.pop(start, None)
        if file is not None:
            file.close()

    def release_memory(self) -> None:
        for file in self._files.values():
            file.release_memory()

    def modified_ms(self, start: int) -> int:
        return (self._files.get(start) or self._open_for_reading(start)).modified_ms

    def next_segment(self, position: int) -> int:
        return position - position % self.file_size + self.file_size

    def open_last(self) -> None:
        """Get ready to write behind `durable`."""
        if self.last_file is not None:
            self.last_file.close()
            self.last_file = None
        base = self.durable - self.durable % self.file_size
        if self.starts and self.starts[-1] == base:
            self.last_file = self.disk.open(segment_path(base))

    def added(self, base: int, file: File) -> None:
        """A flush created this segment."""
        if self.last_file is not None:
            self.last_file.close()
        if not self.starts:
            self.min_offset = base
        self.starts.append(base)
        self.last_file = file

    def cut(self, position: int) -> None:
        """Make everything behind a position zeros, and segments that begin behind it go."""
        for start in reversed(self.starts):
            if start < position:
                break
            self.remove(start)
        if self.starts and position - self.starts[-1] < self.file_size:
            self._close_for_reading(self.starts[-1])
            file = self.disk.open(segment_path(self.starts[-1]))
            try:
                file.clear(position - self.starts[-1])
                file.sync()
            finally:
                file.close()

    def remove(self, start: int) -> None:
        """Forget a segment and delete its file."""
        self.forget(start)
        self.disk.remove(segment_path(start))
        self.disk.sync_dir(DIRECTORY)

    def forget(self, start: int) -> None:
        self._close_for_reading(start)
        if self.last_file is not None and self.starts[-1] == start:
            self.last_file.close()
            self.last_file = None
        self.starts.remove(start)
        if self.starts:
            self.min_offset = self.starts[0]

    def close(self) -> None:
        for start in list(self._files):
            self._close_for_reading(start)
        if self.last_file is not None:
            self.last_file.close()
            self.last_file = None


class Flush:
    """One group on its way to the disk. `run`, `write` and `sync` touch nothing but files."""

    def __init__(
        self,
        log: CommitLog,
        pieces: list[tuple[int, bytearray]],
        records: list[Arrival],
        log_end: int,
        end: int,
        journal: JournalWrite | None,
    ) -> None:
        self._disk = log.disk
        self._file_size = log.file_size
        self._file = log.last_file
        self._base = log.starts[-1] if log.starts else -1
        self._pieces = pieces
        self.records = records
        self.log_end = log_end
        self.end = end
        self.journal = journal
        self.created: list[tuple[int, File]] = []

    def run(self) -> None:
        """Write everything and wait until it is on the medium."""
        self.write()
        self.sync()

    def sync(self) -> None:
        """Wait until what was written is on the medium."""
        if self._file is not None and self._pieces:
            self._file.sync()
        if self.journal is not None:
            self.journal.sync()

    def write(self) -> None:
        """Write everything; the operating system puts it on the medium when it likes."""
        for position, data in self._pieces:
            base = position - position % self._file_size
            if base != self._base or self._file is None:
                self._begin_segment(base)
            assert self._file is not None
            self._file.write(position - base, data)
        if self.journal is not None:
            self.journal.write()

    def _begin_segment(self, base: int) -> None:
        # A segment is complete on the medium before the next begins, so that after a crash damage anywhere
        # but at the very end is known to be damage.
        if self._file is not None:
            self._file.sync()
        self._disk.make_dirs(DIRECTORY)
        file = self._disk.open(segment_path(base), size=self._file_size, create=True)
        self.created.append((base, file))
        self._file, self._base = file, base
        file.sync()
        self._disk.sync_dir(DIRECTORY)


def blank_record(remaining: int) -> bytes:
    """Closes a segment whose rest is too short for the next record."""
    return BLANK.pack(remaining, MAGIC_BLANK)
