"""What the store hands out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from penstock.message.hashing import Key
from penstock.store.consume_queue import ENTRY, ConsumeQueue


class Arrival(NamedTuple):
    """Records of one queue, side by side in the log, that have become visible together: one, or a batch.

    The fields after `store_ms` are the store's own.
    """

    queue: ConsumeQueue
    queue_offset: int
    """Of the first."""
    shown: int
    """How many they are; 0 for a prepared or rolled-back half of a transaction: no queue shows it."""
    store_ms: int
    physical_offset: int
    """Of the first."""
    size: int
    """Of all together."""
    entries: bytes
    """For the consume queue, one behind the other."""
    keys: Sequence[Key]
    """What to index."""
    key_positions: Sequence[int] | None
    """Where the record of each key is; None if that is `physical_offset`."""

    @property
    def topic(self) -> str:
        return self.queue.topic

    @property
    def queue_id(self) -> int:
        return self.queue.queue_id

    def messages(self) -> list[ArrivedMessage]:
        """For who waits for one of them."""
        return [
            ArrivedMessage(offset, physical_offset, tag_code)
            for offset, (physical_offset, _, tag_code) in enumerate(
                ENTRY.iter_unpack(self.entries), self.queue_offset
            )
        ]


class ArrivedMessage(NamedTuple):
    queue_offset: int
    physical_offset: int
    tag_code: int


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
