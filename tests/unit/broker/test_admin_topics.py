from __future__ import annotations

from typing import Any

import pytest

from penstock import limits
from penstock.wire import dialect
from penstock.wire.bodies import GroupList, TopicConfig, TopicConfigAndMappingSerializeWrapper, TopicList
from penstock.wire.codes import RequestCode, ResponseCode


def fields(topic: str, **changes: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": "",
        **changes,
    }


def create(bench: Any, topic: str, **changes: Any) -> Any:
    return bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields(topic, **changes))


def config_of(bench: Any, topic: str) -> TopicConfig:
    return TopicConfig.decode(bench.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": True}).body)


# ---- creating ---------------------------------------------------------------------------------------


def test_a_created_topic_is_shown_registered_and_survives_a_restart(bench: Any) -> None:
    bench.broker.take_registration_changes()
    assert create(bench, "orders", writeQueueNums=2, order=True).code == ResponseCode.SUCCESS
    shown = config_of(bench, "orders")
    assert (shown.read_queue_nums, shown.write_queue_nums, shown.perm, shown.order) == (4, 2, 6, True)
    assert [config.topic_name for config in bench.broker.take_registration_changes()] == ["orders"]
    bench.close()
    bench.open()
    assert config_of(bench, "orders") == shown


def test_the_answer_waits_until_the_topic_is_durable(bench: Any) -> None:
    opaque = bench.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields("orders"))
    assert bench.answered(opaque) is None
    bench.flush()
    assert bench.answered(opaque).code == ResponseCode.SUCCESS


def test_an_equal_config_changes_nothing(bench: Any) -> None:
    create(bench, "orders")
    version = bench.broker.topics.data_version
    bench.broker.take_registration_changes()
    assert create(bench, "orders").code == ResponseCode.SUCCESS
    assert bench.broker.topics.data_version == version
    assert bench.broker.take_registration_changes() is None


def test_an_update_replaces_counts_and_merges_attributes(bench: Any) -> None:
    create(bench, "orders", attributes="+message.type=FIFO", order=True)
    create(bench, "orders", readQueueNums=8, perm=4)
    shown = config_of(bench, "orders")
    assert (shown.read_queue_nums, shown.perm, shown.order) == (8, 4, False)
    assert shown.attributes == {"message.type": "FIFO"}
    create(bench, "orders", attributes="-message.type")
    assert config_of(bench, "orders").attributes == {}


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        (
            {"topic": "bad topic!"},
            29,
            "The specified topic: bad topic!, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ({"topic": " "}, 29, "The specified topic is blank."),
        ({"topic": "x" * 128}, 29, "longer than topic max length"),
        (
            {"topic": "SCHEDULE_TOPIC_XXXX"},
            29,
            "The topic[SCHEDULE_TOPIC_XXXX] is conflict with system topic.",
        ),
        ({"topic": "broker-a"}, 29, "The topic[broker-a] is conflict with system topic."),
        ({"topic": "bad!", "attributes": "oops"}, 29, "contains illegal characters"),
        ({"perm": 9}, 29, "perm 9"),
        ({"perm": -1}, 29, "perm -1"),
        ({"readQueueNums": 0}, 29, "read queue count 0"),
        ({"writeQueueNums": -3}, 29, "write queue count -3"),
        ({"writeQueueNums": limits.QUEUES_PER_TOPIC + 1}, 29, "write queue count"),
        ({"topicFilterType": "ODD"}, 1, "topicFilterType ODD"),
        ({"attributes": "+message.type=MIXED"}, 29, "MIXED"),
        ({"attributes": "+foo=1"}, 1, "unsupported key: foo"),
        ({"attributes": "foo=1"}, 1, "add/alter attribute format is wrong: foo"),
        ({"readQueueNums": "many"}, 1, "readQueueNums"),
    ],
)
def test_what_is_wrong_with_a_topic_is_said_and_nothing_changes(
    bench: Any, changes: dict[str, Any], code: int, remark: str
) -> None:
    before = dict(bench.broker.topics.table)
    answer = bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields("orders") | changes)
    assert answer.code == code
    assert remark in answer.remark
    assert bench.broker.topics.table == before


