"""Headers of sending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from msgspec import field

from penstock.wire.headers.base import I32, I64, HeaderStruct, RpcHeader

_quote = msgspec.json.Encoder().encode


class SendHeader(HeaderStruct):
    """SEND_MESSAGE and SEND_REPLY_MESSAGE: long names."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False
    broker_name: str | None = field(default=None, name="bname")


class SendHeaderV2(HeaderStruct):
    """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and SEND_REPLY_MESSAGE_V2: the same fields under letters."""

    long_names: ClassVar[Mapping[str, str]] = {
        "a": "producerGroup",
        "b": "topic",
        "c": "defaultTopic",
        "d": "defaultTopicQueueNums",
        "e": "queueId",
        "f": "sysFlag",
        "g": "bornTimestamp",
        "h": "flag",
        "i": "properties",
        "j": "reconsumeTimes",
        "k": "unitMode",
        "l": "maxReconsumeTimes",
        "m": "batch",
        "n": "brokerName",
    }

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: I32 = field(name="d")
    queue_id: I32 = field(name="e")
    sys_flag: I32 = field(name="f")
    born_timestamp: I64 = field(name="g")
    flag: I32 = field(name="h")
    properties: str | None = field(default=None, name="i")
    reconsume_times: I32 = field(default=0, name="j")
    unit_mode: bool = field(default=False, name="k")
    max_reconsume_times: I32 | None = field(default=None, name="l")
    batch: bool = field(default=False, name="m")
    broker_name: str | None = field(default=None, name="n")

    def json_ext(self) -> bytes:
        properties = self.properties
        most = self.max_reconsume_times
        broker = self.broker_name
        return (
            b'{"a":%b,"b":%b,"c":%b,"d":"%d","e":"%d","f":"%d","g":"%d","h":"%d"%b,"j":"%d","k":"%b"%b,"m":"%b"%b}'
            % (
                _quote(self.producer_group),
                _quote(self.topic),
                _quote(self.default_topic),
                self.default_topic_queue_nums,
                self.queue_id,
                self.sys_flag,
                self.born_timestamp,
                self.flag,
                b"" if properties is None else b',"i":' + _quote(properties),
                self.reconsume_times,
                b"true" if self.unit_mode else b"false",
                b"" if most is None else b',"l":"%d"' % most,
                b"true" if self.batch else b"false",
                b"" if broker is None else b',"n":' + _quote(broker),
            )
        )


class SendResponseHeader(HeaderStruct):
    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str = field(default="DefaultRegion", name="MSG_REGION")
    trace_on: bool = field(default=True, name="TRACE_ON")

    def json_ext(self) -> bytes:
        if self.batch_uniq_id is not None or self.recall_handle is not None:
            return super().json_ext()
        transaction_id = self.transaction_id
        return b'{"msgId":%b,"queueId":"%d","queueOffset":"%d"%b,"MSG_REGION":%b,"TRACE_ON":"%b"}' % (
            _quote(self.msg_id),
            self.queue_id,
            self.queue_offset,
            b"" if transaction_id is None else b',"transactionId":' + _quote(transaction_id),
            _quote(self.region),
            b"true" if self.trace_on else b"false",
        )


class ConsumerSendMsgBackHeader(RpcHeader):
    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


class EndTransactionHeader(RpcHeader):
    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionStateHeader(RpcHeader):
    tran_state_table_offset: I64
    commit_log_offset: I64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class PushReplyMessageToClientHeader(RpcHeader):
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    born_host: str
    store_host: str
    store_timestamp: I64
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool = False


class RecallMessageHeader(RpcHeader):
    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponseHeader(HeaderStruct):
    msg_id: str
    region: str = field(default="DefaultRegion", name="MSG_REGION")
