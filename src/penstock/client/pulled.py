"""A message as a consumer holds it: the record, its queue, and what the client notes on it."""

from __future__ import annotations

import time

from penstock.message.model import ReceivedMessage
from penstock.message.properties import Key
from penstock.message.queue import MessageQueue
from penstock.message.record import RecordView


class PullInfo:
    """What the messages of one pull have in common."""

    __slots__ = ("max_offset", "min_offset", "queue")

    def __init__(self, queue: MessageQueue, min_offset: int, max_offset: int) -> None:
        self.queue = queue
        self.min_offset = min_offset
        self.max_offset = max_offset


class PulledMessage(ReceivedMessage):
    """`started` is the monotonic time when a listener got it, 0 before."""

    __slots__ = ("pull", "started")

    def __init__(self, record: RecordView, pull: PullInfo) -> None:
        # The base class would decode what is already known; this runs once for every message consumed.
        self.record = record
        self.reconsume_times = record.reconsume_times
        self._shown_topic = pull.queue.topic
        self._plain_body = None
        self._read_properties = None
        self.pull = pull
        self.started = 0.0

    @property
    def queue(self) -> MessageQueue:
        return self.pull.queue

    @property
    def broker_name(self) -> str:  # type: ignore[override]  # nobody gives a received message another broker
        return self.pull.queue.broker_name

    @property
    def properties(self) -> dict[str, str]:
        properties = self._read_properties
        if properties is None:
            properties = self._read_properties = self.record.properties
            properties[Key.MIN_OFFSET] = str(self.pull.min_offset)
            properties[Key.MAX_OFFSET] = str(self.pull.max_offset)
        self._note_start(properties)
        return properties

    def _note_start(self, properties: dict[str, str]) -> None:
        if self.started and Key.CONSUME_START_TIME not in properties:
            ago = time.monotonic() - self.started
            properties[Key.CONSUME_START_TIME] = str(int((time.time() - ago) * 1000))

    @property
    def min_offset(self) -> int:
        """Lowest offset of the queue when the message was pulled."""
        return self.pull.min_offset

    @property
    def max_offset(self) -> int:
        return self.pull.max_offset


CLIENT_LOCAL = (Key.MIN_OFFSET, Key.MAX_OFFSET, Key.CONSUME_START_TIME)
"""Properties that mean something only to the client that noted them."""