def test_mixed_topics_are_allowed_when_switched_on(new_bench: Any) -> None:
    bench = new_bench(enableMixedMessageType="true")
    assert create(bench, "orders", attributes="+message.type=MIXED").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("missing", ["topic", "readQueueNums", "perm", "topicFilterType"])
def test_a_missing_field_is_an_error_that_names_it(bench: Any, missing: str) -> None:
    ext = fields("orders")
    del ext[missing]
    answer = bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert missing in answer.remark


def test_a_full_table_takes_changes_but_no_new_topic(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    create(bench, "orders")
    monkeypatch.setattr(limits, "TOPICS_PER_BROKER", len(bench.broker.topics.table))
    assert create(bench, "more").code == ResponseCode.SYSTEM_ERROR
    assert create(bench, "orders", perm=4).code == ResponseCode.SUCCESS


def topic_list(*configs: dict[str, Any]) -> bytes:
    return dialect.dumps({"topicConfigList": list(configs)})


def test_a_list_goes_on_after_an_entry_that_is_there_already(bench: Any) -> None:
    create(bench, "one", readQueueNums=16, writeQueueNums=16)
    answer = bench.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        {},
        topic_list({"topicName": "one"}, {"topicName": "two", "attributes": {"+message.type": "DELAY"}}),
    )
    assert answer.code == ResponseCode.SUCCESS
    assert config_of(bench, "two").attributes == {"message.type": "DELAY"}


@pytest.mark.parametrize("bad", [{"topicName": "no good"}, {"topicName": "two", "perm": 77}, {"perm": 6}])
def test_one_bad_entry_refuses_the_whole_list(bench: Any, bad: dict[str, Any]) -> None:
    answer = bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, topic_list({"topicName": "one"}, bad))
    assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
    assert bench.broker.topics.get("one") is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"topicConfigList":7}', b"\xff"])
def test_a_body_that_is_none_is_answered_not_crashed_on(bench: Any, body: bytes) -> None:
    assert bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).code == ResponseCode.SYSTEM_ERROR


# ---- deleting ---------------------------------------------------------------------------------------


def test_a_deleted_topic_leaves_no_config_offsets_queues_or_statistics(bench: Any) -> None:
    create(bench, "orders")
    bench.send("orders")
    bench.broker.offsets.commit("billing", "orders", 0, 1, bench.now_ms)
    answer = bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    assert answer.code == ResponseCode.SUCCESS
    assert bench.broker.topics.get("orders") is None
    assert bench.broker.offsets.topics_of("billing") == []
    assert bench.store.max_offset("orders", 0) == 0
    assert bench.broker.statistics.view("TOPIC_PUT_NUMS", "orders") is None
    assert bench.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_the_pop_retry_topics_of_its_groups_go_with_a_topic(bench: Any) -> None:
    create(bench, "orders")
    bench.broker.topics.ensure("%RETRY%billing_orders", 1, bench.now_ms)
    bench.broker.topics.ensure("%RETRY%billing+orders", 1, bench.now_ms)
    bench.broker.topics.ensure("%RETRY%other_orders", 1, bench.now_ms)
    bench.broker.offsets.commit("billing", "orders", 0, 1, bench.now_ms)
    bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    assert bench.broker.topics.get("%RETRY%billing_orders") is None
    assert bench.broker.topics.get("%RETRY%billing+orders") is None
    assert bench.broker.topics.get("%RETRY%other_orders") is not None


def test_a_deleted_topic_starts_again_at_offset_zero(bench: Any) -> None:
    create(bench, "orders")
    bench.send("orders")
    bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    create(bench, "orders")
    assert bench.send("orders").ext["queueOffset"] == "0"


@pytest.mark.parametrize("ext", [{}, {"topic": ""}, {"topic": "  "}, {"topic": "SCHEDULE_TOPIC_XXXX"}])
def test_blank_and_system_topics_cannot_be_deleted(bench: Any, ext: dict[str, str]) -> None:
    answer = bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext)
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_deleting_an_unknown_topic_succeeds(bench: Any) -> None:
    assert bench.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "nope"}).code == ResponseCode.SUCCESS


