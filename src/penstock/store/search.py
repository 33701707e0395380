"""Finding an offset by store time."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import Final

from penstock.message.sysflag import BORN_V6
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue

_SYS_FLAG: Final = struct.Struct(">36xi")
_STORE_MS: Final = struct.Struct(">q")
_STORE_MS_AT: Final = 56
_STORE_MS_AT_V6: Final = 68
_NEEDED_BYTES: Final = 76


def record_store_ms(log: CommitLog, position: int) -> int:
    """Store time of the record at a position; -1 if it is not in the log."""
    head = log.read(position, _NEEDED_BYTES)
    return store_ms_at(head, 0) if head is not None else -1


def store_ms_at(buffer: bytes | memoryview, offset: int) -> int:
    v6 = _SYS_FLAG.unpack_from(buffer, offset)[0] & BORN_V6
    value: int = _STORE_MS.unpack_from(buffer, offset + (_STORE_MS_AT_V6 if v6 else _STORE_MS_AT))[0]
    return value


def entry_store_ms(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    entry = queue.entry(offset)
    return record_store_ms(log, entry[0]) if entry is not None else -1


def offset_by_time(log: CommitLog, queue: ConsumeQueue, time_ms: int, *, upper: bool) -> int:
    """The first offset stored at a time or later; with `upper` the last one stored at it or earlier.

    Records that are gone from the log count as older than any time.
    """
    low, high = queue.min_offset, queue.max_offset
    offsets = range(low, high)

    def stored_ms(offset: int) -> int:
        return entry_store_ms(log, queue, offset)

    if upper:
        return max(low, low + bisect_right(offsets, time_ms, key=stored_ms) - 1)
    return low + bisect_left(offsets, time_ms, key=stored_ms)
