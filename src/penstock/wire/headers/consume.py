"""Headers of pulling, offsets and consumer coordination."""

from __future__ import annotations

import msgspec
from msgspec import field

from penstock.wire.headers.base import I32, I64, HeaderStruct, RpcHeader

_quote = msgspec.json.Encoder().encode


class PullHeader(RpcHeader):
    """PULL_MESSAGE and LITE_PULL_MESSAGE.

    `bulk` is ours and means nothing to other brokers: the reader takes answers as large as it asks for.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    sub_version: I64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    proxy_forward_client_id: str | None = field(default=None, name="proxyFrowardClientId")
    bulk: bool | None = None

    def json_ext(self) -> bytes:
        if (
            self.bulk is not None
            or self.request_source is not None
            or self.proxy_forward_client_id is not None
        ):
            return super().json_ext()
        broker, expression, kind = self.broker_name, self.subscription, self.expression_type
        most = self.max_msg_bytes
        return (
            b'{"consumerGroup":%b,"topic":%b,"queueId":"%d","queueOffset":"%d","maxMsgNums":"%d","sysFlag":"%d",'
            b'"commitOffset":"%d","suspendTimeoutMillis":"%d","subVersion":"%d"%b%b%b%b}'
            % (
                _quote(self.consumer_group),
                _quote(self.topic),
                self.queue_id,
                self.queue_offset,
                self.max_msg_nums,
                self.sys_flag,
                self.commit_offset,
                self.suspend_timeout_millis,
                self.sub_version,
                b"" if expression is None else b',"subscription":' + _quote(expression),
                b"" if kind is None else b',"expressionType":' + _quote(kind),
                b"" if most is None else b',"maxMsgBytes":"%d"' % most,
                b"" if broker is None else b',"bname":' + _quote(broker),
            )
        )


class PullResponseHeader(HeaderStruct):
    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None

    def json_ext(self) -> bytes:
        if self.offset_delta is not None or self.forbidden_type is not None:
            return super().json_ext()
        topic_flag = self.topic_sys_flag
        group_flag = self.group_sys_flag
        return (
            b'{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"%b%b}'
            % (
                self.suggest_which_broker_id,
                self.next_begin_offset,
                self.min_offset,
                self.max_offset,
                b"" if topic_flag is None else b',"topicSysFlag":"%d"' % topic_flag,
                b"" if group_flag is None else b',"groupSysFlag":"%d"' % group_flag,
            )
        )


class QueryMessageHeader(RpcHeader):
    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    unique_key_query: bool | None = field(default=None, name="_UNIQUE_KEY_QUERY")
    index_type: str | None = None
    last_key: str | None = None


class QueryMessageResponseHeader(HeaderStruct):
    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


class ViewMessageByIdHeader(RpcHeader):
    offset: I64
    topic: str | None = None


class QueryConsumerOffsetHeader(RpcHeader):
    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponseHeader(HeaderStruct):
    offset: I64 | None = None


class UpdateConsumerOffsetHeader(RpcHeader):
    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


class SearchOffsetByTimestampHeader(RpcHeader):
    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None
    lite_topic: str | None = None

    @property
    def is_upper(self) -> bool:
        """Any boundary but "upper", in any case, means the lower one."""
        return self.boundary_type is not None and self.boundary_type.lower() == "upper"


class SearchOffsetByTimestampResponseHeader(HeaderStruct):
    offset: I64


class GetMaxOffsetHeader(RpcHeader):
    topic: str
    queue_id: I32
    committed: bool = True


class GetMaxOffsetResponseHeader(HeaderStruct):
    offset: I64


class GetMinOffsetHeader(RpcHeader):
    topic: str
    queue_id: I32


class GetMinOffsetResponseHeader(HeaderStruct):
    offset: I64


class GetEarliestMsgStoretimeHeader(RpcHeader):
    topic: str
    queue_id: I32


class GetEarliestMsgStoretimeResponseHeader(HeaderStruct):
    timestamp: I64


class HeartBeatResponseHeader(HeaderStruct):
    supports_v2: bool = field(default=True, name="IS_SUPPORT_HEART_BEAT_V2")
    subscription_changed: bool = field(default=False, name="IS_SUB_CHANGE")


class UnregisterClientHeader(RpcHeader):
    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupHeader(RpcHeader):
    consumer_group: str


class NotifyConsumerIdsChangedHeader(RpcHeader):
    consumer_group: str


class ResetConsumerClientOffsetHeader(RpcHeader):
    group: str
    topic: str
    timestamp: I64
    is_force: bool = False
    queue_id: I32 = -1
    offset: I64 | None = None


class GetConsumerStatusFromClientHeader(RpcHeader):
    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoHeader(RpcHeader):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyHeader(RpcHeader):
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    target_broker: str | None = field(default=None, name="brokerName")
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


# ---- POP -----------------------------------------------------------------------------------------------


class PopHeader(RpcHeader):
    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64 = 0
    init_mode: I32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopResponseHeader(HeaderStruct):
    pop_time: I64
    invisible_time: I64
    revive_qid: I32
    rest_num: I64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None

    def json_ext(self) -> bytes:
        if (
            self.order_count_info is not None
            or self.start_offset_info is None
            or self.msg_offset_info is None
        ):
            return super().json_ext()
        return (
            b'{"popTime":"%d","invisibleTime":"%d","reviveQid":"%d","restNum":"%d","startOffsetInfo":%b,'
            b'"msgOffsetInfo":%b}'
            % (
                self.pop_time,
                self.invisible_time,
                self.revive_qid,
                self.rest_num,
                _quote(self.start_offset_info),
                _quote(self.msg_offset_info),
            )
        )


class PeekMessageHeader(RpcHeader):
    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32


class AckMessageHeader(RpcHeader):
    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    lite_topic: str | None = None


class ChangeMessageInvisibletimeHeader(RpcHeader):
    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64
    suspend: bool = False
    lite_topic: str | None = None


class ChangeMessageInvisibletimeResponseHeader(HeaderStruct):
    pop_time: I64
    invisible_time: I64
    revive_qid: I32


class NotificationHeader(RpcHeader):
    consumer_group: str
    topic: str
    queue_id: I32
    poll_time: I64
    born_time: I64
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(HeaderStruct):
    has_msg: bool = False
    polling_full: bool = False


class PollingInfoHeader(RpcHeader):
    consumer_group: str
    topic: str
    queue_id: I32


class PollingInfoResponseHeader(HeaderStruct):
    polling_num: I32
