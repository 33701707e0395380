"""Rows of fields, many packed or unpacked with one call: one call for each costs twice as much."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Any, Final

from penstock.message.record import Buffer

_TOGETHER: Final = 64
"""Rows of one call, so that a format has at most this many lengths and needs no more than some kilobytes."""


@lru_cache(128)
def _rows(row: str, count: int) -> Struct:
    return Struct(">" + row * count)


def unpack_rows(row: str, data: Buffer | bytearray, count: int) -> Sequence[Any]:
    """The fields of so many rows, one behind the other: a column is a slice with the row's width for step."""
    if count <= _TOGETHER:
        return _rows(row, count).unpack(data)
    view = memoryview(data)
    rest = count % _TOGETHER
    whole = len(view) // count * (count - rest)
    many = _rows(row, _TOGETHER).iter_unpack(view[:whole])
    return [*chain.from_iterable(many), *_rows(row, rest).unpack(view[whole:])]


def pack_rows(row: str, fields: Sequence[Any], count: int) -> bytes:
    """The other way round. Raises struct.error."""
    if count <= _TOGETHER:
        return _rows(row, count).pack(*fields)
    width = len(fields) // count
    starts = range(0, count, _TOGETHER)
    return b"".join(
        _rows(row, min(_TOGETHER, count - start)).pack(*fields[start * width : (start + _TOGETHER) * width])
        for start in starts
    )
