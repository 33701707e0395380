"""The key index: which records a key of a topic may lead to, in files that are hash tables on disk.

New entries gather in memory and are committed to their file in three steps, each on the medium before the
next: entries, slots, header. The header's count is what makes entries exist, so after a crash `roll_back`
can undo a commit that did not finish, and the index misses nothing that the log position in the checkpoint
covers.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from typing import Final, TypeAlias

from penstock.store.disk import Buffer, Disk, File

DIRECTORY: Final = "index"
HEADER: Final = struct.Struct(">qqqqii")
"""First and last store time, first and last position, slots in use, next free entry number."""
ENTRY: Final = struct.Struct(">iqii")
"""Key hash, position of the record, seconds since the first store time, previous entry of the slot."""
SLOT: Final = struct.Struct(">i")
_pack_entry: Final = ENTRY.pack
_PAGE_SLOTS: Final = 1024
_PAGE_BYTES: Final = _PAGE_SLOTS * SLOT.size
_PAGES_PER_WRITE: Final = 64
_ZERO_ENTRY: Final = bytes(ENTRY.size)
_SECOND_MS: Final = 1000
_MAX_DIFF: Final = 0x7FFF_FFFF

Page: TypeAlias = "array[int]"
"""A stretch of slots in the machine's own byte order, because indexing is quicker than unpacking."""


def _read_page(data: Buffer) -> Page:
    page = array("i", bytes(data))
    if sys.byteorder == "little":
        page.byteswap()
    return page


def _page_bytes(page: Page) -> bytes:
    if sys.byteorder == "little":
        page = page[:]
        page.byteswap()
    return page.tobytes()


def index_file_size(slots: int, capacity: int) -> int:
    return HEADER.size + slots * SLOT.size + capacity * ENTRY.size


