"""One typed method for each request that clients send, to an address the caller chose.

No caching, no retries, no choice of broker: those belong to the client instance. Errors are ServerError
for an answer with an error code, and the remoting errors where there was no answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from penstock.client.remoting import Body, Remoting
from penstock.errors import BadHeader, CorruptRecord, ServerError
from penstock.message.batch import split_messages
from penstock.message.queue import MessageQueue
from penstock.message.record import RecordView, split_records
from penstock.wire import headers
from penstock.wire.bodies import (
    CheckClientRequestBody,
    ClusterInfo,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
    TopicOffset,
    TopicRouteData,
    UnlockBatchRequestBody,
    topic_offsets,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command

OFFSET_TIMEOUT_MS: Final = 5_000
QUEUE_TIMEOUT_MS: Final = 6_000
LOCK_TIMEOUT_MS: Final = 1_000
SEND_BACK_TIMEOUT_MS: Final = 5_000

RETRIABLE_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Answers after which another broker may do better."""


class PullFlag:
    """Bits of a pull's sysFlag."""

    COMMIT_OFFSET: Final = 1
    SUSPEND: Final = 2
    SUBSCRIPTION: Final = 4
    CLASS_FILTER: Final = 8
    LITE: Final = 16


class PullStatus(Enum):
    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_PULL_STATUS: Final = {int(status.value): status for status in PullStatus}


class PullResult(NamedTuple):
    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    body: bytes
    """Stored records back to back; empty unless messages were found."""

    def records(self) -> list[RecordView]:
        """The messages of the body, batches that are stored as one record taken apart."""
        return split_messages(self.body)


def checked(response: Command, address: str) -> Command:
    """The response, if it says SUCCESS."""
    if response.code != ResponseCode.SUCCESS:
        raise server_error(response, address)
    return response


def server_error(response: Command, address: str) -> ServerError:
    return ServerError(
        response.code, response.remark, address=address, retriable=response.code in RETRIABLE_CODES
    )


def parse_pull(response: Command, address: str) -> PullResult:
    """Raises ServerError for any code that is not one of the four pull statuses."""
    status = _PULL_STATUS.get(response.code)
    if status is None:
        raise server_error(response, address)
    try:
        header = response.header(headers.PullResponseHeader)
    except BadHeader as error:
        raise CorruptRecord(f"{address}: pull response without offsets: {error}") from None
    return PullResult(
        status,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
        response.body or b"",
    )


