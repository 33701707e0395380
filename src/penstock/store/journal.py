"""Durable notes about what the commit log does not hold: offsets, leases, table changes.

An entry is durable with the group of messages it was noted in. The owner saves a snapshot of its state from
time to time and restarts the journal, which begins a new generation (a new file). A generation carries the
id of the snapshot it continues, so that entries are replayed only onto the state they belong to: another
broker may have rewritten the owner's files meanwhile.

The generation before the current one is kept, so an owner may restart either when it takes its snapshot or
after it has saved it. In both cases entries noted in between are replayed once too often rather than lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

from penstock.store.disk import Disk, File

DIRECTORY: Final = "penstock"
_PREFIX: Final = "journal-"
_MAGIC: Final = b"PNSTKJ01"
_HEAD: Final = struct.Struct(">8sHI")
"""Magic, length of the snapshot id, CRC of the id; the id follows."""
_ENTRY: Final = struct.Struct(">IIB")
"""CRC of the rest, length of the payload, kind; the payload follows."""
_REST: Final = struct.Struct(">IB")
_CRC_SIZE: Final = 4

Entry = tuple[int, bytes]


def _path(number: int) -> str:
    return f"{DIRECTORY}/{_PREFIX}{number:010d}"


class JournalWrite:
    """The journal's part of a flush; with a snapshot id it begins a generation."""

    def __init__(
        self,
        disk: Disk,
        file: File | None,
        number: int,
        offset: int,
        data: bytes,
        snapshot_id: str | None = None,
        obsolete: Sequence[int] = (),
    ) -> None:
        self._disk = disk
        self._offset = offset
        self._data = data
        self._obsolete = obsolete
        self.number = number
        self.file = file
        self.snapshot_id = snapshot_id
        self.file_end = offset + len(data)

    @property
    def begins(self) -> bool:
        """Whether it makes and removes files, and so waits for the disk already when it writes."""
        return self.snapshot_id is not None

    def write(self) -> None:
        if self.file is None:
            self._disk.make_dirs(DIRECTORY)
            self.file = self._disk.open(_path(self.number), create=True)
            self.file.truncate(0)
            self._disk.sync_dir(DIRECTORY)
        self.file.write(self._offset, self._data)
        for number in self._obsolete:
            self._disk.remove_tree(_path(number))

    def sync(self) -> None:
        assert self.file is not None
        self.file.sync()

    def discard(self) -> None:
        """Undo the beginning of a generation."""
        if self.file is not None:
            self.file.close()
            self._disk.remove_tree(_path(self.number))
            self._disk.sync_dir(DIRECTORY)


