"""A disk in memory that forgets like a real one: what was not synced may be gone, whole or in part, after a
crash.

Everything is decided by the seed, so a failure can be repeated. Sectors of unsynced writes are kept or lost
one by one; names that were made, renamed or removed without a sync of their directory are kept or lost in
order.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Collection
from typing import Final

from penstock.errors import StoreLocked
from penstock.store.disk import Buffer

SECTOR: Final = 512


class Crash(BaseException):
    """The machine stopped in the middle of a disk operation. Nothing in the program may catch it."""


class _Inode:
    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.unsynced: list[tuple[int, bytes | None]] = []
        """Writes as (offset, data), changes of size as (size, None)."""
        self.modified_ms = 0

    def write(self, offset: int, data: bytes) -> None:
        _put(self.data, offset, data)
        self.unsynced.append((offset, data))

    def truncate(self, size: int) -> None:
        _resize(self.data, size)
        self.unsynced.append((size, None))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.unsynced.clear()

    def crash(self, rng: random.Random) -> None:
        content = bytearray(self.durable)
        for offset, data in self.unsynced:
            if data is None:
                # Sizes reach the medium in order, and data behind the size of a file is none.
                if rng.random() < 0.3:
                    break
                _resize(content, offset)
            else:
                _tear(content, offset, data, rng)
        self.data = content
        self.sync()


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _tear(content: bytearray, offset: int, data: bytes, rng: random.Random) -> None:
    kept = rng.choice((0.0, 0.5, 0.9, 1.0))
    start = offset
    while start < offset + len(data):
        end = min(start - start % SECTOR + SECTOR, offset + len(data))
        if rng.random() < kept:
            _put(content, start, data[start - offset : end - offset])
        start = end


class FaultFile:
    def __init__(self, disk: FaultDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._closed = False

    def _use(self) -> _Inode:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._inode

    @property
    def size(self) -> int:
        return len(self._use().data)

    @property
    def modified_ms(self) -> int:
        return self._use().modified_ms

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._use().data[offset : offset + size])

    def write(self, offset: int, data: Buffer) -> None:
        inode = self._use()
        written = bytes(data)
        try:
            self._disk.step(writes=True)
        except OSError:
            inode.write(offset, written[: len(written) // 2])
            raise
        inode.write(offset, written)
        inode.modified_ms = self._disk.now_ms

    def sync(self) -> None:
        inode = self._use()
        self._disk.step(writes=True)
        inode.sync()

    def clear(self, offset: int) -> None:
        rest = self.read(offset, self.size).rstrip(b"\0")
        if rest:
            self.write(offset, bytes(len(rest)))

    def release_memory(self) -> None:
        """Reads are copies."""

    def truncate(self, size: int) -> None:
        inode = self._use()
        self._disk.step()
        inode.truncate(size)

    def close(self) -> None:
        self._closed = True


class FaultDisk:
    def __init__(self, seed: int, *, total_bytes: int = 1 << 40) -> None:
        self._rng = random.Random(seed)
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._unsynced_names: dict[str, list[dict[str, _Inode | None]]] = {}
        """Changes of each directory, oldest first: path → file or None."""
        self._locked = False
        self.total_bytes = total_bytes
        self.free_bytes = total_bytes
        self.now_ms = 0
        self.error: int | None = None
        """Writes and syncs fail with this errno while it is set."""
        self.operations = 0
        self.crash_at: int | None = None
        """Number of the operation during which the machine stops."""

    @property
    def name(self) -> str:
        return "fault-disk"

    # ---- faults ---------------------------------------------------------------------------------

    def step(self, *, writes: bool = False) -> None:
        self.operations += 1
        if self.crash_at is not None and self.operations >= self.crash_at:
            raise Crash
        if writes and self.error is not None:
            raise OSError(self.error, os.strerror(self.error))

    def crash(self) -> None:
        """Stop and start the machine: what is left is what had reached the medium."""
        for changes in self._unsynced_names.values():
            for change in changes[: self._rng.randint(0, len(changes))]:
                _apply(self._durable_names, change)
        self._unsynced_names.clear()
        self._names = dict(self._durable_names)
        for path in sorted(self._names):
            self._names[path].crash(self._rng)
        self._locked = False
        self.crash_at = None
        self.error = None

    # ---- Disk -----------------------------------------------------------------------------------

    def open(self, path: str, *, size: int | None = None, create: bool = False) -> FaultFile:
        inode = self._names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.step(writes=True)
            inode = _Inode()
            inode.modified_ms = self.now_ms
            self._change({path: inode})
        if create and size is not None and not inode.data:
            self.step()
            inode.truncate(size)
        return FaultFile(self, inode)

    def exists(self, path: str) -> bool:
        return path in self._names or any(name.startswith(f"{path}/") for name in self._names)

    def file_size(self, path: str) -> int:
        return len(self._names[path].data)

    def list_dir(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        inside = (name[len(prefix) :] for name in self._names if name.startswith(prefix))
        return sorted({name.partition("/")[0] for name in inside})

    def make_dirs(self, path: str, *, sync: bool = True) -> None:
        """Directories exist as long as something is in them."""

    def remove(self, path: str) -> None:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.step()
        self._change({path: None})

    def remove_tree(self, path: str) -> None:
        for name in sorted(self._names, reverse=True):
            if name == path or name.startswith(f"{path}/"):
                self.remove(name)
                self.sync_dir(_parent(name))

    def rename(self, path: str, target: str) -> None:
        self.step()
        self._change({path: None, target: self._names[path]})

    def read_bytes(self, path: str) -> bytes:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return bytes(self._names[path].data)

    def write_bytes(self, path: str, data: bytes, *, sync: bool = True) -> None:
        file = self.open(path, create=True)
        file.truncate(0)
        file.write(0, data)
        if sync:
            file.sync()
            self.sync_dir(_parent(path))

    def sync_dir(self, path: str) -> None:
        self.step()
        for change in self._unsynced_names.pop(path, ()):
            _apply(self._durable_names, change)

    def sync_paths(self, paths: Collection[str]) -> None:
        for path in paths:
            if path in self._names:
                self.step(writes=True)
                self._names[path].sync()
                self.sync_dir(_parent(path))

    def usage(self) -> tuple[int, int]:
        return self.total_bytes, self.free_bytes

    def lock(self, path: str) -> None:
        if self._locked:
            raise StoreLocked(f"{self.name}/{path} is locked")
        self._locked = True
        if path not in self._names:
            self.write_bytes(path, b"lock")

    def unlock(self) -> None:
        self._locked = False

    def _change(self, change: dict[str, _Inode | None]) -> None:
        _apply(self._names, change)
        self._unsynced_names.setdefault(_parent(next(iter(change))), []).append(change)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _apply(names: dict[str, _Inode], change: dict[str, _Inode | None]) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
