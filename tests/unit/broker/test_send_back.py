from __future__ import annotations

from typing import Any

from penstock.message.names import SCHEDULE_TOPIC
from penstock.wire.bodies import SubscriptionGroupConfig, TopicConfig


def send_back(bench: Any, offset: int, *, level: int = 0, group: str = "G", **others: Any) -> Any:
    version = others.pop("version", 513)
    fields = {"offset": offset, "group": group, "delayLevel": level, "originMsgId": "x", "originTopic": "y"}
    return bench.ask(36, {**fields, **others}, version=version)


def only(bench: Any, topic: str, queue_id: int = 0) -> Any:
    (record,) = bench.stored(topic, queue_id)
    return record


def test_a_first_failure_waits_for_level_three(bench: Any) -> None:
    sent = bench.send("T", b"body", properties="UNIQ_KEY\x01U\x02TAGS\x01a\x02WAIT\x01true\x02", flag=3)
    assert send_back(bench, 0).code == 0
    record = only(bench, SCHEDULE_TOPIC, 2)
    original = only(bench, "T")
    assert (bytes(record.body), record.flag, record.born_ms) == (b"body", 3, original.born_ms)
    assert record.reconsume_times == 1
    assert record.properties == {
        **original.properties,
        "WAIT": "false",
        "DELAY": "3",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": sent.ext["msgId"],
        "REAL_TOPIC": "%RETRY%G",
        "REAL_QID": "0",
    }


def test_a_failed_message_comes_again_through_the_retry_topic_and_dies_in_the_end(bench: Any) -> None:
    bench.broker.groups.put(SubscriptionGroupConfig("G", retry_max_times=2), bench.now_ms)
    sent = bench.send("T", b"body")
    bench.wait(1_000)
    send_back(bench, 0)
    bench.wait(10_200)
    first = only(bench, "%RETRY%G")
    assert first.reconsume_times == 1
    send_back(bench, first.physical_offset)
    assert only(bench, SCHEDULE_TOPIC, 3).reconsume_times == 2
    bench.wait(30_200)
    _, second = bench.stored("%RETRY%G")
    assert second.properties["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]
    assert second.properties["RETRY_TOPIC"] == "T"
    send_back(bench, second.physical_offset)
    dead = only(bench, "%DLQ%G")
    assert (dead.reconsume_times, dead.properties["DELAY"], dead.properties["WAIT"]) == (3, "0", "false")
    assert bench.broker.topics.get("%DLQ%G").write_queue_nums == 1


def test_the_consumer_chooses_the_level(bench: Any) -> None:
    bench.send("T")
    send_back(bench, 0, level=1)
    only(bench, SCHEDULE_TOPIC, 0)
    send_back(bench, 0, level=99)
    assert only(bench, SCHEDULE_TOPIC, 17).properties["DELAY"] == "18"


def test_a_negative_level_means_dead_at_once(bench: Any) -> None:
    bench.send("T")
    send_back(bench, 0, level=-1)
    only(bench, "%DLQ%G")


def test_clients_that_can_say_how_often_are_believed(bench: Any) -> None:
    bench.send("T")
    send_back(bench, 0, maxReconsumeTimes=0)
    only(bench, "%DLQ%G")
    send_back(bench, 0, maxReconsumeTimes=0, version=100)
    only(bench, SCHEDULE_TOPIC, 2)


def test_a_group_without_retry_queues_drops_what_comes_back(bench: Any) -> None:
    bench.send("T")
    bench.broker.groups.put(SubscriptionGroupConfig("G", retry_queue_nums=0), bench.now_ms)
    end = bench.store.end
    assert send_back(bench, 0).code == 0
    assert bench.store.max_offset(SCHEDULE_TOPIC, 2) == 0
    assert bench.store.end >= end
    assert bench.broker.topics.get("%RETRY%G") is None


def test_an_offset_that_is_no_message_is_said(bench: Any) -> None:
    bench.send("T")
    for offset in (-1, 1, 10**9):
        answer = send_back(bench, offset)
        assert (answer.code, answer.remark) == (1, f"look message by offset failed, {offset}")


def test_permissions_are_respected(bench: Any) -> None:
    bench.send("T")
    assert send_back(bench, 0, group="a b").code == 26
    bench.broker.topics.put(TopicConfig("%RETRY%G", perm=4), bench.now_ms)
    assert send_back(bench, 0).code == 16
    bench.settings.update("brokerPermission", "4")
    assert send_back(bench, 0, group="H").code == 16


def test_the_answer_waits_for_the_disk(bench: Any) -> None:
    bench.send("T")
    opaque = bench.request(36, {"offset": 0, "group": "G", "delayLevel": 0})
    assert bench.answered(opaque) is None
    bench.flush()
    assert bench.answered(opaque).code == 0
