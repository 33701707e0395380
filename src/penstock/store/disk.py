"""The disk as the store sees it, so that tests can put a failing one underneath.

Paths are relative to the root and '/'-separated. What is written is durable after `sync` of the file and,
for a new or renamed name, `sync_dir` of its directory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import Final, Protocol, TypeAlias

from penstock.errors import StoreLocked

Buffer: TypeAlias = bytes | bytearray | memoryview


_ZEROS: Final = bytes(1 << 20)
_sync_data: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)
_DROP_PAGES: Final[int | None] = getattr(mmap, "MADV_DONTNEED", None)
_SYNC_ONE_BY_ONE: Final = 64
"""More files than this are synced with all else on their file system: a thousand syncs take seconds."""


class File(Protocol):
    @property
    def size(self) -> int: ...
    @property
    def modified_ms(self) -> int: ...
    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Bytes that exist in the file; without a copy where possible."""
        ...

    def write(self, offset: int, data: Buffer) -> None: ...
    def sync(self) -> None: ...
    def clear(self, offset: int) -> None:
        """Make everything from an offset on zeros. The size stays: a crash midway leaves no short file."""
        ...

    def truncate(self, size: int) -> None: ...
    def release_memory(self) -> None:
        """What was read need not stay in the memory of this process; reading it again costs little."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    @property
    def name(self) -> str:
        """What error texts call the root."""
        ...

    def open(self, path: str, *, size: int | None = None, create: bool = False) -> File:
        """With `create` a missing or empty file becomes `size` zero bytes that take no space yet."""
        ...

    def exists(self, path: str) -> bool: ...
    def file_size(self, path: str) -> int: ...
    def list_dir(self, path: str) -> list[str]:
        """Sorted names; a missing directory is an empty one."""
        ...

    def make_dirs(self, path: str, *, sync: bool = True) -> None: ...

    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None:
        """A file, or a directory with all in it, last names first; fine if it is not there."""
        ...

    def rename(self, path: str, target: str) -> None: ...
    def read_bytes(self, path: str) -> bytes: ...
    def write_bytes(self, path: str, data: bytes, *, sync: bool = True) -> None: ...
    def sync_dir(self, path: str) -> None: ...
    def sync_paths(self, paths: Collection[str]) -> None:
        """Force files, and the names that lead to them, to the medium; fine if some are gone."""
        ...

    def usage(self) -> tuple[int, int]:
        """Bytes that ordinary users can use in total, and those of them still free."""
        ...

    def lock(self, path: str) -> None:
        """Hold the exclusive lock that Apache's broker takes, or raise StoreLocked."""
        ...

    def unlock(self) -> None: ...


class RealFile:
    """Writes go through the descriptor, reads through a map made at the first one.

    A map must never be written through: on a full disk that ends the process instead of raising.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    @property
    def modified_ms(self) -> int:
        return os.fstat(self._descriptor).st_mtime_ns // 1_000_000

    def read(self, offset: int, size: int) -> memoryview:
        view = self._view
        if view is None:
            self._map = mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)
            view = self._view = memoryview(self._map)
        return view[offset : offset + size]

    def write(self, offset: int, data: Buffer) -> None:
        written = os.pwrite(self._descriptor, data, offset)
        while written < len(data):
            data = memoryview(data)[written:]
            offset += written
            written = os.pwrite(self._descriptor, data, offset)

    def sync(self) -> None:
        _sync_data(self._descriptor)

    def clear(self, offset: int) -> None:
        size = self.size
        while offset < size:
            try:
                offset = os.lseek(self._descriptor, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a hole up to the end
                    return
                raise
            end = min(os.lseek(self._descriptor, offset, os.SEEK_HOLE), offset + len(_ZEROS))
            self.write(offset, _ZEROS[: end - offset])
            offset = end

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def release_memory(self) -> None:
        """The pages stay in the system's cache, and slices handed out stay readable."""
        if self._map is not None and _DROP_PAGES is not None:
            self._map.madvise(_DROP_PAGES)

    def close(self) -> None:
        """Slices handed out stay readable: the map goes when the last of them does."""
        self._view = self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_held_locks: Final[set[tuple[int, int]]] = set()
"""Record locks exclude other processes only; this excludes a second store in our own."""


class RealDisk:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        self._lock: tuple[int, tuple[int, int]] | None = None

    @property
    def name(self) -> str:
        return str(self._root)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def open(self, path: str, *, size: int | None = None, create: bool = False) -> RealFile:
        descriptor = os.open(
            self._path(path), os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644
        )
        try:
            if create and size is not None and os.fstat(descriptor).st_size == 0:
                os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        return RealFile(descriptor)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def file_size(self, path: str) -> int:
        return os.stat(self._path(path)).st_size

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(path)))
        except FileNotFoundError:
            return []

    def make_dirs(self, path: str, *, sync: bool = True) -> None:
        directory = self._root / path
        if directory.is_dir():
            return
        missing = [directory]
        while not missing[-1].parent.exists():
            missing.append(missing[-1].parent)
        directory.mkdir(parents=True, exist_ok=True)
        if sync:
            for made in missing:
                _sync_directory(made.parent)

    def remove(self, path: str) -> None:
        os.unlink(self._path(path))

    def remove_tree(self, path: str) -> None:
        where = self._path(path)
        if os.path.isdir(where):
            for name in reversed(self.list_dir(path)):
                self.remove_tree(f"{path}/{name}")
            os.rmdir(where)
        elif os.path.exists(where):
            os.unlink(where)

    def rename(self, path: str, target: str) -> None:
        os.replace(self._path(path), self._path(target))

    def read_bytes(self, path: str) -> bytes:
        return Path(self._path(path)).read_bytes()

    def write_bytes(self, path: str, data: bytes, *, sync: bool = True) -> None:
        with open(self._path(path), "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if sync:
            _sync_directory(Path(self._path(path)).parent)

    def sync_dir(self, path: str) -> None:
        _sync_directory(self._root / path)

    def sync_paths(self, paths: Collection[str]) -> None:
        if len(paths) > _SYNC_ONE_BY_ONE:
            self._sync_all()
            return
        directories: set[PurePosixPath] = set()
        for path in paths:
            try:
                file = self.open(path)
            except FileNotFoundError:
                continue
            try:
                file.sync()
            finally:
                file.close()
            directories.update(PurePosixPath(path).parents)
        for directory in directories:
            _sync_directory(self._root / directory)

    def _sync_all(self) -> None:
        """The standard library has only a sync of all file systems."""
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "syncfs"):
            os.sync()
            return
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if libc.syncfs(descriptor) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(descriptor)

    def usage(self) -> tuple[int, int]:
        state = os.statvfs(self._root)
        used = state.f_blocks - state.f_bfree
        return (used + state.f_bavail) * state.f_frsize, state.f_bavail * state.f_frsize

    def lock(self, path: str) -> None:
        where = self._path(path)
        text = f"{where} is locked: another broker uses this data directory; stop it or give another --data"
        # Asked before opening: closing a second descriptor would drop the lock the process already has.
        if self.exists(path) and _identity(os.stat(where)) in _held_locks:
            raise StoreLocked(text)
        descriptor = os.open(where, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            os.close(descriptor)
            raise StoreLocked(text) from None
        status = os.fstat(descriptor)
        identity = _identity(status)
        _held_locks.add(identity)
        if status.st_size == 0:
            os.pwrite(descriptor, b"lock", 0)
        self._lock = (descriptor, identity)

    def unlock(self) -> None:
        if self._lock is not None:
            descriptor, identity = self._lock
            self._lock = None
            _held_locks.discard(identity)
            os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
