from __future__ import annotations

from typing import Any

import pytest

from penstock.message.record import RecordView, split_records
from penstock.wire.bodies import TopicConfig


@pytest.mark.parametrize("code", [13, 37, 324, 370, 200_070, 999_999])
def test_a_request_that_is_not_served_says_so(bench: Any, code: int) -> None:
    answer = bench.ask(code, {})
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_a_request_that_is_not_served_and_oneway_is_not_answered(bench: Any) -> None:
    bench.request(13, {}, oneway=True)
    assert bench.peer.received == []


def test_an_unexpected_error_is_answered_and_logged(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("oops")

    bench.broker.handlers[30] = broken
    answer = bench.ask(30, {})
    assert (answer.code, answer.remark) == (1, "ZeroDivisionError: oops")
    assert "oops" in caplog.text


def test_an_answer_that_nobody_waits_for_is_dropped(bench: Any) -> None:
    from penstock.wire.command import decode_command, encode_command

    frame = encode_command(0, 77, flag=1)
    bench.broker.handle(bench.peer, decode_command(frame[4:]), bench.now_ms)
    assert bench.peer.received == []


def test_registration_lists_all_topics_with_the_brokers_permission(bench: Any) -> None:
    bench.send("T")
    table = bench.broker.registration(bench.now_ms).topic_config_serialize_wrapper.topic_config_table
    expected = {
        "TBW102": 7,
        "T": 6,
        "SELF_TEST_TOPIC": 6,
        "BenchmarkTest": 6,
        "DefaultCluster": 7,
        "broker-a": 7,
        "OFFSET_MOVED_EVENT": 6,
        "SCHEDULE_TOPIC_XXXX": 6,
        "DefaultCluster_REPLY_TOPIC": 6,
        "rmq_sys_REVIVE_LOG_DefaultCluster": 6,
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": 1,
        "RMQ_SYS_TRANS_HALF_TOPIC": 6,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": 6,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": 6,
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": 6,
        "rmq_sys_wheel_timer": 6,
    }
    assert {name: config.perm for name, config in table.items()} == expected
    assert table["BenchmarkTest"].write_queue_nums == 1024
    assert table["SCHEDULE_TOPIC_XXXX"].write_queue_nums == 18
    bench.settings.update("brokerPermission", "4")
    table = bench.broker.registration(bench.now_ms).topic_config_serialize_wrapper.topic_config_table
    assert (table["T"].perm, table["TBW102"].perm) == (4, 4)


def test_without_auto_creation_the_pattern_is_not_registered(bench: Any) -> None:
    bench.settings.update("autoCreateTopicEnable", "false")
    body = bench.broker.registration(bench.now_ms)
    assert "TBW102" not in body.topic_config_serialize_wrapper.topic_config_table
    bench.settings.update("autoCreateTopicEnable", "true")
    assert bench.send("New").code == 0


def test_a_registration_can_carry_only_what_changed(bench: Any) -> None:
    bench.broker.take_registration_changes()
    bench.broker.topics.put(TopicConfig("T"), bench.now_ms)
    changed = bench.broker.take_registration_changes()
    body = bench.broker.registration(bench.now_ms, changed)
    assert list(body.topic_config_serialize_wrapper.topic_config_table) == ["T"]
    version = body.topic_config_serialize_wrapper.data_version
    assert version == bench.broker.topics.data_version


def test_order_topics_of_the_name_server_become_ordered(bench: Any) -> None:
    bench.send("T")
    bench.broker.topics.mark_ordered(["T", "Unknown"], bench.now_ms)
    assert bench.broker.topics.get("T").order


# ---- looking things up ------------------------------------------------------------------------------


def test_a_message_is_found_by_its_place(bench: Any) -> None:
    bench.send("T", b"one")
    sent = bench.send("T", b"two")
    offset = int(sent.ext["msgId"][16:], 16)
    answer = bench.ask(33, {"offset": offset})
    assert (answer.code, bytes(RecordView(answer.body).body)) == (0, b"two")
    for wrong in (offset + 10_000, -1):
        assert bench.ask(33, {"offset": wrong}).code == 1


def test_messages_are_found_by_key_and_time(bench: Any) -> None:
    bench.send("T", b"one", properties="KEYS\x01order-1 order-2\x02")
    bench.now_ms += 60_000
    bench.send("T", b"two", properties="KEYS\x01order-2\x02")
    bench.store.tick(bench.now_ms)

    def bodies(key: str, begin: int, end: int) -> list[bytes]:
        fields = {"topic": "T", "key": key, "maxNum": 32, "beginTimestamp": begin, "endTimestamp": end}
        answer = bench.ask(12, fields)
        assert "indexLastUpdateTimestamp" in answer.ext
        return [bytes(record.body) for record in split_records(answer.body or b"")]

    now = bench.now_ms
    assert bodies("order-2", 0, now + 1) == [b"one", b"two"]
    assert bodies("order-1", 0, now + 1) == [b"one"]
    assert bodies("order-2", now - 1_000, now + 1) == [b"two"]
    assert bodies("order-3", 0, now + 1) == []


def test_the_ends_of_a_queue_are_told(bench: Any) -> None:
    for _ in range(3):
        bench.send("T")
    place = {"topic": "T", "queueId": 0}
    assert bench.ask(30, place).ext == {"offset": "3"}
    assert bench.ask(31, place).ext == {"offset": "0"}
    assert bench.ask(32, place).ext == {"timestamp": str(bench.now_ms)}


def test_the_answer_to_a_key_query_has_a_bound(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        bench.send("T", bytes(1_000), properties="KEYS\x01k\x02")
    bench.store.tick(bench.now_ms)
    fields = {"topic": "T", "key": "k", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": bench.now_ms + 1}
    assert len(split_records(bench.ask(12, fields).body)) == 3
    monkeypatch.setattr("penstock.limits.QUERY_MAX_BYTES", 2_500)
    assert len(split_records(bench.ask(12, fields).body)) == 2
    monkeypatch.setattr("penstock.limits.QUERY_MAX_BYTES", 10)
    assert len(split_records(bench.ask(12, fields).body)) == 1
