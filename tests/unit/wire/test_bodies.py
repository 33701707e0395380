from __future__ import annotations

import struct
import zlib

import pytest

from penstock.message.queue import MessageQueue
from penstock.wire.bodies import (
    BatchAck,
    BatchAckMessageRequestBody,
    Body,
    BrokerData,
    ClusterInfo,
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    HeartbeatData,
    LockBatchRequestBody,
    QueueData,
    RegisterBrokerBody,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
    TopicQueueMappingInfo,
    TopicRouteData,
    TopicStatsTable,
    UserInfo,
    topic_offsets,
)
from penstock.wire.dialect import DialectError, dumps

HEARTBEAT = (
    b'{"clientID":"1.2.3.4@55#66","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":'
    b'[{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG",'
    b'"subString":"TagA || TagB","subVersion":1794781418649,"tagsSet":["TagA","TagB"],"topic":"T"}],'
    b'"unitMode":false}],'
    b'"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"PG"}],"withoutSub":false}'
)


def test_the_documented_heartbeat_is_read_and_written() -> None:
    body = HeartbeatData.decode(HEARTBEAT)
    assert body.client_id == "1.2.3.4@55#66"
    assert body.consumer_data_set[0].subscription_data_set[0].tags_set == ["TagA", "TagB"]
    assert body.encode() == HEARTBEAT


def test_routes_are_written_in_both_dialects() -> None:
    route = TopicRouteData(
        queue_datas=[QueueData("b-a", 4, 4, 6)],
        broker_datas=[BrokerData("C", "b-a", {1: "1.1.1.2:10911", 0: "1.1.1.1:10911"})],
    )
    strict = (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"1.1.1.1:10911","1":"1.1.1.2:10911"},"brokerName":"b-a","cluster":"C",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b-a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    assert route.encode(strict=True) == strict
    assert route.encode() == strict.replace(b'"0":', b"0:").replace(b'"1":', b"1:")
    assert TopicRouteData.decode(route.encode()) == TopicRouteData.decode(strict) == route


def test_strict_text_is_escaped() -> None:
    info = ClusterInfo(cluster_addr_table={"中/": ["b"]})
    assert b'{"\\u4E2D\\/":["b"]}' in info.encode(strict=True)
    assert ClusterInfo.decode(info.encode(strict=True)) == info


def test_integer_keys_may_be_bare_or_quoted() -> None:
    bare = b'{"offsetTable":{"T@G":{0:5,1:6}},"unknown":1}'
    quoted = b'{"offsetTable":{"T@G":{"0":5,"1":"6"}}}'
    for data in (bare, quoted):
        assert ConsumerOffsetSerializeWrapper.decode(data).offset_table == {"T@G": {0: 5, 1: 6}}


def test_queues_are_keys_and_values() -> None:
    queue = MessageQueue("T", "b", 3)
    body = ResetOffsetBody({queue: 17})
    assert body.encode() == b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:17}}'
    assert ResetOffsetBody.decode(body.encode()) == body
    lock = LockBatchRequestBody("g", "c", mq_set=[queue])
    assert LockBatchRequestBody.decode(lock.encode()) == lock


def test_missing_and_null_members_take_their_default() -> None:
    config = SubscriptionGroupConfig.decode(
        b'{"groupName":"g","retryMaxTimes":null,"attributes":null,"zzz":{"a":[1]}}'
    )
    assert config == SubscriptionGroupConfig("g")
    assert config.encode() == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
        b'"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g",'
        b'"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,'
        b'"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
    )


def test_references_inside_plain_json_are_resolved() -> None:
    body = RegisterBrokerBody.decode(
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":{"topicName":"A","attributes":{"k":"v"}},'
        b'"B":{"topicName":"B","attributes":{"$ref":"$.topicConfigSerializeWrapper.topicConfigTable.A.attributes"}}}}}'
    )
    assert body.topic_config_serialize_wrapper.topic_config_table["B"].attributes == {"k": "v"}


@pytest.mark.parametrize(
    "data",
    [None, b"", b"x", b"[]", b"{}", b'{"topicName":["T"]}', b'{"topicName":"T","perm":"x"}', b"[" * 10_000],
)
def test_a_body_that_is_not_one_is_refused(data: bytes | None) -> None:
    with pytest.raises(DialectError):
        TopicConfig.decode(data)


def test_an_array_of_bodies_is_read() -> None:
    users = [UserInfo("a", user_type="Super"), UserInfo("b")]
    assert UserInfo.decode_list(dumps(users)) == users


def test_the_next_data_version_counts_and_takes_the_time() -> None:
    assert DataVersion(2, 10, 5).next(99) == DataVersion(2, 99, 6)


