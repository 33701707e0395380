"""The JSON files in config/: whole files, each with the copy before it, by the protocol Apache uses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar, overload

from penstock.errors import PenstockError, StoreDamaged
from penstock.store.disk import Disk

log = logging.getLogger("penstock.store")

DIRECTORY: Final = "config"
T = TypeVar("T")


class ConfigFiles:
    def __init__(self, disk: Disk, directory: str = DIRECTORY) -> None:
        self._disk = disk
        self._directory = directory

    @overload
    def load(self, name: str) -> bytes | None: ...
    @overload
    def load(self, name: str, parse: Callable[[bytes], T]) -> T | None: ...
    def load(self, name: str, parse: Callable[[bytes], object] = bytes) -> object:
        """The newest version that parses; None if there is none. `parse` raises ValueError for bad text.

        A bad file was being written when the machine stopped: it goes, and its .bak counts. Where there is no
        good one, somebody has to look at them, and they stay as they are.
        """
        value, bad = self._find(name, parse)
        if bad:
            log.warning("%s/%s/%s cannot be read: its .bak counts", self._disk.name, self._directory, name)
        if bad is not None:
            self._disk.remove(f"{self._directory}/{name}")
        return value

    def check(self, name: str, parse: Callable[[bytes], object]) -> None:
        """Raises what `load` would; changes nothing."""
        self._find(name, parse)

    def _find(self, name: str, parse: Callable[[bytes], object]) -> tuple[object, bytes | None]:
        """The newest version that parses, and what the file itself holds if it gave way to the .bak."""
        path = f"{self._directory}/{name}"
        data = self._disk.read_bytes(path) if self._disk.exists(path) else None
        has_backup = self._disk.exists(f"{path}.bak")
        if data:
            try:
                return parse(data), None
            except (ValueError, PenstockError) as error:
                if not has_backup:
                    raise self._damaged(path, error) from error
        if not has_backup:
            return None, data
        try:
            return parse(self._disk.read_bytes(f"{path}.bak")), data
        except (ValueError, PenstockError) as error:
            raise self._damaged(f"{path}.bak", error) from error

    def _damaged(self, path: str, error: Exception) -> StoreDamaged:
        return StoreDamaged(
            f"{self._disk.name}/{path} cannot be read ({error}): "
            f"repair it, or delete it to start with defaults"
        )

    def save(self, name: str, data: bytes) -> None:
        """Replace a file; after a crash or an error at any point the old or the new version is loaded.

        The content goes to a file of its own first: a file that could not be written whole must never take
        the place of a good one, not even of the copy before it.
        """
        path = f"{self._directory}/{name}"
        self._disk.make_dirs(self._directory)
        self._disk.write_bytes(f"{path}.new", data)
        if self._disk.exists(path):
            self._disk.rename(path, f"{path}.bak")
        self._disk.rename(f"{path}.new", path)
        self._disk.sync_dir(self._directory)
