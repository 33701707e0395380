"""Rows to messages: Arrow columns become the elements of batch sends, without a Python object a row."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no type information
import pyarrow.compute as pc  # type: ignore[import-untyped]  # as above

from penstock.errors import InvalidArgument, MessageTooLarge
from penstock.limits import MAX_BODY_BYTES, MAX_PROPERTIES_BYTES
from penstock.message.properties import RESERVED, Key
from penstock.spark.arrays import binary_parts, even_slices

_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")]
)
_ROW_DIGITS: Final = 12
_HEX: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint8).reshape(256, 2)
_EMPTY: Final = pa.scalar(b"", pa.binary())
_NAMED: Final = {"tags": Key.TAGS, "keys": Key.KEYS, "shardingKey": Key.SHARDING_KEY}
_TIMED: Final = {"delayLevel": Key.DELAY, "delayMs": Key.TIMER_DELAY_MS, "deliverAt": Key.TIMER_DELIVER_MS}

Columns = dict[str, pa.Array]


def unique_keys(prefix: str, first_row: int, count: int) -> pa.Array:
    """Ids that a repeated task gives again: 20 characters for the task, 12 for the row."""
    table = np.empty((count, len(prefix) + _ROW_DIGITS), np.uint8)
    table[:, : len(prefix)] = np.frombuffer(prefix.encode(), np.uint8)
    rows = np.arange(first_row, first_row + count, dtype=">u8").view(np.uint8).reshape(count, 8)
    table[:, len(prefix) :] = _HEX[rows[:, -_ROW_DIGITS // 2 :]].reshape(count, _ROW_DIGITS)
    return even_slices(table, count, 0, table.shape[1], table.shape[1], pa.binary())


def is_delayed(columns: Columns) -> npt.NDArray[np.bool_]:
    """Rows that brokers do not take in batches."""
    delayed = np.zeros(len(columns["body"]), np.bool_)
    for name in _TIMED:
        if name in columns:
            delayed |= columns[name].is_valid().to_numpy(zero_copy_only=False)
    return delayed


def property_texts(columns: Columns, keys: pa.Array) -> pa.Array:
    """The property text of every row."""
    parts = [_piece(Key.UNIQ_KEY, keys), pa.scalar(b"WAIT\x01true\x02", pa.binary())]
    for name, key in _NAMED.items():
        if name in columns:
            values = columns[name].cast(pa.binary())
            _refuse_separators(name, values)
            parts.append(_piece(key, values))
    for name, key in _TIMED.items():
        if name in columns:
            values = columns[name]
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.timestamp("ms", values.type.tz), safe=False).cast(pa.int64())
            parts.append(_piece(key, values.cast(pa.string()).cast(pa.binary())))
    if "properties" in columns:
        parts.append(_user_properties(columns["properties"]))
    texts = pc.binary_join_element_wise(*parts, _EMPTY)
    sizes = pc.binary_length(texts).to_numpy()
    if len(sizes) and sizes.max() > MAX_PROPERTIES_BYTES:
        row = int(sizes.argmax())
        raise MessageTooLarge(
            f"the properties of row {row} have {sizes[row]} bytes: at most {MAX_PROPERTIES_BYTES} fit"
        )
    return texts


def _piece(key: str, values: pa.Array) -> pa.Array:
    """`key \\x01 value \\x02`, and nothing where there is no value."""
    value = pc.if_else(pc.equal(pc.binary_length(values), 0), pa.scalar(None, pa.binary()), values)
    text = pc.binary_join_element_wise(
        pa.scalar(f"{key}\x01".encode(), pa.binary()), value, pa.scalar(b"\x02", pa.binary()), _EMPTY
    )
    return pc.fill_null(text, b"")


def _user_properties(maps: pa.Array) -> pa.Array:
    """Names with a meaning of their own are left out: they have their own columns, or are the broker's."""
    rows = pc.fill_null(maps.cast(pa.map_(pa.string(), pa.string())), []) if maps.null_count else maps
    bounds = np.frombuffer(rows.buffers()[1], np.int32, len(rows) + 1, rows.offset * 4)
    first, last = int(bounds[0]), int(bounds[-1])
    names = rows.keys.slice(first, last - first).cast(pa.binary())
    values = rows.items.slice(first, last - first).cast(pa.binary())
    _refuse_separators("properties", names)
    _refuse_separators("properties", values)
    reserved = pc.is_in(names, pa.array([name.encode() for name in sorted(RESERVED)], pa.binary()))
    usable = pc.and_(pc.invert(reserved), pc.greater(pc.binary_length(names), 0))
    usable = pc.and_(usable, pc.fill_null(pc.greater(pc.binary_length(values), 0), False))
    separators = (pa.scalar(b"\x01", pa.binary()), pa.scalar(b"\x02", pa.binary()))
    pairs = pc.binary_join_element_wise(names, separators[0], values, separators[1], _EMPTY)
    pairs = pc.if_else(usable, pairs, _EMPTY)
    data, ends = binary_parts(pairs)
    texts = ends[bounds - first]
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(texts.copy()), pa.py_buffer(data)]
    )


def _refuse_separators(column: str, values: pa.Array) -> None:
    data, bounds = binary_parts(values)
    used = data[bounds[0] : bounds[-1]]
    wrong = np.flatnonzero((used - np.uint8(1)) < 2)
    if len(wrong):
        row = int(np.searchsorted(bounds, wrong[0] + bounds[0], "right")) - 1
        raise InvalidArgument(f"column {column}, value {values[row].as_py()!r}: contains \\x01 or \\x02")


def batch_elements(bodies: pa.Array, flags: npt.NDArray[np.int32], properties: pa.Array) -> pa.Array:
    """One element of a batch send for every row; any run of them is the body of such a send."""
    body_sizes = pc.binary_length(bodies).to_numpy()
    property_sizes = pc.binary_length(properties).to_numpy()
    heads = np.zeros(len(bodies), _HEAD)
    heads["size"] = _HEAD.itemsize + body_sizes + 2 + property_sizes
    heads["flag"] = flags
    heads["body_size"] = body_sizes
    lengths = property_sizes.astype(">i2")
    return pc.binary_join_element_wise(_fixed(heads), bodies, _fixed(lengths), properties, _EMPTY)


def _fixed(values: npt.NDArray[np.generic]) -> pa.Array:
    """Numbers as the bytes they are."""
    bounds = np.arange(0, (len(values) + 1) * values.itemsize, values.itemsize, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(bounds), pa.py_buffer(values.tobytes())]
    )


def check_bodies(bodies: pa.Array, first_row: int) -> None:
    if bodies.null_count:
        row = bodies.is_null().index(True).as_py()
        raise InvalidArgument(f"row {first_row + row} of this partition has no body")


def too_large(bodies: pa.Array) -> npt.NDArray[np.int64]:
    """Rows that no broker would take."""
    return np.flatnonzero(pc.binary_length(bodies).to_numpy() > MAX_BODY_BYTES)
