from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import limits
from penstock.errors import StoreFull
from penstock.message.batch import encode_batch
from penstock.message.names import SCHEDULE_TOPIC
from penstock.message.queue import MessageQueue
from penstock.message.tags import tag_code
from penstock.wire.bodies import TopicConfig


def test_a_message_is_stored_with_what_the_broker_knows(bench: Any) -> None:
    properties = "UNIQ_KEY\x01ID1\x02TAGS\x01TagA\x02KEYS\x01k1 k2\x02"
    answer = bench.send("T", b"hello", properties=properties, queue_id=2, flag=9, born_ms=1234)
    assert answer.code == 0
    assert answer.ext == {
        "msgId": "7F00000100002A9F0000000000000000",
        "queueId": "2",
        "queueOffset": "0",
        "transactionId": "ID1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    (record,) = bench.stored("T", 2)
    assert (record.topic, bytes(record.body), record.flag, record.born_ms) == ("T", b"hello", 9, 1234)
    assert (record.born_host, record.store_ms) == (bench.peer.remote_host, bench.now_ms)
    assert record.properties == {
        "UNIQ_KEY": "ID1",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    ((_, _, code),) = bench.store.entries("T", 2, 0, 1)
    assert code == tag_code("TagA")
    for key in ("ID1", "k1", "k2"):
        assert bench.ask(12, query(bench, key)).code == 0
    assert bench.ask(12, query(bench, "k3")).code == 22


def query(bench: Any, key: str) -> dict[str, Any]:
    bench.store.tick(bench.now_ms)
    return {"topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": bench.now_ms + 1}


def test_a_message_without_a_unique_key_gets_one(bench: Any) -> None:
    answer = bench.send("T")
    (record,) = bench.stored("T")
    assert record.properties["UNIQ_KEY"] == answer.ext["transactionId"]
    assert len(answer.ext["transactionId"]) in (32, 56)


def test_what_the_sender_says_of_the_brokers_own_properties_is_dropped(bench: Any) -> None:
    own = "POP_CK\x011\x02MSG_REGION\x01x\x02TRACE_ON\x01false\x02CLUSTER\x01y\x02__CRC32#\x01z\x02"
    bench.send("T", properties=own + "a\x01b\x02UNIQ_KEY\x01ID\x02")
    (record,) = bench.stored("T")
    region = "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
    assert record.properties_text == "a\x01b\x02UNIQ_KEY\x01ID\x02" + region


def test_a_property_text_without_its_last_separator_keeps_its_last_property(bench: Any) -> None:
    bench.send("T", properties="UNIQ_KEY\x01ID\x02a\x01b")
    assert bench.stored("T")[0].properties["a"] == "b"


def test_the_old_header_form_is_served(bench: Any) -> None:
    fields = {
        "producerGroup": "P",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 1,
        "sysFlag": 0,
        "bornTimestamp": 5,
        "flag": 0,
        "properties": "a\x01b\x02",
    }
    assert bench.ask(10, fields, b"old").code == 0
    assert bytes(bench.stored("T", 1)[0].body) == b"old"


def test_no_reply_goes_out_before_the_message_is_durable(bench: Any) -> None:
    opaque = bench.request(310, bench.send_fields("T"), b"x")
    assert bench.answered(opaque) is None
    bench.flush()
    assert bench.answered(opaque).code == 0


def test_a_oneway_send_is_stored_and_not_answered(bench: Any) -> None:
    bench.request(310, bench.send_fields("T"), b"x", oneway=True)
    bench.flush()
    assert bench.peer.received == []
    assert len(bench.stored("T")) == 1


def test_a_oneway_send_that_is_refused_is_not_answered_either(bench: Any) -> None:
    bench.request(310, bench.send_fields("a b"), b"x", oneway=True)
    bench.flush()
    assert bench.peer.received == []


def test_a_missing_or_wrong_field_is_named(bench: Any) -> None:
    fields = bench.send_fields("T")
    del fields["e"]
    answer = bench.ask(310, fields, b"x")
    assert answer.code == 1
    assert "queueId" in answer.remark
    answer = bench.ask(310, {**bench.send_fields("T"), "e": "two"}, b"x")
    assert (answer.code, "queueId" in answer.remark) == (1, True)


def test_a_failed_flush_fails_every_send_that_waited(bench: Any) -> None:
    opaque = bench.request(310, bench.send_fields("T"), b"x")
    flush = bench.store.take_flush()
    later = bench.request(310, bench.send_fields("T"), b"y")
    error = OSError(28, "No space left on device")
    assert bench.store.flushed(flush, error) == []
    bench.broker.flush_failed(error, bench.now_ms)
    for number in (opaque, later):
        assert bench.answered(number).code == 14
        assert "No space left" in bench.answered(number).remark


def test_a_full_store_refuses_sends_and_serves_pulls(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send("T")

    def full(*_: Any) -> Any:
        raise StoreFull("the disk is full")

    monkeypatch.setattr(bench.store, "append", full)
    answer = bench.send("T")
    assert (answer.code, answer.ext["MSG_REGION"]) == (14, "DefaultRegion")
    assert "the disk is full" in answer.remark
    assert bench.pull("T").code == 0


def test_sends_are_flow_controlled_while_too_much_waits_for_the_disk(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.request(310, bench.send_fields("T"), bytes(1000))
    monkeypatch.setattr(limits, "PENDING_FLUSH_BYTES", 500)
    monkeypatch.setattr("penstock.broker.send.PENDING_FLUSH_BYTES", 500)
    opaque = bench.request(310, bench.send_fields("T"), b"x")
    assert bench.answered(opaque).code == 2
    bench.flush()
    assert bench.send("T").code == 0


# ---- batches ----------------------------------------------------------------------------------------


def test_a_batch_becomes_one_record_a_message_with_its_own_properties(bench: Any) -> None:
    bench.send("T")
    items = [(i, b"body%d" % i, f"UNIQ_KEY\x01U{i}\x02TAGS\x01t{i}\x02".encode()) for i in range(3)]
    answer = bench.send("T", encode_batch(items), batch=True, properties="UNIQ_KEY\x01B\x02")
    ids = answer.ext["msgId"].split(",")
    assert (answer.code, len(ids), answer.ext["queueOffset"]) == (0, 3, "1")
    assert "transactionId" not in answer.ext
    records = bench.stored("T")[1:]
    assert [(r.flag, bytes(r.body), r.properties_bytes) for r in records] == items
    assert [f"7F00000100002A9F{r.physical_offset:016X}" for r in records] == ids
    entries = bench.store.entries("T", 0, 1, 3)
    assert [entry[2] for entry in entries] == [tag_code(f"t{i}") for i in range(3)]


def test_an_empty_batch_is_refused(bench: Any) -> None:
    assert bench.send("T", b"", batch=True).code == 13


# ---- topics -----------------------------------------------------------------------------------------


def test_a_send_creates_its_topic_and_the_name_servers_are_told_of_it_alone(bench: Any) -> None:
    bench.broker.take_registration_changes()
    bench.send("New", queues=4)
    bench.send("New")
    (config,) = bench.broker.take_registration_changes()
    assert (config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm) == (
        "New",
        4,
        4,
        6,
    )
    assert bench.broker.take_registration_changes() is None


def test_a_topic_never_gets_more_queues_than_its_pattern(bench: Any) -> None:
    bench.send("New", queues=99)
    assert bench.broker.topics.get("New").write_queue_nums == 8


def test_a_topic_that_was_changed_is_checked_anew(bench: Any) -> None:
    bench.send("T", queue_id=3)
    bench.broker.topics.delete("T", bench.now_ms)
    assert bench.send("T", default_topic="None").code == 17


def test_revive_and_timer_topics_take_no_messages_from_clients(bench: Any) -> None:
    for topic in ("rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster"):
        assert bench.send(topic).code == 16


def test_no_topic_is_created_past_the_bound(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_BROKER", len(bench.broker.topics.table))
    assert bench.send("OneTooMany").code == 17


def test_changed_settings_count_from_the_next_send_on(bench: Any) -> None:
    bench.settings.update("regionId", "North")
    assert bench.send("T").ext["MSG_REGION"] == "North"
    assert bench.stored("T")[0].properties["MSG_REGION"] == "North"


def test_a_slave_takes_no_messages(new_bench: Callable[..., Any]) -> None:
    bench = new_bench(brokerRole="SLAVE", brokerId="1")
    answer = bench.send("T")
    assert (answer.code, answer.remark[:15]) == (2, "[REJECTREQUEST]")


# ---- messages that go elsewhere -----------------------------------------------------------------------


def test_a_delayed_message_waits_in_the_schedule_topic(bench: Any) -> None:
    answer = bench.send("T", queue_id=3, properties="DELAY\x0199\x02TAGS\x01a\x02TIMER_DELAY_SEC\x019\x02")
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "3", "0")
    (record,) = bench.stored(SCHEDULE_TOPIC, 17)
    assert record.properties["DELAY"] == "18"
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T", "3")
    assert "TIMER_DELAY_SEC" not in record.properties
    ((_, _, due_ms),) = bench.store.entries(SCHEDULE_TOPIC, 17, 0, 1)
    assert due_ms == bench.now_ms + 7_200_000


def test_a_delay_that_is_not_positive_means_nothing(bench: Any) -> None:
    bench.send("T", properties="DELAY\x010\x02")
    assert len(bench.stored("T")) == 1


def test_an_orderly_consumers_last_retry_goes_to_the_dead_letters(bench: Any) -> None:
    assert bench.send("%RETRY%g", reconsume_times=16).ext["queueId"] == "0"
    assert len(bench.stored("%RETRY%g")) == 1
    bench.send("%RETRY%g", reconsume_times=17, queue_id=0)
    (dead,) = bench.stored("%DLQ%g")
    assert (dead.reconsume_times, dead.properties["DELAY"]) == (17, "-1")


def test_clients_that_can_say_how_often_are_believed(bench: Any) -> None:
    bench.send("%RETRY%g", reconsume_times=3, l=2)
    assert len(bench.stored("%DLQ%g")) == 1
    fields = bench.send_fields("%RETRY%g", reconsume_times=3, l=2)
    bench.ask(310, fields, b"x", version=100)
    assert len(bench.stored("%RETRY%g")) == 1


def test_a_group_with_a_queue_lock_sends_its_retries_to_the_dead_letters(bench: Any) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    bench.broker.locks.lock("g", "client", [queue], bench.now_ms)
    bench.send("%RETRY%g")
    assert len(bench.stored("%DLQ%g")) == 1
    bench.now_ms += 60_001
    bench.send("%RETRY%g")
    assert len(bench.stored("%RETRY%g")) == 1


def test_inner_batches_are_the_brokers_business(bench: Any) -> None:
    assert bench.send("T", sys_flag=0x80).code == 13
    assert bench.send("T", properties="INNER_NUM\x013\x02").code == 13


def test_a_prepared_message_is_refused_also_without_its_property(bench: Any) -> None:
    answer = bench.send("T", sys_flag=4)
    assert (answer.code, "transactions" in answer.remark) == (16, True)
    assert bench.store.max_offset("T", 0) == 0


def test_a_compaction_topic_wants_keys(bench: Any) -> None:
    bench.broker.topics.put(TopicConfig("C", attributes={"cleanup.policy": "COMPACTION"}), bench.now_ms)
    assert bench.send("C").code == 13
    assert bench.send("C", properties="KEYS\x01k\x02").code == 0


def test_messages_of_a_multi_tag_topic_are_marked(bench: Any) -> None:
    bench.broker.topics.put(TopicConfig("M", topic_filter_type="MULTI_TAG"), bench.now_ms)
    bench.send("M")
    assert bench.stored("M")[0].sys_flag & 2
