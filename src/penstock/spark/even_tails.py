"""Topics and properties of records that all end in the same way, cut out of one table of bytes.

What one producer sends has the same properties in the same order, and most of them (ids, tags, flags) have
the same size each time. The ends of such records, put below each other, are a table with fixed columns:
nothing has to be searched row by row, whatever the sizes of the bodies are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no type information

from penstock.message.properties import NAME_END, VALUE_END
from penstock.spark.arrays import Bools, Bytes, Repeats, cells, even_slices, numbers, windows
from penstock.spark.layout import Layout

_NAME_END = NAME_END.encode()
_VALUE_END = VALUE_END.encode()
_LARGEST_MARK = max(*_NAME_END, *_VALUE_END)
_FIRST_NOT_ASCII = 0x80
_FOLDED_ROWS = 64


class EvenTails:
    """The same methods as `PropertyColumns`, and the topics."""

    def __init__(
        self, table: Bytes, same: Bools, topic_size: int, values: dict[bytes, slice], repeats: Repeats
    ) -> None:
        self._table = table
        self._same = same
        self._topic = slice(1, 1 + topic_size)
        self._values = values
        self._repeats = repeats

    def topics(self) -> pa.Array:
        return self._column(self._topic)

    def texts(self) -> pa.Array:
        return self._column(slice(self._topic.stop + 2, self._table.shape[1]))

    def column(self, name: str) -> pa.Array:
        """One property of every row, null where it is missing."""
        place = self._values.get(name.encode())
        return pa.nulls(len(self._table), pa.string()) if place is None else self._column(place)

    def map_column(self) -> pa.Array:
        rows, row_size = self._table.shape
        places = self._values.values()
        sizes = np.array([place.stop - place.start for place in places], np.int32)
        inside = np.cumsum(sizes, dtype=np.int32)
        joined_size = int(inside[-1])
        joined = np.empty(rows * joined_size, np.uint8)
        for place, size, end in zip(places, sizes.tolist(), inside.tolist(), strict=True):
            target: npt.NDArray[Any] = cells(joined, rows, end - size, size, joined_size)
            target[...] = cells(self._table, rows, place.start, size, row_size)
        bounds = np.zeros(rows * len(sizes) + 1, np.int32)
        steps = np.arange(rows, dtype=np.int32) * np.int32(joined_size)
        np.add(steps[:, None], inside, out=bounds[1:].reshape(rows, len(sizes)))
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(joined)]
        values = pa.Array.from_buffers(pa.string(), rows * len(sizes), buffers)
        names = self._repeats.of(tuple(self._values), rows)
        pairs = np.arange(rows + 1, dtype=np.int32) * np.int32(len(sizes))
        return pa.MapArray.from_arrays(numbers(pairs), names, values)

    def _column(self, place: slice) -> pa.Array:
        rows, row_size = self._table.shape
        if self._same[place].all():
            return self._repeats.of((self._table[0, place].tobytes(),), rows)
        size = place.stop - place.start
        return even_slices(self._table, rows, place.start, size, row_size, pa.string())


def even_tails(data: bytes, part: Layout, repeats: Repeats) -> EvenTails | None:
    """None where the rows do not end in the same way, or where their properties are out of the ordinary."""
    rows = len(part.starts)
    sizes = part.ends - part.body_ends
    if not rows or (sizes != sizes[0]).any():
        return None
    size = int(sizes[0])
    table = windows(data, size)[part.body_ends].view(np.uint8).reshape(rows, size)
    topic_size = int(table[0, 0])
    values = _places_of_values(table[0].tobytes(), 3 + topic_size)
    if values is None:
        return None
    lowest, highest = _extremes(table)
    same = lowest == highest
    in_values = np.zeros(size, np.bool_)
    for place in values.values():
        in_values[place] = True
    # Names, separators and the topic as in the first row, and no more separators.
    if not np.where(in_values, lowest > _LARGEST_MARK, same).all():
        return None
    highest[1 + topic_size : 3 + topic_size] = 0  # the size of the properties, which is no text
    if highest.max() >= _FIRST_NOT_ASCII:
        return None
    return EvenTails(table, same, topic_size, values, repeats)


def _extremes(table: Bytes) -> tuple[Bytes, Bytes]:
    """The smallest and the largest byte of each column. Numpy takes a step for every row, and these rows are
    short: several as one cost a fraction."""
    rows, size = table.shape
    wide_rows = rows // _FOLDED_ROWS
    wide = table[: wide_rows * _FOLDED_ROWS].reshape(wide_rows, _FOLDED_ROWS * size)
    rest = table[wide_rows * _FOLDED_ROWS :]
    lowest = wide.min(axis=0, initial=0xFF).reshape(_FOLDED_ROWS, size)
    highest = wide.max(axis=0, initial=0).reshape(_FOLDED_ROWS, size)
    return np.vstack((lowest, rest)).min(axis=0), np.vstack((highest, rest)).max(axis=0)


def _places_of_values(tail: bytes, start: int) -> dict[bytes, slice] | None:
    """Where the value of each property lies; None unless each has a name of its own, a value and an end."""
    if not tail.endswith(_VALUE_END, start):
        return None
    found: dict[bytes, slice] = {}
    for pair in tail[start:-1].split(_VALUE_END):
        name, _, value = pair.partition(_NAME_END)
        if not name or not value or name in found or _NAME_END in value:
            return None
        found[name] = slice(start + len(name) + 1, start + len(pair))
        start += len(pair) + 1
    return found
