"""The JSON files in config/: whole files, each with the copy before it, by the protocol Apache uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, overload

from penstock.errors import PenstockError, StoreDamaged
from penstock.store.disk import Disk

DIRECTORY: Final = "config"
T = TypeVar("T")


class ConfigFiles:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    @overload
    def load(self, name: str) -> bytes | None: ...
    @overload
    def load(self, name: str, parse: Callable[[bytes], T]) -> T | None: ...
    def load(self, name: str, parse: Callable[[bytes], object] = bytes) -> object:
        """The newest version that parses; None if there is none. `parse` raises ValueError for bad text.

        A bad file was being written when the machine stopped: it goes, and its .bak counts. Where that one is
        bad, too, somebody has to look at it, and both stay as they are.
        """
        path = f"{DIRECTORY}/{name}"
        found = self._disk.exists(path)
        if found:
            data = self._disk.read_bytes(path)
            try:
                if data:
                    return parse(data)
            except (ValueError, PenstockError):
                pass
        value = self._load_backup(f"{path}.bak", parse)
        if found:
            self._disk.remove(path)
        return value

    def _load_backup(self, path: str, parse: Callable[[bytes], object]) -> object:
        if not self._disk.exists(path):
            return None
        try:
            return parse(self._disk.read_bytes(path))
        except (ValueError, PenstockError) as error:
            raise StoreDamaged(
                f"{self._disk.name}/{path} cannot be read ({error}): "
                f"repair it, or delete it to start with defaults"
            ) from error

    def save(self, name: str, data: bytes) -> None:
        """Replace a file; after a crash or an error at any point the old or the new version is loaded.

        The content goes to a file of its own first: a file that could not be written whole must never take
        the place of a good one, not even of the copy before it.
        """
        path = f"{DIRECTORY}/{name}"
        self._disk.make_dirs(DIRECTORY)
        self._disk.write_bytes(f"{path}.new", data)
        if self._disk.exists(path):
            self._disk.rename(path, f"{path}.bak")
        self._disk.rename(f"{path}.new", path)
        self._disk.sync_dir(DIRECTORY)
