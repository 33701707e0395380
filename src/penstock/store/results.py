"""What the store hands out."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from penstock.store.consume_queue import ConsumeQueue


class Arrival(NamedTuple):
    """A record that has become visible. The fields after `store_ms` are the store's own."""

    topic: str
    queue_id: int
    queue_offset: int
    tag_code: int
    store_ms: int
    queue: ConsumeQueue | None
    """None for a prepared or rolled-back half of a transaction: no queue shows it."""
    physical_offset: int
    size: int
    keys: tuple[str, ...] | bytes
    """What to index; from a batch as property bytes, which are taken apart when their turn comes."""


class GetStatus(IntEnum):
    """How a read of a queue ended; the names are the protocol's and are sent to clients."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


class GetResult(msgspec.Struct, frozen=True):
    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    parts: list[bytes | memoryview]
    """Raw records, neighbours merged; joined they are the answer's body."""
    count: int
    bytes: int


class KeyQueryResult(NamedTuple):
    records: list[bytes | memoryview]
    last_ms: int
    """Store time and position of the newest indexed record; 0 while there is none."""
    last_offset: int
