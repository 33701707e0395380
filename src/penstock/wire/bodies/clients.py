"""Heartbeats and what clients of a group agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import msgspec
from msgspec import field

from penstock.message.queue import MessageQueue
from penstock.wire import dialect
from penstock.wire.bodies.base import Body, Part
from penstock.wire.dialect import DialectError


class SubscriptionData(Body):
    topic: str = ""
    sub_string: str = "*"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    sub_version: int = 0
    class_filter_mode: bool = False
    expression_type: str = "TAG"


class ProducerData(Part):
    group_name: str


class ConsumerData(Part):
    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class HeartbeatData(Body):
    client_id: str = field(name="clientID")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class CheckClientRequestBody(Body):
    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class GetConsumerListByGroupResponseBody(Body):
    consumer_id_list: list[str] = field(default_factory=list)


class LockBatchRequestBody(Body):
    consumer_group: str
    client_id: str
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(default_factory=list)


class UnlockBatchRequestBody(LockBatchRequestBody):
    """The same members."""


class LockBatchResponseBody(Body):
    lock_ok_mq_set: list[MessageQueue] = field(default_factory=list, name="lockOKMQSet")


class QueryAssignmentRequestBody(Body):
    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str | None = None


class MessageQueueAssignment(Part):
    message_queue: MessageQueue
    mode: str | None = "PULL"
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(Body):
    """Without assignments: keep what you have. With none: drop all."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


class SetMessageRequestModeRequestBody(Body):
    topic: str
    consumer_group: str
    mode: str | None = "PULL"
    pop_share_queue_num: int = 0


class MessageRequestModeSerializeWrapper(Body):
    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = field(
        default_factory=dict
    )


class BatchAck(Part):
    """Acknowledges `start_offset + i` for each bit i of `bit_set` (lowest bit of each byte first)."""

    consumer_group: str = field(name="c")
    topic: str = field(name="t")
    retry: str = field(name="r")
    start_offset: int = field(name="so")
    queue_id: int = field(name="q")
    revive_queue_id: int = field(name="rq")
    pop_time: int = field(name="pt")
    invisible_time: int = field(name="it")
    bit_set: bytes = field(default=b"", name="b")


_LONG_ACK_NAMES: Final[Mapping[str, str]] = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}


class BatchAckMessageRequestBody(Body):
    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)

    @classmethod
    def decode(cls, data: bytes | None) -> Self:
        try:
            return super().decode(data)
        except DialectError:
            return super().decode(_with_short_names(data))


def _with_short_names(data: bytes | None) -> bytes | None:
    """Members of an ack may also come under their long names."""
    body = dialect.loads(data) if data else None
    if not isinstance(body, dict) or not isinstance(body.get("acks"), list):
        return data
    acks = [
        {_LONG_ACK_NAMES.get(key, key): value for key, value in ack.items()} if isinstance(ack, dict) else ack
        for ack in body["acks"]
    ]
    return msgspec.json.encode({"brokerName": body.get("brokerName"), "acks": acks})


class Connection(Part):
    client_id: str
    client_addr: str
    language: str | None = None
    version: int = 0


class ConsumerConnection(Body):
    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProducerConnection(Body):
    connection_set: list[Connection] = field(default_factory=list)


class ProducerInfo(Part):
    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str | None = None
    version: int = 0
    last_update_timestamp: int = 0


class ProducerTableInfo(Body):
    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class ProcessQueueInfo(Part):
    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = field(default=False, name="droped")
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class PopProcessQueueInfo(Part):
    wait_ack_count: int = 0
    dropped: bool = field(default=False, name="droped")
    last_pop_timestamp: int = 0


class ConsumeStatus(Part):
    pull_rt: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: int = 0


class ConsumerRunningInfo(Body):
    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None


class ConsumeMessageDirectlyResult(Body):
    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: int = 0
