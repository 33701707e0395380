"""Files that together are one long row of bytes: fixed size, named by the position of their first byte."""

from __future__ import annotations

from itertools import pairwise

from penstock.errors import StoreDamaged
from penstock.store.disk import Disk


def segment_name(start: int) -> str:
    return f"{start:020d}"


def segment_starts(disk: Disk, directory: str) -> list[int]:
    """Start positions of the segments in a directory, ascending; other names are not ours to judge."""
    return [int(name) for name in disk.list_dir(directory) if len(name) == 20 and name.isdecimal()]


def check_segments(
    disk: Disk, directory: str, size: int, setting: str, remedy: str, *, one_empty: bool, gaps: bool = False
) -> list[int]:
    """The segments of a directory up to the first empty file, all of the right size and, unless `gaps` are
    allowed, in one row.

    Empty files were being created when the machine stopped; `one_empty` says that only the last can be one.
    Changes nothing.
    """
    starts = segment_starts(disk, directory)
    for at, start in enumerate(starts):
        path = f"{directory}/{segment_name(start)}"
        actual = disk.file_size(path)
        if actual == 0 and (at == len(starts) - 1 or not one_empty):
            del starts[at:]
            break
        if actual != size:
            raise StoreDamaged(
                f"{disk.name}/{path} has {actual} bytes where {setting} says {size}: "
                f"set {setting} to what the directory was written with, or {remedy}"
            )
    for before, after in pairwise(starts):
        if after - before != size and not gaps:
            raise StoreDamaged(
                f"{disk.name}/{directory}/{segment_name(before + size)} is missing: restore it, or {remedy}"
            )
    if starts and starts[0] % size:
        raise StoreDamaged(
            f"{disk.name}/{directory}/{segment_name(starts[0])} does not start at a multiple of {setting}: "
            f"restore its name, or {remedy}"
        )
    return starts
