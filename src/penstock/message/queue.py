"""One queue of a topic on one broker."""

from __future__ import annotations

from typing import NamedTuple

from penstock.message.hashing import java_hash


class MessageQueue(NamedTuple):
    """Sorts in the protocol's order, which all members of a group must share to divide queues alike.

    (The protocol compares UTF-16 units; that differs from Python only for broker names with characters
    beyond U+FFFF.)
    """

    topic: str
    broker_name: str
    queue_id: int

    def java_hash(self) -> int:
        """The hash by which other clients place this queue."""
        value = 31 * (31 * (31 + java_hash(self.broker_name)) + self.queue_id) + java_hash(self.topic)
        return (value + 0x8000_0000 & 0xFFFF_FFFF) - 0x8000_0000
