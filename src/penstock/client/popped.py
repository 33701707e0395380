"""A popped message: the record, and the lease under which this consumer has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.client.pop_api import PopResult
from penstock.client.pulled import PulledMessage, PullInfo
from penstock.errors import CorruptRecord, InvalidArgument
from penstock.message.handles import NORMAL, Handle, parse_handle, real_topic, retry_flag
from penstock.message.names import LMQ_PREFIX
from penstock.message.properties import Key
from penstock.message.queue import MessageQueue
from penstock.message.record import RecordView

if TYPE_CHECKING:
    from penstock.client.pop_queue import PopQueue


class PoppedMessage(PulledMessage):
    """Until `deadline` nobody else gets it. `topic` is the one it was sent to, also for a retry."""

    __slots__ = ("changing", "deadline", "handle", "lost", "pop_queue")

    def __init__(self, record: RecordView, pull: PullInfo, topic: str, handle: Handle) -> None:
        super().__init__(record, pull)
        self._shown_topic = topic
        self.handle = handle
        self.deadline = 0.0
        """When the lease ends, on the event loop's clock."""
        self.lost = False
        """The lease has ended, or was given back: whatever a listener says of the message counts no more."""
        self.changing: asyncio.Task[None] | None = None
        """A request under way that makes a new handle; who wants to ack has to wait for it."""
        self.pop_queue: PopQueue | None = None

    @property
    def receipt_handle(self) -> str:
        """What the broker knows the lease by; a change of the invisible time makes a new one."""
        return str(self.handle)

    @property
    def properties(self) -> dict[str, str]:
        if self._read_properties is None:
            properties = self._read_properties = self.record.properties
            properties.setdefault(Key.FIRST_POP_TIME, str(self.handle.pop_ms))
        properties = self._read_properties
        self._note_start(properties)
        properties[Key.POP_CK] = str(self.handle)
        return properties

    def __repr__(self) -> str:
        return f"<PoppedMessage {self.message_id} of {self._shown_topic}, lease {self.handle}>"


def popped_messages(
    result: PopResult, asked: MessageQueue, group: str, received: float
) -> list[PoppedMessage]:
    """The messages of an answer, with their leases. `asked` is the queue of the request, maybe -1."""
    topic, broker_name = asked.topic, asked.broker_name
    with_retries = any(not key.startswith(NORMAL) for key in result.start_offsets)
    places: dict[str, _Place] = {}
    messages = []
    for record in result.records():
        text = record.find(Key.POP_CK) if with_retries else None
        try:
            given = parse_handle(text) if text is not None else None
        except InvalidArgument as error:
            raise CorruptRecord(f"a message from {broker_name} has a bad handle: {error}") from None
        flag = retry_flag(record.topic) if given is None else given.retry_flag
        queue_id = record.queue_id
        if flag == NORMAL and topic.startswith(LMQ_PREFIX):
            queue_id = 0  # a light queue is one queue, wherever its messages are stored
        key = f"{flag}@{queue_id}"
        place = places.get(key)
        if place is None:
            queue = MessageQueue(real_topic(topic, group, flag), broker_name, queue_id)
            place = places[key] = _Place(result, key, queue, record.queue_offset)
        handle = given or place.next_handle(result, flag, record.queue_offset)
        message = PoppedMessage(record, place.info, topic, handle)
        message.deadline = received + result.invisible_ms / 1000
        if result.order_counts:
            count = result.order_counts.get(f"{flag}@qo{queue_id}%{handle.offset}")
            if count is None:
                count = result.order_counts.get(key, 0)
            message.reconsume_times = max(count, message.reconsume_times)
        messages.append(message)
    return messages


class _Place:
    """One queue of an answer. Its offsets are told in the header, in the order of its messages."""

    __slots__ = ("info", "offsets", "position", "start")

    def __init__(self, result: PopResult, key: str, queue: MessageQueue, first_offset: int) -> None:
        self.info = PullInfo(queue, 0, 0)
        self.start = result.start_offsets.get(key, first_offset)
        self.offsets: Sequence[int] = result.message_offsets.get(key, ())
        self.position = 0

    def next_handle(self, result: PopResult, flag: str, stored_offset: int) -> Handle:
        position = self.position
        self.position += 1
        offset = self.offsets[position] if position < len(self.offsets) else stored_offset
        queue = self.info.queue
        return Handle(
            self.start,
            result.pop_ms,
            result.invisible_ms,
            result.revive_queue_id,
            flag,
            queue.broker_name,
            queue.queue_id,
            offset,
        )
