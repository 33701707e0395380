"""The property texts of many messages taken apart at once, with numpy and Arrow.

Gives what `penstock.message.properties.decode_properties` gives one by one, or marks a text as odd and
leaves it to that function.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no type information
import pyarrow.compute as pc  # type: ignore[import-untyped]  # as above

from penstock.spark.arrays import Bools, Bytes, Ints, Repeats, all_same, binary_parts, numbers, slices

_NAME_END = 1
_VALUE_END = 2
_WORD_BYTES = 8


class PropertyColumns:
    """Names and values of all properties of all rows.

    The texts must be UTF-8. Rows in `odd` are for the one-by-one decoder: a value with a name separator in
    it, an empty name or value, a name given twice. Nothing else here may be used while there are any.
    """

    odd: Bools

    def __init__(self, texts: pa.Array, repeats: Repeats, *, as_map: bool) -> None:
        texts = _with_last_terminator(texts)
        data, bounds = binary_parts(texts)
        data = data[: bounds[-1]]
        self._rows = len(texts)
        self._as_map = as_map
        marks = np.flatnonzero((data - np.uint8(1)) < 2)
        self.odd = _not_alternating(data, marks, bounds)
        if self.odd.any():
            return
        name_ends, value_ends = marks[0::2], marks[1::2]
        name_starts = np.concatenate((np.zeros(min(1, len(marks)), np.int64), value_ends[:-1] + 1))
        empty = (name_ends == name_starts) | (value_ends == name_ends + 1)
        if empty.any():
            self.odd[np.searchsorted(bounds, name_starts[empty], "right") - 1] = True
            return
        self._buffer = pa.py_buffer(data)
        self._value_starts, self._value_ends = name_ends + 1, value_ends
        self._shared = _shared_names(data, bounds, name_starts, name_ends)
        if as_map and self._shared is not None:
            self._names = repeats.of(self._shared, self._rows)
        elif as_map:
            self._names = slices(self._buffer, name_starts, name_ends, pa.string())
        if self._shared is not None:
            self._pairs = np.arange(0, len(value_ends) + 1, len(self._shared), dtype=np.int32)
            self.odd[:] = as_map and len(set(self._shared)) < len(self._shared)
            return
        self._pairs = np.searchsorted(value_ends, bounds).astype(np.int32)
        self._row_of_pair = np.repeat(np.arange(self._rows), np.diff(self._pairs))
        padded = np.concatenate((data, np.zeros(_WORD_BYTES, np.uint8)))
        self._words = np.ndarray(len(data) + 1, "<u8", padded, strides=(1,))[name_starts]
        self._name_sizes = name_ends - name_starts
        if as_map:
            self.odd[self._repeated()] = True

    @cached_property
    def _values(self) -> pa.Array:
        return slices(self._buffer, self._value_starts, self._value_ends, pa.string())

    def _repeated(self) -> Ints:
        """Rows in which a name stands more than once."""
        codes = self._names.dictionary_encode()
        cells = self._row_of_pair * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
        cells.sort()
        repeated: Ints = cells[1:][cells[1:] == cells[:-1]] // max(1, len(codes.dictionary))
        return repeated

    def column(self, name: str) -> pa.Array:
        """One property of every row, null where it is missing; the name has at most eight ASCII letters."""
        word = name.encode()
        if self._shared is not None:
            if word not in self._shared:
                return pa.nulls(self._rows, pa.string())
            last = len(self._shared) - 1 - self._shared[::-1].index(word)
            if self._as_map:  # which needs all the values, so they lie together already
                return self._values.take(numbers(self._pairs[:-1] + np.int32(last)))
            pick = slice(last, None, len(self._shared))
            return slices(self._buffer, self._value_starts[pick], self._value_ends[pick], pa.string())
        mask = np.uint64((1 << 8 * len(word)) - 1)
        same = (self._name_sizes == len(word)) & ((self._words & mask) == int.from_bytes(word, "little"))
        found = np.full(self._rows, -1, np.int64)
        found[self._row_of_pair[same]] = np.flatnonzero(same)  # of several the last one stays
        return self._values.take(pa.array(found, mask=found < 0))

    def map_column(self) -> pa.Array:
        return pa.MapArray.from_arrays(numbers(self._pairs), self._names, self._values)


def _shared_names(data: Bytes, bounds: npt.NDArray[np.int32], starts: Ints, ends: Ints) -> list[bytes] | None:
    """The names of the first row if every row has just these, in this order. One producer sends such rows,
    so it is worth a look: nothing then has to be searched row by row."""
    rows = len(bounds) - 1
    count, rest = divmod(len(starts), rows) if rows else (0, 0)
    if not count or rest:
        return None
    sizes = (ends - starts).reshape(rows, count)
    if (sizes != sizes[0]).any() or (starts[::count] != bounds[:-1]).any():
        return None
    names = []
    for number, size in enumerate(sizes[0].tolist()):
        if not all_same(data, starts[number::count], size):
            return None
        names.append(data[starts[number] : ends[number]].tobytes())
    return names


def _with_last_terminator(texts: pa.Array) -> pa.Array:
    """Some clients leave the last one out."""
    data, bounds = binary_parts(texts)
    filled = bounds[1:] > bounds[:-1]
    if (data[bounds[1:][filled] - 1] == _VALUE_END).all():
        return texts
    complete = np.ones(len(texts), np.bool_)
    complete[filled] = data[bounds[1:][filled] - 1] == _VALUE_END
    ended = pc.binary_join_element_wise(texts, pa.scalar(b"", pa.binary()), pa.scalar(b"\x02", pa.binary()))
    return pc.if_else(pa.array(complete), texts, ended)


def _not_alternating(data: Bytes, marks: Ints, bounds: npt.NDArray[np.int32]) -> Bools:
    """Rows whose separators are not name end, value end, name end, value end, and so on."""
    odd = np.zeros(len(bounds) - 1, np.bool_)
    kinds = data[marks]
    if len(marks) % 2 == 0 and (kinds[0::2] == _NAME_END).all() and (kinds[1::2] == _VALUE_END).all():
        return odd
    first = np.searchsorted(marks, bounds)
    row = np.searchsorted(bounds, marks, "right") - 1
    wrong = kinds != 1 + ((np.arange(len(marks)) - first[row]) & 1)
    odd[row[wrong]] = True
    odd |= np.diff(first) % 2 == 1
    return odd