def vip_address(address: str) -> str:
    """The broker's second port, which serves everything but pulls."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 2}"


class BrokerApi:
    """`vip`: requests that may take the broker's second port do so."""

    def __init__(self, remoting: Remoting, *, timeout_ms: int = 3_000, vip: bool = False) -> None:
        self.remoting = remoting
        self._timeout_ms = timeout_ms
        self._vip = vip

    def _side(self, address: str) -> str:
        return vip_address(address) if self._vip else address

    async def _call(
        self,
        address: str,
        code: int,
        header: headers.HeaderStruct | None,
        body: Body = b"",
        timeout_ms: int = 0,
    ) -> Command:
        response = await self.remoting.request(address, code, header, body, timeout_ms or self._timeout_ms)
        return checked(response, address)

    # ---- name server --------------------------------------------------------------------------------

    async def topic_route(self, topic: str) -> TopicRouteData | None:
        """None if the name server knows no broker with this topic."""
        response = await self.remoting.name_server_request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            headers.GetRouteinfoByTopicHeader(topic=topic, accept_standard_json_only=True),
            timeout_ms=self._timeout_ms,
        )
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return TopicRouteData.decode(checked(response, "name server").body or b"{}")

    async def cluster_info(self) -> ClusterInfo:
        response = await self.remoting.name_server_request(
            RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=self._timeout_ms
        )
        return ClusterInfo.decode(checked(response, "name server").body or b"{}")

    # ---- clients and groups -------------------------------------------------------------------------

    async def heartbeat(self, address: str, data: bytes | HeartbeatData) -> int:
        """The broker's version."""
        body = data if isinstance(data, bytes) else data.encode()
        return (await self._call(address, RequestCode.HEART_BEAT, None, body)).version

    async def unregister_client(
        self,
        address: str,
        client_id: str,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
    ) -> None:
        header = headers.UnregisterClientHeader(
            client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        await self._call(address, RequestCode.UNREGISTER_CLIENT, header)

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        header = headers.GetConsumerListByGroupHeader(consumer_group=group)
        response = await self._call(self._side(address), RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        return GetConsumerListByGroupResponseBody.decode(response.body or b"{}").consumer_id_list

    async def check_client(
        self, address: str, client_id: str, group: str, subscription: SubscriptionData
    ) -> None:
        """Raises if the broker cannot serve the subscription, e.g. because SQL92 is off."""
        body = CheckClientRequestBody(client_id=client_id, group=group, subscription_data=subscription)
        await self._call(self._side(address), RequestCode.CHECK_CLIENT_CONFIG, None, body.encode())

    async def lock_queues(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> set[MessageQueue]:
        """The queues that are locked for this client now."""
        body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=list(queues))
        response = await self._call(
            self._side(address), RequestCode.LOCK_BATCH_MQ, None, body.encode(), LOCK_TIMEOUT_MS
        )
        return set(LockBatchResponseBody.decode(response.body or b"{}").lock_ok_mq_set)

    async def unlock_queues(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue], *, oneway: bool
    ) -> None:
        body = UnlockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=list(queues)).encode()
        if oneway:
            await self.remoting.oneway(address, RequestCode.UNLOCK_BATCH_MQ, None, body)
        else:
            await self._call(self._side(address), RequestCode.UNLOCK_BATCH_MQ, None, body, LOCK_TIMEOUT_MS)

    # ---- offsets ------------------------------------------------------------------------------------

    async def query_offset(
        self, address: str, group: str, queue: MessageQueue, *, zero_if_not_found: bool | None = None
    ) -> int | None:
        """The group's offset; None if the broker has none."""
        header = headers.QueryConsumerOffsetHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=zero_if_not_found,
            broker_name=queue.broker_name,
        )
        address = self._side(address)
        response = await self.remoting.request(
            address, RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_ms=OFFSET_TIMEOUT_MS
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return checked(response, address).header(headers.QueryConsumerOffsetResponseHeader).offset

    async def update_offset(
        self, address: str, group: str, queue: MessageQueue, offset: int, *, oneway: bool = True
    ) -> None:
        header = headers.UpdateConsumerOffsetHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            broker_name=queue.broker_name,
        )
        address = self._side(address)
        if oneway:
            await self.remoting.oneway(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        else:
            await self._call(
                address, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=OFFSET_TIMEOUT_MS
            )

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        header = headers.GetMaxOffsetHeader(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        response = await self._queue_call(address, RequestCode.GET_MAX_OFFSET, header)
        return response.header(headers.GetMaxOffsetResponseHeader).offset

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        header = headers.GetMinOffsetHeader(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        response = await self._queue_call(address, RequestCode.GET_MIN_OFFSET, header)
        return response.header(headers.GetMinOffsetResponseHeader).offset

    async def topic_offsets(self, address: str, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Bounds of all queues that a broker has of a topic, in one answer."""
        header = headers.GetTopicStatsInfoHeader(topic=topic)
        response = await self._queue_call(address, RequestCode.GET_TOPIC_STATS_INFO, header)
        return topic_offsets(response.body or b"{}")

    async def search_offset(
        self, address: str, queue: MessageQueue, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        header = headers.SearchOffsetByTimestampHeader(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=timestamp_ms,
            boundary_type="UPPER" if upper else "LOWER",
            broker_name=queue.broker_name,
        )
        response = await self._queue_call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return response.header(headers.SearchOffsetByTimestampResponseHeader).offset

    async def earliest_store_time(self, address: str, queue: MessageQueue) -> int:
        """Milliseconds, -1 for an empty queue."""
        header = headers.GetEarliestMsgStoretimeHeader(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        response = await self._queue_call(address, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        return response.header(headers.GetEarliestMsgStoretimeResponseHeader).timestamp

    async def _queue_call(self, address: str, code: int, header: headers.HeaderStruct) -> Command:
        return await self._call(self._side(address), code, header, timeout_ms=QUEUE_TIMEOUT_MS)

    # ---- messages -----------------------------------------------------------------------------------

    async def pull(self, address: str, header: headers.PullHeader, timeout_ms: int) -> PullResult:
        code = RequestCode.LITE_PULL_MESSAGE if header.sys_flag & PullFlag.LITE else RequestCode.PULL_MESSAGE
        response = await self.remoting.request(address, code, header, timeout_ms=timeout_ms)
        return parse_pull(response, address)

    async def send(
        self, address: str, code: int, header: headers.SendHeaderV2, body: Body, timeout_ms: int
    ) -> Command:
        """The raw response: some error codes still mean that the message was stored."""
        return await self.remoting.request(address, code, header, body, timeout_ms)

    async def send_back(
        self,
        address: str,
        *,
        group: str,
        topic: str,
        physical_offset: int,
        message_id: str,
        delay_level: int,
        max_reconsume_times: int,
        broker_name: str,
    ) -> None:
        header = headers.ConsumerSendMsgBackHeader(
            offset=physical_offset,
            group=group,
            delay_level=delay_level,
            origin_msg_id=message_id,
            origin_topic=topic,
            unit_mode=False,
            max_reconsume_times=max_reconsume_times,
            broker_name=broker_name,
        )
        await self._call(
            self._side(address), RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=SEND_BACK_TIMEOUT_MS
        )

    async def view_message(self, address: str, physical_offset: int, topic: str | None = None) -> RecordView:
        header = headers.ViewMessageByIdHeader(offset=physical_offset, topic=topic)
        response = await self._queue_call(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        return RecordView(response.body or b"")

    async def query_message(
        self,
        address: str,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        unique_key: bool = False,
    ) -> list[RecordView]:
        header = headers.QueryMessageHeader(
            topic=topic,
            key=key,
            max_num=max_messages,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=unique_key,
        )
        address = self._side(address)
        response = await self.remoting.request(
            address, RequestCode.QUERY_MESSAGE, header, timeout_ms=3 * QUEUE_TIMEOUT_MS
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        return split_records(checked(response, address).body or b"")
