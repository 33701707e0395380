"""Arrow arrays of texts that are cut out of one buffer, or repeated, without a Python object a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no type information

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_REPEATS_KEPT: Final = 8


def binary_parts(array: pa.Array) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Data and offsets behind a binary or string array as `take` and the like return it."""
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    return np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8), bounds


def numbers(values: npt.NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    """The same memory as an array. `pa.array` would load pandas first where that is installed, which takes
    a worker a third of a second and makes every collection longer."""
    kind = kind or pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def slices(
    buffer: pa.Buffer, starts: npt.NDArray[Any], ends: npt.NDArray[Any], kind: pa.DataType
) -> pa.Array:
    """`buffer[start:end]` for ascending pairs, as one array.

    An array whose elements are gap, wanted, gap, wanted lies over the buffer without copying, so that
    taking the wanted ones is one pass in C++.
    """
    count = len(starts)
    if count > 1 and ends[1] - starts[1] == ends[0] - starts[0]:  # most that are uneven show it here
        first, size, step = int(starts[0]), int(ends[0] - starts[0]), int(starts[1] - starts[0])
        if (ends - starts == size).all() and (starts[1:] - starts[:-1] == step).all():
            return even_slices(np.frombuffer(buffer, np.uint8), count, first, size, step, kind)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0] = 0
    bounds[1::2] = starts
    bounds[2::2] = ends
    both = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(bounds), buffer])
    return both.take(numbers(np.arange(1, 2 * count, 2, dtype=np.int32)))


def even_slices(data: Bytes, count: int, first: int, size: int, step: int, kind: pa.DataType) -> pa.Array:
    """`data[at : at + size]` for `count` places from `first` on, `step` bytes from one to the next."""
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    parts = cells(data, count, first, size, step).copy()
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(bounds), pa.py_buffer(parts)])


def cells(data: Bytes, count: int, first: int, size: int, step: int) -> npt.NDArray[np.void]:
    """A view of `size` bytes at each of these places: as opaque items they are copied one by one in C, as
    rows of bytes it would be many small copies."""
    return np.ndarray(count, f"V{size}", data, first, (step,))


def windows(data: bytes, size: int) -> npt.NDArray[np.void]:
    """A view of `size` bytes from every place of the data on, to be picked by index."""
    return np.ndarray(max(0, len(data) - size + 1), f"V{size}", data, strides=(1,))


class Repeats:
    """Arrays of texts over and over again, kept from batch to batch: topics and hosts seldom change."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[bytes, ...], pa.Array] = {}

    def of(self, texts: Sequence[bytes], times: int) -> pa.Array:
        """The texts must be UTF-8."""
        key = tuple(texts)
        array = self._arrays.get(key)
        if array is None or len(array) < times * len(key):
            if len(self._arrays) >= _REPEATS_KEPT:
                self._arrays.clear()
            array = self._arrays[key] = _repeated(key, times)
        return array.slice(0, times * len(key))


def _repeated(texts: Sequence[bytes], times: int) -> pa.Array:
    sizes = np.tile(np.array([len(text) for text in texts], np.int32), times)
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    data = pa.py_buffer(b"".join(texts) * times)
    return pa.Array.from_buffers(pa.string(), len(sizes), [None, pa.py_buffer(bounds), data])


def all_same(data: Bytes, starts: Ints, size: int) -> bool:
    """Whether `data[start : start + size]` is the same for all starts: compared by words, and the rest by
    smaller ones."""
    done = 0
    for width in (8, 4, 2, 1):
        words = np.ndarray(max(0, len(data) - width + 1), f"u{width}", data, strides=(1,))
        while size - done >= width:
            found = words[starts + done]
            if (found != found[0]).any():
                return False
            done += width
    return True


def not_utf8(texts: pa.Array) -> Bools:
    """Which of some binary values are not UTF-8."""
    data, _ = binary_parts(texts)
    odd = np.zeros(len(texts), np.bool_)
    if len(data) and data.max() >= 0x80:
        try:
            texts.cast(pa.string())
        except pa.ArrowInvalid:
            odd[:] = [not is_utf8(text) for text in texts.to_pylist()]
    return odd


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