def test_queues_without_a_topic_are_cleaned(bench: Any) -> None:
    bench.send("orders")
    bench.send("kept")
    bench.broker.topics.delete("orders", bench.now_ms)
    assert bench.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == ResponseCode.SUCCESS
    assert list(bench.store.topics_with_queues()) == ["kept"]


# ---- showing ----------------------------------------------------------------------------------------


def test_an_unknown_topic_is_not_shown(bench: Any) -> None:
    answer = bench.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "NoSuchTopicX"})
    assert (answer.code, answer.remark) == (17, "No topic in this broker. topic: NoSuchTopicX")


def pages(bench: Any, size: int) -> list[TopicConfigAndMappingSerializeWrapper]:
    """As a client reads them, page by page."""
    found: list[TopicConfigAndMappingSerializeWrapper] = []
    seen, version = 0, ""
    while True:
        ext = {"topicSeq": seen, "dataVersion": version, "maxTopicNum": size}
        answer = bench.ask(RequestCode.GET_ALL_TOPIC_CONFIG, ext)
        part = TopicConfigAndMappingSerializeWrapper.decode(answer.body)
        found.append(part)
        seen += len(part.topic_config_table)
        version = part.data_version.encode().decode()
        if seen >= int(answer.ext["totalTopicNum"]):
            return found


def test_all_topics_come_in_pages_sorted_by_name(bench: Any) -> None:
    parts = pages(bench, 5)
    names = [name for part in parts for name in part.topic_config_table]
    assert names == sorted(bench.broker.topics.table)
    assert [len(part.topic_config_table) for part in parts[:-1]] == [5] * (len(parts) - 1)


def test_a_reader_of_an_older_version_starts_anew(bench: Any) -> None:
    answer = bench.ask(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        {"topicSeq": 7, "dataVersion": '{"counter":99,"stateVersion":0,"timestamp":1}', "maxTopicNum": 3},
    )
    part = TopicConfigAndMappingSerializeWrapper.decode(answer.body)
    assert sorted(part.topic_config_table) == sorted(bench.broker.topics.table)[:3]


@pytest.mark.parametrize("ext", [None, {}, {"topicSeq": -5, "maxTopicNum": -1}, {"dataVersion": "nonsense"}])
def test_without_a_page_or_with_an_odd_one_all_topics_come(bench: Any, ext: dict[str, Any] | None) -> None:
    answer = bench.ask(RequestCode.GET_ALL_TOPIC_CONFIG, ext)
    part = TopicConfigAndMappingSerializeWrapper.decode(answer.body)
    assert part.topic_config_table == bench.broker.topics.table


def test_topic_statistics_have_queues_as_keys(bench: Any) -> None:
    create(bench, "orders", readQueueNums=1, writeQueueNums=2)
    bench.send("orders", queue_id=1)
    answer = bench.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})
    assert answer.body == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},'
        b'{"brokerName":"broker-a","queueId":1,"topic":"orders"}:'
        b'{"lastUpdateTimestamp":%d,"maxOffset":1,"minOffset":0}},"topicPutTps":0.0}' % bench.now_ms
    )


def test_statistics_of_an_unknown_topic(bench: Any) -> None:
    answer = bench.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "NoSuchTopicX"})
    assert (answer.code, answer.remark) == (17, "topic[NoSuchTopicX] not exist")


def test_groups_of_a_topic_are_those_with_offsets_and_those_online(bench: Any) -> None:
    bench.send("orders")
    bench.broker.offsets.commit("billing", "orders", 0, 1, bench.now_ms)
    answer = bench.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"})
    assert GroupList.decode(answer.body).group_list == ["billing"]
    answer = bench.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "billing"})
    assert TopicList.decode(answer.body) == TopicList(["orders"], "127.0.0.1:10911")


def test_system_topics_are_listed(bench: Any) -> None:
    names = TopicList.decode(bench.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body).topic_list
    assert {"TBW102", "broker-a", "DefaultCluster", "CHECKPOINT_TOPIC", "SCHEDULE_TOPIC_XXXX"} <= set(names)