class IndexCommit:
    """New content of a file on its way to the disk; may run in a worker thread."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        size: int,
        entries: tuple[int, bytes],
        pages: dict[int, Page],
        header: bytes,
    ) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self._entries = entries
        self._pages = pages
        self._header = header
        self.count: int = HEADER.unpack(header)[-1]

    def run(self) -> None:
        created = not self._disk.exists(self._path)
        if created:
            self._disk.make_dirs(DIRECTORY)
        file = self._disk.open(self._path, size=self._size, create=True)
        try:
            if created:
                file.sync()
                self._disk.sync_dir(DIRECTORY)
            file.write(*self._entries)
            file.sync()
            for number, pages in self._runs():
                file.write(HEADER.size + number * _PAGE_BYTES, b"".join(map(_page_bytes, pages)))
            file.sync()
            file.write(0, self._header)
            file.sync()
        finally:
            file.close()

    def _runs(self) -> Iterator[tuple[int, list[Page]]]:
        """Pages that lie side by side, in portions: a commit changes nearly all of them, and to write each
        by itself costs many times more.
        """
        run: list[Page] = []
        first = 0
        for number in sorted(self._pages):
            if run and (number != first + len(run) or len(run) == _PAGES_PER_WRITE):
                yield first, run
                run = []
            if not run:
                first = number
            run.append(self._pages[number])
        if run:
            yield first, run


class IndexFile:
    """One file: committed content on disk, newer content in memory."""

    def __init__(self, disk: Disk, path: str, slots: int, capacity: int) -> None:
        self._disk = disk
        self.path = path
        self._slots = slots
        self._capacity = capacity
        self._entries_at = HEADER.size + slots * SLOT.size
        self._file: File | None = None
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = 0
        self.slot_count = 0
        self.count = 1
        """Next free entry number; number 0 means "none"."""
        self.committed = 1
        self._pages: dict[int, Page] = {}
        """Stretches of slots that have changed since the last commit began."""
        self._committing: dict[int, Page] = {}
        """Those of the commit that is under way; not to be changed any more."""
        self._committed_pages: dict[int, Page] = {}
        """As on disk, while the file grows: to read them from a file that is being written can take long."""
        self._new_entries = bytearray()
        """Entries from number `committed` on."""

    def load(self) -> None:
        """Take over what a file holds."""
        self._file = self._disk.open(self.path)
        fields = HEADER.unpack(self._file.read(0, HEADER.size))
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slot_count, count = fields
        self.count = self.committed = max(1, min(count, self._capacity))

    @property
    def full(self) -> bool:
        return self.count >= self._capacity

    @property
    def uncommitted(self) -> int:
        return self.count - self.committed

    @property
    def room(self) -> int:
        """Entries that still fit."""
        return self._capacity - self.count

    def insert(self, hashes: list[int], positions: list[int], times_ms: list[int]) -> None:
        """Add entries (key hash, position, store time) in the order of the log, as many as there is room for.

        One for every key of every message: the loop is kept tight.
        """
        if not hashes:
            return
        if self.count <= 1:
            self.begin_offset, self.begin_ms = positions[0], times_ms[0]
        slots, pages, count, used = self._slots, self._pages, self.count, self.slot_count
        before: list[int] = []
        number, page = -1, array("i")
        for key_hash in hashes:
            slot = key_hash % slots
            if number != slot // _PAGE_SLOTS:  # keys that differ in the last digits are side by side
                number = slot // _PAGE_SLOTS
                try:
                    page = pages[number]
                except KeyError:
                    page = self._page_to_change(number)
            slot %= _PAGE_SLOTS
            previous = page[slot]
            if not 0 < previous < count:
                previous = 0
                used += 1
            page[slot] = count
            before.append(previous)
            count += 1
        self._new_entries += b"".join(map(_pack_entry, hashes, positions, self._seconds(times_ms), before))
        self.count, self.slot_count = count, used
        self.end_offset, self.end_ms = positions[-1], times_ms[-1]

    def _page_to_change(self, number: int) -> Page:
        page = self._committed_pages.pop(number, None) or self._stored_page(number)[:]
        self._pages[number] = page
        return page

    def _seconds(self, times_ms: list[int]) -> list[int]:
        """Since the first store time, as entries have them."""
        first, last = self._second(times_ms[0]), self._second(times_ms[-1])
        if first == last:  # store times never go back
            return [first] * len(times_ms)
        return list(map(self._second, times_ms))

    def _second(self, time_ms: int) -> int:
        if self.begin_ms <= 0:
            return 0
        return min(max(0, (time_ms - self.begin_ms) // _SECOND_MS), _MAX_DIFF)

    def find(self, key_hash: int, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Positions of the newest records under a hash within a span of store times."""
        found: list[int] = []
        number = self._read_slot(key_hash % self._slots)
        while 0 < number < self.count and len(found) < limit:
            entry_hash, offset, seconds, previous = ENTRY.unpack(self._read_entry(number))
            if seconds < 0:
                break
            stored_ms = self.begin_ms + seconds * _SECOND_MS
            # Seconds are rounded down, so the record may be up to a second newer than its entry says.
            if stored_ms + _SECOND_MS <= begin_ms:
                break
            if entry_hash == key_hash and stored_ms <= end_ms:
                found.append(offset)
            if previous == number:
                break
            number = previous
        return found

    def _read_slot(self, slot: int) -> int:
        number = slot // _PAGE_SLOTS
        page = self._pages.get(number) or self._stored_page(number)
        return page[slot % _PAGE_SLOTS]

    def _stored_page(self, number: int) -> Page:
        page = self._committing.get(number) or self._committed_pages.get(number)
        if page is not None:
            return page
        size = min(_PAGE_BYTES, self._slots * SLOT.size - number * _PAGE_BYTES)
        file = self._open()
        stored = file.read(HEADER.size + number * _PAGE_BYTES, size) if file is not None else bytes(size)
        return _read_page(stored)

    def _read_entry(self, number: int) -> Buffer:
        if number >= self.committed:
            at = (number - self.committed) * ENTRY.size
            return self._new_entries[at : at + ENTRY.size]
        file = self._open()
        assert file is not None
        return file.read(self._entry_at(number), ENTRY.size)

    def _entry_at(self, number: int) -> int:
        return self._entries_at + number * ENTRY.size

    def _open(self) -> File | None:
        if self._file is None and self.committed > 1:
            self._file = self._disk.open(self.path)
        return self._file

    # ---- to disk --------------------------------------------------------------------------------

    def commit(self) -> IndexCommit:
        self._committing |= self._pages  # on top of those of a commit that failed
        self._pages = {}
        fields = (self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slot_count, self.count)
        return IndexCommit(
            self._disk,
            self.path,
            index_file_size(self._slots, self._capacity),
            (self._entry_at(self.committed), bytes(self._new_entries)),
            dict(self._committing),
            HEADER.pack(*fields),
        )

    def was_committed(self, commit: IndexCommit) -> None:
        del self._new_entries[: (commit.count - self.committed) * ENTRY.size]
        self.committed = commit.count
        if self.full:
            self._committed_pages = {}
        else:
            self._committed_pages |= self._committing
            for number in self._pages:
                self._committed_pages.pop(number, None)
        self._committing = {}

    def roll_back(self) -> None:
        """Undo what a commit that did not finish left behind: slots that lead to entries that do not exist.

        Entries were on the medium before any slot led to them, so each still knows its slot's value before.
        """
        file = self._open()
        if file is None:
            return
        leftover = []
        for number in range(self.committed, self._capacity):
            entry = bytes(file.read(self._entry_at(number), ENTRY.size))
            if entry == _ZERO_ENTRY:
                break
            leftover.append((number, entry))
        for number, entry in reversed(leftover):
            key_hash, _, _, previous = ENTRY.unpack(entry)
            slot = key_hash % self._slots
            if self._read_slot(slot) == number:
                file.write(HEADER.size + slot * SLOT.size, SLOT.pack(previous))
        file.sync()

    def release_memory(self) -> None:
        if self._file is not None:
            self._file.release_memory()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
