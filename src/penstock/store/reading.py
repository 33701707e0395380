"""Reading a queue: which records an offset leads to, and where to go when it leads nowhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from struct import Struct
from typing import Final

from penstock.limits import PULL_SCAN_ENTRIES
from penstock.message.record import RecordView, check_record
from penstock.message.rows import unpack_rows
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ENTRY, ConsumeQueue
from penstock.store.results import GetResult, GetStatus

_START: Final = Struct(">i")


_LONG_BYTES: Final = 8192
_SENT_ONE_BY_ONE: Final = 32
"""More records than these are looked at for neighbours, to send them together."""


def get_messages(
    log: CommitLog,
    queue: ConsumeQueue | None,
    offset: int,
    max_messages: int,
    matches: Callable[[int], bool] | None,
    record_filter: Callable[[RecordView], bool] | None,
    max_bytes: int,
    correct_offsets: bool,
) -> GetResult:
    """Records from an offset on, or why there are none and which offset to ask for next.

    A slave leaves wrong offsets as they are (`correct_offsets` false): its queues may lag.
    """
    if queue is None:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0 if correct_offsets else offset, 0, 0, [], 0, 0)
    low, high = queue.min_offset, queue.max_offset
    if not low <= offset < high:
        status, target = _outside(offset, low, high)
        return GetResult(status, target if correct_offsets else offset, low, high, [], 0, 0)
    per_file = queue.per_file
    file_end = offset - offset % per_file + per_file
    available = min(high, file_end) - offset
    wanted = max(1, max_messages)
    if matches is None and record_filter is None:
        count = min(available, wanted)
        data = queue.read(offset, count)
        if data is not None:
            parts, size = _all_records(log, data, count, max_bytes)
            if parts:
                return GetResult(GetStatus.FOUND, offset + count, low, high, parts, count, size)
    data = queue.read(offset, min(available, max(PULL_SCAN_ENTRIES, max_messages)))
    if data is None:
        target = file_end if correct_offsets else offset
        return GetResult(GetStatus.OFFSET_FOUND_NULL, target, low, high, [], 0, 0)
    return _collect(log, queue, data, offset, wanted, matches, record_filter, max_bytes)


def _outside(offset: int, low: int, high: int) -> tuple[GetStatus, int]:
    if high == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < low:
        return GetStatus.OFFSET_TOO_SMALL, low
    if offset == high:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset
    return GetStatus.OFFSET_OVERFLOW_BADLY, high


def _all_records(
    log: CommitLog, data: bytes | bytearray | memoryview, count: int, max_bytes: int
) -> tuple[list[bytes | memoryview], int]:
    """The records of all entries and their bytes, if they are there, in one file, and fit one answer.

    Nearly always so, and then no entry needs a look of its own.
    """
    positions, sizes = _places(data, count)
    start, end = positions[0], positions[-1] + sizes[-1]
    size = sum(sizes)
    if size > max_bytes and count > 1:
        return [], 0
    if end - start == size:  # side by side
        part = log.read(start, size)
        return ([part], size) if part is not None else ([], 0)
    base = start - start % log.file_size
    if start < log.min_offset or end > log.durable or end - base > log.file_size:
        return [], 0
    segment = log.read_raw(base, log.file_size)
    places = [position - base for position in positions]
    if min(places) < 0 or max(map(add, places, sizes)) > end - base:
        return [], 0
    if count <= _SENT_ONE_BY_ONE:
        return [segment[at : at + size] for at, size in zip(places, sizes, strict=True)], size
    ends = list(map(add, places, sizes))
    breaks = [number for number in range(1, count) if places[number] != ends[number - 1]]
    first, last = [0, *breaks], [*breaks, count]
    stretches = [segment[places[a] : ends[b - 1]] for a, b in zip(first, last, strict=True)]
    # Many short ones cost more to send one by one than to copy.
    return (stretches if size > _LONG_BYTES * len(stretches) else [b"".join(stretches)]), size


def _places(data: bytes | bytearray | memoryview, count: int) -> tuple[Sequence[int], Sequence[int]]:
    """Position and size of every record; tag codes are not looked at."""
    fields = unpack_rows("qi8x", data, count)
    return fields[::2], fields[1::2]


def _collect(
    log: CommitLog,
    queue: ConsumeQueue,
    data: bytes | bytearray | memoryview,
    offset: int,
    wanted: int,
    matches: Callable[[int], bool] | None,
    record_filter: Callable[[RecordView], bool] | None,
    max_bytes: int,
) -> GetResult:
    status = GetStatus.NO_MATCHED_MESSAGE
    stretches: list[tuple[int, int]] = []
    """Start and end of what goes out, neighbours merged."""
    count = total = skip_until = start = end = 0
    readable = range(log.min_offset, log.durable + 1)
    for position, size, tag_code in ENTRY.iter_unpack(data):
        if count and (count >= wanted or total + size > max_bytes):
            break
        offset += 1
        if position < skip_until or (matches is not None and not matches(tag_code)):
            continue
        if position not in readable or position + size not in readable:
            if not count:
                status = GetStatus.MESSAGE_WAS_REMOVING
            skip_until = log.next_segment(position)
            continue
        if record_filter is not None and not record_filter(RecordView(log.read_raw(position, size))):
            continue
        count += 1
        total += size
        if position != end:
            if count > 1:
                stretches.append((start, end))
            start = position
        end = position + size
    if not count:
        return GetResult(status, offset, queue.min_offset, queue.max_offset, [], 0, 0)
    stretches.append((start, end))
    parts = [log.read_raw(start, end - start) for start, end in stretches]
    return GetResult(GetStatus.FOUND, offset, queue.min_offset, queue.max_offset, parts, count, total)


def read_record(log: CommitLog, position: int) -> bytes | memoryview | None:
    """The record that starts at a position; None if none does."""
    head = log.read(position, _START.size)
    if head is None:
        return None
    record = log.read(position, max(0, _START.unpack(head)[0]))
    if not record or check_record(record, 0, len(record), crc=False) <= 0:
        return None
    return record if RecordView(record).physical_offset == position else None
