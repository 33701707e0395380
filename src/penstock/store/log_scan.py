"""Walking the log record by record: to find where valid data ends, and to see what is there."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from penstock.errors import StoreDamaged
from penstock.message.record import RecordView, check_record
from penstock.store.commit_log import BLANK, CommitLog, segment_path
from penstock.store.search import store_ms_at

_PHYSICAL_OFFSET: Final = struct.Struct(">28xq")


def find_end(log: CommitLog, start: int) -> tuple[int, int]:
    """Where the unbroken row of valid records from a position on ends, and the store time of the last one
    (0 if there is none)."""
    store_ms = 0
    position = start
    while (base := position - position % log.file_size) in log.starts:
        segment = log.read_raw(base, log.file_size)
        at = position - base
        while at + BLANK.size <= log.file_size:
            size = _valid_size(segment, at, base, log.file_size)
            if size == 0:
                break
            if size < 0:
                return base + at, store_ms
            store_ms = store_ms_at(segment, at)
            at += size
        position = base + log.file_size
    return position, store_ms


def _valid_size(segment: bytes | memoryview, at: int, base: int, limit: int) -> int:
    size = check_record(segment, at, limit, crc=True)
    if size > 0 and _PHYSICAL_OFFSET.unpack_from(segment, at)[0] != base + at:
        return -1
    return size


def first_store_ms(log: CommitLog, start: int) -> int:
    """Store time of a segment's first record; 0 if it is not valid."""
    segment = log.read_raw(start, log.file_size)
    return store_ms_at(segment, 0) if _valid_size(segment, 0, start, log.file_size) > 0 else 0


def check_tail(log: CommitLog, end: int, torn_segments: int) -> None:
    """Only the end of a log can be torn by a crash. Valid data further on means that a file was damaged, and
    cutting there would lose messages that were safe."""
    for start in log.starts:
        if start > end + torn_segments * log.file_size and first_store_ms(log, start):
            path = segment_path(end - end % log.file_size)
            raise StoreDamaged(
                f"{log.disk.name}/{path} is damaged at byte {end % log.file_size}, but {segment_path(start)} "
                f"behind it is sound: restore {path}, or delete it and all commit log files before it "
                f"to go on with the newer messages, or those behind it to go on with the older ones"
            )


def records(log: CommitLog, start: int, end: int) -> Iterator[RecordView]:
    """The records of a stretch that is known to be valid."""
    position = start
    while position < end:
        base = position - position % log.file_size
        segment = log.read_raw(base, min(log.file_size, end - base))
        at = position - base
        while at + BLANK.size <= len(segment):
            size = check_record(segment, at, len(segment), crc=False)
            if size <= 0:
                break
            yield RecordView(segment, at)
            at += size
        position = base + log.file_size
