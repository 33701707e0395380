"""Where in the log topics were deleted, so that recovery does not bring their old messages back."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.errors import StoreDamaged
from penstock.store.disk import Disk
from penstock.store.journal import DIRECTORY

PATH: Final = f"{DIRECTORY}/deleted-topics.json"
_NEW: Final = f"{PATH}.new"


def load_tombstones(disk: Disk) -> dict[str, int]:
    """Topic → log position up to which its records no longer count."""
    if not disk.exists(PATH):
        return {}
    try:
        return msgspec.json.decode(disk.read_bytes(PATH), type=dict[str, int])
    except msgspec.DecodeError as error:
        raise StoreDamaged(
            f"{disk.name}/{PATH} cannot be read ({error}): "
            "delete it (old messages of deleted topics may come back)"
        ) from error


def save_tombstones(disk: Disk, tombstones: dict[str, int]) -> None:
    disk.make_dirs(DIRECTORY)
    disk.write_bytes(_NEW, msgspec.json.encode(tombstones))
    disk.rename(_NEW, PATH)
    disk.sync_dir(DIRECTORY)
