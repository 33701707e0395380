"""A popped message: the record, and the lease under which this consumer has it."""

from __future__ import annotations

import asyncio
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
    topic = asked.topic
    with_retries = any(not key.startswith(NORMAL) for key in result.start_offsets)
    # A light queue is one queue, wherever its messages are stored.
    light = topic.startswith(LMQ_PREFIX)
    deadline = received + result.invisible_ms / 1000
    places: dict[tuple[str, int], _Place] = {}
    messages = []
    flag, given = NORMAL, None
    for record in result.records():
        if with_retries:
            given = _given_handle(record, asked.broker_name)
            flag = retry_flag(record.topic) if given is None else given.retry_flag
        queue_id = 0 if light and flag == NORMAL else record.queue_id
        place = places.get((flag, queue_id))
        if place is None:
            queue = MessageQueue(real_topic(topic, group, flag), asked.broker_name, queue_id)
            place = places[flag, queue_id] = _Place(result, flag, queue, record.queue_offset)
        handle = given or place.next_handle(record.queue_offset)
        message = PoppedMessage(record, place.info, topic, handle)
        message.deadline = deadline
        if result.order_counts:
            count = result.order_counts.get(f"{flag}@qo{queue_id}%{handle.offset}")
            if count is None:
                count = result.order_counts.get(f"{flag}@{queue_id}", 0)
            message.reconsume_times = max(count, message.reconsume_times)
        messages.append(message)
    return messages


def _given_handle(record: RecordView, broker_name: str) -> Handle | None:
    """Retries that the broker shows under their normal topic come with their handle."""
    text = record.find(Key.POP_CK)
    try:
        return parse_handle(text) if text is not None else None
    except InvalidArgument as error:
        raise CorruptRecord(f"a message from {broker_name} has a bad handle: {error}") from None


class _Place:
    """One queue of an answer. Its offsets are told in the header, in the order of its messages."""

    __slots__ = ("info", "offsets", "pattern")

    def __init__(self, result: PopResult, flag: str, queue: MessageQueue, first_offset: int) -> None:
        key = f"{flag}@{queue.queue_id}"
        self.info = PullInfo(queue, 0, 0)
        self.offsets = iter(result.message_offsets.get(key, ()))
        self.pattern = (
            result.start_offsets.get(key, first_offset),
            result.pop_ms,
            result.invisible_ms,
            result.revive_queue_id,
            flag,
            queue.broker_name,
            queue.queue_id,
        )

    def next_handle(self, stored_offset: int) -> Handle:
        return Handle(*self.pattern, next(self.offsets, stored_offset))