class Journal:
    def __init__(self, disk: Disk, position: Callable[[], int]) -> None:
        self._disk = disk
        self._position = position
        self.end = 0
        """Grows with everything noted since the store was opened."""
        self._pending = bytearray()
        self._growing: list[Callable[[], None]] = []
        self._restart_id: str | None = None
        self._generations = _load(disk)
        self._numbers = list(self._generations)
        self.file: File | None = None
        self._file_end = 0

    # ---- for the owner --------------------------------------------------------------------------

    @property
    def replayed(self) -> list[Entry]:
        """Every entry found at the start, oldest first."""
        return [entry for found in self._generations.values() for entry in found.entries]

    def replayed_for(self, snapshot_id: str) -> list[Entry]:
        """The entries that continue this snapshot. Where no generation does, none, and one begins that will:
        what is noted from now on belongs to this snapshot."""
        entries: list[Entry] | None = None
        for found in self._generations.values():
            if entries is None and found.snapshot_id == snapshot_id:
                entries = []
            if entries is not None:
                entries += found.entries
        if entries is None:
            self.restart(snapshot_id)
            return []
        return entries

    def append(self, kind: int, payload: bytes) -> int:
        """Note an entry; it is durable when the store's `durable` has reached the position returned."""
        rest = _REST.pack(len(payload), kind) + payload
        self._pending += crc32(rest).to_bytes(_CRC_SIZE, "big")
        self._pending += rest
        self.end += _CRC_SIZE + len(rest)
        return self._position()

    def grow(self, finish: Callable[[], None]) -> int:
        """Promise an entry that more may be added to: `finish` appends it when the next flush is taken.

        All that is added until then is durable at the position returned.
        """
        self._growing.append(finish)
        self.end += 1
        return self._position()

    def restart(self, snapshot_id: str) -> None:
        """Begin a new generation with the next flush; entries not yet on their way to the disk move there."""
        self._restart_id = snapshot_id

    # ---- for the store --------------------------------------------------------------------------

    def open(self) -> None:
        """Continue the last generation behind its last whole entry, and drop files that are none."""
        for name in self._disk.list_dir(DIRECTORY):
            number = name.removeprefix(_PREFIX)
            if name.startswith(_PREFIX) and (not number.isdecimal() or int(number) not in self._generations):
                self._disk.remove(f"{DIRECTORY}/{name}")
        if self._numbers:
            self._file_end = self._generations[self._numbers[-1]].end
            self.file = self._disk.open(_path(self._numbers[-1]))
            self.file.truncate(self._file_end)
            self.file.sync()

    def take(self) -> JournalWrite | None:
        growing, self._growing = self._growing, []
        for finish in growing:
            finish()
        if not self._pending and self._restart_id is None:
            return None
        data, self._pending = bytes(self._pending), bytearray()
        if self.file is not None and self._restart_id is None:
            return JournalWrite(self._disk, self.file, self._numbers[-1], self._file_end, data)
        snapshot_id, self._restart_id = self._restart_id or "", None
        name = snapshot_id.encode()
        data = _HEAD.pack(_MAGIC, len(name), crc32(name)) + name + data
        number = self._numbers[-1] + 1 if self._numbers else 1
        return JournalWrite(self._disk, None, number, 0, data, snapshot_id, self._numbers[:-1])

    def written(self, write: JournalWrite) -> None:
        if write.snapshot_id is not None:
            if self.file is not None:
                self.file.close()
            self.file = write.file
            self._numbers = [*self._numbers[-1:], write.number]
        self._file_end = write.file_end

    def forget_since(self, write: JournalWrite | None, end: int) -> None:
        """A group could not be written: drop it and everything noted since."""
        self._pending.clear()
        self.end = end + len(self._growing)  # these entries are yet to come
        if write is not None and write.snapshot_id is not None and self._restart_id is None:
            self._restart_id = write.snapshot_id

    def cut_back(self, write: JournalWrite | None) -> None:
        """Wipe what a write that failed left on disk."""
        if write is None:
            return
        if write.snapshot_id is not None:
            write.discard()
        elif self.file is not None:
            self.file.truncate(self._file_end)
            self.file.sync()

    def paths(self) -> list[str]:
        return [_path(number) for number in self._numbers[-1:]]

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


class _Generation:
    def __init__(self, snapshot_id: str, entries: list[Entry], end: int) -> None:
        self.snapshot_id = snapshot_id
        self.entries = entries
        self.end = end


def _load(disk: Disk) -> dict[int, _Generation]:
    """All generations by number, oldest first. One whose head is torn was never begun."""
    found = {}
    for name in disk.list_dir(DIRECTORY):
        number = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) and number.isdecimal():
            generation = _parse(disk.read_bytes(f"{DIRECTORY}/{name}"))
            if generation is not None:
                found[int(number)] = generation
    return found


def _parse(data: bytes) -> _Generation | None:
    if len(data) < _HEAD.size:
        return None
    magic, id_size, id_crc = _HEAD.unpack_from(data)
    position = _HEAD.size + id_size
    snapshot_id = data[_HEAD.size : position]
    if magic != _MAGIC or len(snapshot_id) < id_size or crc32(snapshot_id) != id_crc:
        return None
    entries: list[Entry] = []
    while position + _ENTRY.size <= len(data):
        crc, size, kind = _ENTRY.unpack_from(data, position)
        start = position + _ENTRY.size
        if start + size > len(data) or crc32(data[position + _CRC_SIZE : start + size]) != crc:
            break
        entries.append((kind, data[start : start + size]))
        position = start + size
    return _Generation(snapshot_id.decode(errors="replace"), entries, position)
