"""A bounded number of files held open for reading."""

from __future__ import annotations

from penstock.store.disk import Disk, File


class OpenFiles:
    """First opened, first closed: a hit costs one dict lookup, and opening again is cheap."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._open: dict[str, File] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str) -> File | None:
        """None if there is no such file."""
        file = self._open.get(path)
        if file is None:
            try:
                file = self._disk.open(path)
            except FileNotFoundError:
                return None
            if len(self._open) >= self._limit:
                self._open.pop(next(iter(self._open))).close()
            self._open[path] = file
        return file

    def forget(self, prefix: str) -> None:
        """Close what lies under a path that is going away."""
        for path in [path for path in self._open if path.startswith(prefix)]:
            self._open.pop(path).close()

    def release_memory(self) -> None:
        for file in self._open.values():
            file.release_memory()

    def close(self) -> None:
        self.forget("")
