"""What a data directory holds, one broker or several shards: to be served as what it is."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import StoreError

NAME_SERVER = "namesrv"
"""Directory of the name server beside shards."""


def shard_name(index: int) -> str:
    return f"broker-{index}"


def check_whole(data: Path) -> None:
    """Refuse shards where one broker was asked for. Whether the rest is a store, the store finds out."""
    shards = _shards(_names(data))
    if shards:
        raise StoreError(f"{data} holds {shards} shards: give --shards {shards}, or another --data")


def check_shards(data: Path, count: int) -> None:
    """Refuse anything but shards, and more shards than would be served. A new directory is fine."""
    names = _names(data)
    if data.exists() and not data.is_dir():
        raise StoreError(f"{data} is not a directory: give another --data")
    shards = _shards(names)
    if shards > count:
        raise StoreError(f"{data} holds {shards} shards: give --shards {shards} or more, or another --data")
    if shards or not names or names == [NAME_SERVER]:
        return
    if "commitlog" in names or "config" in names:
        raise StoreError(f"{data} holds the data of one broker: give --shards 1, or another --data")
    raise StoreError(
        f"{data} is not a data directory (it holds {names[0]!r}): give an empty or a new directory"
    )


def _names(data: Path) -> list[str]:
    return sorted(path.name for path in data.iterdir()) if data.is_dir() else []


def _shards(names: list[str]) -> int:
    """How many have to be served so that the last of them is."""
    numbers = [int(match[1]) for name in names if (match := re.fullmatch(r"broker-(\d+)", name))]
    return max(numbers, default=-1) + 1
