"""Walking the log record by record: to find where valid data ends, and to see what is there."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.errors import StoreDamaged
from penstock.message.record import MAGIC_BLANK, MAGIC_V2, RECORD_HEAD, check_record
from penstock.message.sysflag import HOSTS_V6
from penstock.store.commit_log import BLANK, V6_EXTRA_BYTES, CommitLog, segment_path
from penstock.store.search import store_ms_at

_PHYSICAL_OFFSET: Final = struct.Struct(">28xq")
_FIELDS: Final = struct.Struct(">12xi4xq8xi16xq20xi")
"""Queue id, queue offset, sysFlag, store ms and body length of a record with IPv4 hosts."""


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


class FoundRecord(NamedTuple):
    """What queues and index need of a record."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    properties: bytes


def records(log: CommitLog, start: int, end: int) -> Iterator[FoundRecord]:
    """The records of a stretch that is known to be valid. There can be millions, so this reads only what it
    must."""
    topics: dict[bytes, str] = {}
    position = start
    while position < end:
        base = position - position % log.file_size
        segment = log.read_raw(base, min(log.file_size, end - base))
        at = position - base
        while at + BLANK.size <= len(segment):
            size, magic = BLANK.unpack_from(segment, at)
            if magic == MAGIC_BLANK:
                break
            queue_id, queue_offset, sys_flag, store_ms, body_size = _FIELDS.unpack_from(segment, at)
            body_at = at + RECORD_HEAD.size
            if sys_flag & HOSTS_V6:
                store_ms = store_ms_at(segment, at)
                body_at += V6_EXTRA_BYTES * (sys_flag & HOSTS_V6).bit_count()
                body_size = int.from_bytes(segment[body_at - 4 : body_at], "big")
            topic_at = body_at + body_size + 1
            topic_size = segment[topic_at - 1]
            if magic == MAGIC_V2:
                topic_size = topic_size << 8 | segment[topic_at]
                topic_at += 1
            name = bytes(segment[topic_at : topic_at + topic_size])
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = name.decode(errors="replace")
            properties = bytes(segment[topic_at + topic_size + 2 : at + size])
            yield FoundRecord(base + at, size, topic, queue_id, queue_offset, sys_flag, store_ms, properties)
            at += size
        position = base + log.file_size
