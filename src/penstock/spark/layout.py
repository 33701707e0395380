"""Where everything lies in the bodies of pull answers, found with numpy for all records at once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptRecord
from penstock.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_CHARS
from penstock.message.queue import MessageQueue
from penstock.message.record import MAGIC_V1, RECORD_HEAD, RecordView
from penstock.spark.arrays import Bools, Ints, windows

HEAD: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_ms", ">i8"),
        ("born_host", "V8"),
        ("store_ms", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_offset", ">i8"),
        ("body_size", ">i4"),
    ]
)
"""The fixed part of a record with IPv4 hosts, field for field as RECORD_HEAD unpacks it."""

_SIZE: Final = struct.Struct(">i")
_SHORTEST: Final = RECORD_HEAD.size + 3
_SHORT_RUN: Final = 32
"""Records of one size in a row for which looking for a run was worth it."""
_MAGIC_START: Final = MAGIC_V1.to_bytes(4)[:3]
"""What both versions of the magic number have in common."""


class Segment(NamedTuple):
    """The body of one pull answer, and which offsets of it are wanted."""

    queue: MessageQueue
    start: int
    end: int
    body: bytes


class Layout(NamedTuple):
    """One entry a record. The places of the variable fields count only where `plain` is true."""

    heads: npt.NDArray[Any]
    starts: Ints
    ends: Ints
    body_ends: Ints
    properties_starts: Ints
    plain: Bools
    """Sound, of version 1, with IPv4 hosts."""

    def pick(self, rows: Ints) -> Layout:
        if len(rows) == len(self.starts):
            return self
        return Layout(
            self.heads[rows],
            self.starts[rows],
            self.ends[rows],
            self.body_ends[rows],
            self.properties_starts[rows],
            self.plain[rows],
        )


def find_records(data: bytes, segments: Sequence[Segment]) -> tuple[Layout, Ints]:
    """The records in the joined bodies of some segments, and the segment of each."""
    walked = _walk(data, segments)
    if walked is not None:
        starts, counts = walked
        layout = _find_fields(data, starts)
        if all(
            _is_sound(data, int(starts[row]), int(layout.ends[row])) for row in np.flatnonzero(~layout.plain)
        ):
            return layout, np.repeat(np.arange(len(segments)), counts)
    starts, counts = _walk_carefully(data, segments)
    return _find_fields(data, starts), np.repeat(np.arange(len(segments)), counts)


def _walk(data: bytes, segments: Sequence[Segment]) -> tuple[Ints, list[int]] | None:
    """Start of every record, and how many records each segment has; None if a size cannot be right."""
    parts: list[Ints] = []
    counts = []
    end = 0
    for segment in segments:
        begin, end = end, end + len(segment.body)
        found = _walk_segment(data, begin, end)
        if found is None:
            return None
        parts += found
        counts.append(sum(len(part) for part in found))
    return (np.concatenate(parts) if parts else np.empty(0, np.int64)), counts


def _walk_segment(data: bytes, position: int, end: int) -> list[Ints] | None:
    """Messages of one producer often have the same size, so after two of a size the following ones are
    looked at all at once. Where that does not pay, it is tried ever less often: then this is the one loop
    over single messages here, so it only hops; everything else is checked in bulk."""
    parts: list[Ints] = []
    hops: list[int] = []
    unpack = _SIZE.unpack_from
    last_size = hops_to_try = 0
    pause = _SHORT_RUN
    try:
        while position < end:
            hops.append(position)
            (size,) = unpack(data, position)
            if size < _SHORTEST:
                return None
            position += size
            hops_to_try -= 1
            if size == last_size and hops_to_try <= 0:
                run = _run_of(data, position, end, size)
                pause = _SHORT_RUN if run >= _SHORT_RUN else 2 * pause
                hops_to_try = 0 if run >= _SHORT_RUN else pause
                parts += [np.array(hops, np.int64), np.arange(position, position + run * size, size)]
                hops = []
                position += run * size
            last_size = size
    except struct.error:
        return None
    if position > end:
        return None
    return [*parts, np.array(hops, np.int64)]


def _run_of(data: bytes, position: int, end: int, size: int) -> int:
    """How many whole records of one size follow each other."""
    count = (end - position) // size
    if count <= 0:  # the size before was wrong, which the caller will see
        return 0
    sizes = np.ndarray(count, ">i4", data, position, strides=(size,))
    others = sizes != size
    return int(others.argmax()) if others.any() else count


def _walk_carefully(data: bytes, segments: Sequence[Segment]) -> tuple[Ints, list[int]]:
    """As _walk, where a record is damaged: the bytes up to the next sound one then count as that record."""
    starts: list[int] = []
    counts = []
    position = end = 0
    for segment in segments:
        before = len(starts)
        end += len(segment.body)
        while position < end:
            starts.append(position)
            size = _sound_size(data, position, end)
            position = position + size if size else _next_sound_record(data, position + 1, end)
        counts.append(len(starts) - before)
    return np.array(starts, np.int64), counts


def _next_sound_record(data: bytes, position: int, end: int) -> int:
    found = data.find(_MAGIC_START, position + 4, end)
    while found >= 0 and not _sound_size(data, found - 4, end):
        found = data.find(_MAGIC_START, found + 1, end)
    return found - 4 if found >= 0 else end


def _is_sound(data: bytes, start: int, end: int) -> bool:
    return _sound_size(data, start, end) == end - start


def _sound_size(data: bytes, start: int, end: int) -> int:
    """Size of the record at `start`, 0 if there is none or it is damaged."""
    try:
        size = int(RecordView(data, start).size)
    except CorruptRecord:
        return 0
    return size if start + size <= end else 0


def _find_fields(data: bytes, begin: Ints) -> Layout:
    size = len(data)
    if not len(begin) or len(data) - begin[-1] < HEAD.itemsize:
        data += bytes(HEAD.itemsize)  # a torn record at the very end must not stop the gathering below
    padded = np.frombuffer(data, np.uint8)
    end = np.append(begin[1:], size)[: len(begin)]
    heads = windows(data, HEAD.itemsize)[begin].view(HEAD)
    body_size = heads["body_size"].astype(np.int64)
    body_end = begin + HEAD.itemsize + body_size
    plain = (heads["magic"] == MAGIC_V1) & (heads["size"] == end - begin) & (body_size >= 0)
    plain &= body_end + 3 <= end
    # Rows that failed a check so far must not make the lookups below run out of the buffer.
    topic_size = padded[np.where(plain, body_end, 0)].astype(np.int64)
    start = body_end + 3 + topic_size
    plain &= (topic_size <= MAX_TOPIC_CHARS) & (start <= end)
    at = np.where(plain, start, 2)
    properties_size = padded[at - 2].astype(np.int64) << 8 | padded[at - 1]
    plain &= (properties_size <= MAX_PROPERTIES_BYTES) & (start + properties_size == end)
    return Layout(heads, begin, end, body_end, start, plain)