def test_acks_are_read_by_their_short_and_long_names() -> None:
    ack = BatchAck("CG", "T", "0", 100, 1, 2, 3, 60_000, b"\x01\x02")
    body = BatchAckMessageRequestBody("b-a", [ack])
    short = (
        b'{"acks":[{"b":"AQI=","c":"CG","it":60000,"pt":3,"q":1,"r":"0","rq":2,"so":100,"t":"T"}],'
        b'"brokerName":"b-a"}'
    )
    assert body.encode() == short
    assert BatchAckMessageRequestBody.decode(short) == body
    long = (
        b'{"acks":[{"bitSet":"AQI=","consumerGroup":"CG","invisibleTime":60000,"popTime":3,"queueId":1,"retry":"0",'
        b'"reviveQueueId":2,"startOffset":100,"topic":"T"}],"brokerName":"b-a"}'
    )
    assert BatchAckMessageRequestBody.decode(long) == body
    with pytest.raises(DialectError):
        BatchAckMessageRequestBody.decode(b'{"acks":[{"c":"CG"}]}')
    with pytest.raises(DialectError):
        BatchAckMessageRequestBody.decode(b'{"acks":[7]}')


# ---- compressed registration ---------------------------------------------------------------------------


def registration() -> RegisterBrokerBody:
    body = RegisterBrokerBody(filter_server_list=["1.1.1.1:1"])
    wrapper = body.topic_config_serialize_wrapper
    wrapper.data_version = DataVersion(1, 2, 3)
    wrapper.topic_config_table = {
        "A": TopicConfig("A", 4, 8, 6, attributes={"message.type": "FIFO"}),
        "%RETRY%g": TopicConfig("%RETRY%g", 1, 1, 6),
    }
    wrapper.topic_queue_mapping_info_map = {"S": TopicQueueMappingInfo("S", bname="b", curr_id_map={0: 1})}
    return body


@pytest.mark.parametrize("compressed", [True, False])
def test_a_registration_is_read_in_either_form_without_being_told(compressed: bool) -> None:
    body = registration()
    data = body.encode_compressed() if compressed else body.encode()
    assert (data[:1] == b"\x78") is compressed
    assert RegisterBrokerBody.decode(data) == body


def block(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def test_a_registration_of_an_old_broker_has_no_mappings_and_maybe_no_attributes() -> None:
    content = block(b'{"counter":1}') + struct.pack(">i", 1) + block(b"T 1 2 6 SINGLE_TAG") + block(b"[]")
    wrapper = RegisterBrokerBody.decode(zlib.compress(content)).topic_config_serialize_wrapper
    assert wrapper.topic_config_table == {"T": TopicConfig("T", 1, 2, 6)}
    assert wrapper.data_version.counter == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x78\x9cjunk",
        zlib.compress(block(b"{}"))[:-2],
        zlib.compress(b""),
        zlib.compress(block(b"{}") + struct.pack(">i", 5)),
        zlib.compress(block(b"{}") + struct.pack(">ii", 1, -1)),
        zlib.compress(block(b"{}") + struct.pack(">i", 1) + block(b"T 1 2")),
        zlib.compress(block(b"{}") + struct.pack(">i", 1) + block(b"T 1 2 x SINGLE_TAG")),
        zlib.compress(block(b"{}") + struct.pack(">i", 1) + block(b"\xff 1 2 6 SINGLE_TAG")),
        zlib.compress(block(b"{}") + struct.pack(">i", 1) + block(b"T 1 2 6 SINGLE_TAG [1]")),
        zlib.compress(bytes(70 * 1024 * 1024), 1),
    ],
)
def test_a_broken_compressed_registration_is_refused(data: bytes) -> None:
    with pytest.raises(DialectError):
        RegisterBrokerBody.decode(data)


@pytest.mark.parametrize("strict", [False, True])
def test_bounds_of_a_topic_are_written_as_any_other_body_is(strict: bool) -> None:
    table = TopicStatsTable(topic_put_tps=1.5)
    assert table.encode(strict=strict) == Body.encode(table, strict=strict)
    for topic, broker_name, number in (('b/ü"', "x", 1), ("a", "y", 10), ("a", "y", 9), ("a", "x{}", 9)):
        queue = MessageQueue(topic, broker_name, number)
        table.offset_table[queue] = TopicOffset(number, 100 + number, 1_700_000_000_000)
    assert table.encode(strict=strict) == Body.encode(table, strict=strict)


def test_bounds_of_a_topic_are_read_alike_in_both_ways() -> None:
    table = TopicStatsTable()
    for number in range(30):
        queue = MessageQueue("orders", "broker-a", number)
        table.offset_table[queue] = TopicOffset(number, 100 + number, 1_700_000_000_000)
    assert topic_offsets(table.encode()) == TopicStatsTable.decode(table.encode()).offset_table
    assert topic_offsets(table.encode()) == table.offset_table
    # Names that no server should have, and other orders of members, are read the slow way or the quick one.
    odd = b'{"offsetTable":{{"topic":"t","queueId":1,"brokerName":"a{b}"}:{"minOffset":3,"maxOffset":4}}}'
    assert topic_offsets(odd) == {MessageQueue("t", "a{b}", 1): TopicOffset(3, 4, 0)}
    assert topic_offsets(b'{"offsetTable":{}}') == {}
