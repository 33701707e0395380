"""One typed method for each POP request that clients send, to an address the caller chose.

Like BrokerApi: no caching, no retries, no choice of broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from penstock.client.api import checked, server_error
from penstock.client.remoting import Remoting
from penstock.errors import BadHeader, CorruptRecord, InvalidArgument
from penstock.message.batch import split_messages
from penstock.message.handles import (
    Handle,
    parse_message_offsets,
    parse_order_counts,
    parse_start_offsets,
)
from penstock.message.record import RecordView
from penstock.wire import headers
from penstock.wire.bodies import (
    BatchAck,
    BatchAckMessageRequestBody,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command

ASSIGNMENT_TIMEOUT_MS: Final = 3_000
LEASE_TIMEOUT_MS: Final = 3_000
POLL_MARGIN_MS: Final = 10_000
"""How much longer than its poll time a request may take."""


class PopStatus(Enum):
    FOUND = "found"
    NOT_FOUND = "not found"
    POLLING_FULL = "polling full"


_STATUS: Final = {
    int(ResponseCode.SUCCESS): PopStatus.FOUND,
    int(ResponseCode.POLLING_FULL): PopStatus.POLLING_FULL,
    int(ResponseCode.POLLING_TIMEOUT): PopStatus.NOT_FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PopStatus.NOT_FOUND,
}


class PopResult(NamedTuple):
    """The offset tables are by `flag@queueId`, as in the answer."""

    status: PopStatus
    pop_ms: int
    invisible_ms: int
    revive_queue_id: int
    rest: int
    """What the broker has left, as far as it looked."""
    start_offsets: dict[str, int]
    message_offsets: dict[str, list[int]]
    order_counts: dict[str, int]
    body: bytes

    def records(self) -> list[RecordView]:
        return split_messages(self.body)


NOTHING_POPPED: Final = PopResult(PopStatus.NOT_FOUND, 0, 0, 0, 0, {}, {}, {}, b"")


def parse_pop(response: Command, address: str) -> PopResult:
    """Raises ServerError for any code that is not one of the pop statuses."""
    status = _STATUS.get(response.code)
    if status is None:
        raise server_error(response, address)
    if status is not PopStatus.FOUND:
        return NOTHING_POPPED._replace(status=status)
    try:
        header = response.header(headers.PopResponseHeader)
        return PopResult(
            status,
            header.pop_time,
            header.invisible_time,
            header.revive_qid,
            header.rest_num,
            parse_start_offsets(header.start_offset_info),
            parse_message_offsets(header.msg_offset_info),
            parse_order_counts(header.order_count_info),
            response.body or b"",
        )
    except (BadHeader, InvalidArgument) as error:
        raise CorruptRecord(f"{address}: pop response that cannot be read: {error}") from None


class PopApi:
    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting

    async def query_assignment(
        self, address: str, *, topic: str, group: str, client_id: str, strategy: str, message_model: str
    ) -> list[MessageQueueAssignment] | None:
        """None where the broker has no good answer: what is assigned stays assigned."""
        body = QueryAssignmentRequestBody(
            topic=topic,
            consumer_group=group,
            client_id=client_id,
            strategy_name=strategy,
            message_model=message_model,
        )
        response = await self._remoting.request(
            address, RequestCode.QUERY_ASSIGNMENT, None, body.encode(), ASSIGNMENT_TIMEOUT_MS
        )
        answer = QueryAssignmentResponseBody.decode(checked(response, address).body or b"{}")
        return answer.message_queue_assignments

    async def pop(self, address: str, header: headers.PopHeader) -> PopResult:
        response = await self._remoting.request(
            address, RequestCode.POP_MESSAGE, header, timeout_ms=header.poll_time + POLL_MARGIN_MS
        )
        return parse_pop(response, address)

    async def notification(self, address: str, header: headers.NotificationHeader) -> bool:
        """Whether a pop would find something now; waits for it as long as the header says."""
        response = await self._remoting.request(
            address, RequestCode.NOTIFICATION, header, timeout_ms=header.poll_time + POLL_MARGIN_MS
        )
        return checked(response, address).header(headers.NotificationResponseHeader).has_msg

    async def ack(self, address: str, group: str, topic: str, handle: Handle) -> None:
        """`topic` is the normal one, here and below: the handle knows whether it was a retry."""
        header = headers.AckMessageHeader(
            consumer_group=group,
            topic=handle.real_topic(topic, group),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.offset,
            broker_name=handle.broker_name,
        )
        response = await self._remoting.request(
            address, RequestCode.ACK_MESSAGE, header, timeout_ms=LEASE_TIMEOUT_MS
        )
        checked(response, address)

    async def batch_ack(self, address: str, group: str, acks: Iterable[tuple[str, Handle]]) -> None:
        """Of (topic, handle) pairs of one broker."""
        body = batch_of(group, acks)
        response = await self._remoting.request(
            address, RequestCode.BATCH_ACK_MESSAGE, None, body.encode(), LEASE_TIMEOUT_MS
        )
        checked(response, address)

    async def change_invisible(
        self, address: str, group: str, topic: str, handle: Handle, invisible_ms: int, *, suspend: bool
    ) -> Handle:
        """The handle that counts from now on. `suspend`: when the message comes again, that is no attempt."""
        header = headers.ChangeMessageInvisibletimeHeader(
            consumer_group=group,
            topic=handle.real_topic(topic, group),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.offset,
            invisible_time=invisible_ms,
            suspend=suspend,
            broker_name=handle.broker_name,
        )
        response = await self._remoting.request(
            address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, timeout_ms=LEASE_TIMEOUT_MS
        )
        changed = checked(response, address).header(headers.ChangeMessageInvisibletimeResponseHeader)
        return handle._replace(
            start_offset=handle.offset,
            pop_ms=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue_id=changed.revive_qid,
        )


def batch_of(group: str, acks: Iterable[tuple[str, Handle]]) -> BatchAckMessageRequestBody:
    """Handles of one popped batch become one entry with a bit for each message."""
    broker_name = ""
    bits: dict[tuple[object, ...], int] = {}
    firsts: dict[tuple[object, ...], tuple[str, Handle]] = {}
    for topic, handle in acks:
        batch = (topic, *handle[:-1])  # everything but the offset
        firsts.setdefault(batch, (topic, handle))
        bits[batch] = bits.get(batch, 0) | 1 << handle.offset - handle.start_offset
    entries = []
    for mask, (topic, handle) in zip(bits.values(), firsts.values(), strict=True):
        broker_name = handle.broker_name
        entries.append(
            BatchAck(
                consumer_group=group,
                topic=topic,
                retry=handle.retry_flag,
                start_offset=handle.start_offset,
                queue_id=handle.queue_id,
                revive_queue_id=handle.revive_queue_id,
                pop_time=handle.pop_ms,
                invisible_time=handle.invisible_ms,
                bit_set=mask.to_bytes((mask.bit_length() + 7) // 8, "little"),
            )
        )
    return BatchAckMessageRequestBody(broker_name, entries)
