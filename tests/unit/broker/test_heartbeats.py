from __future__ import annotations

from typing import Any

import pytest

from penstock import limits
from penstock.wire.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from penstock.wire.headers import NotifyConsumerIdsChangedHeader


def beat(bench: Any, peer: Any, client_id: str, *topics: str, group: str = "G", **fields: Any) -> Any:
    consumer = ConsumerData(group, subscription_data_set=[SubscriptionData(topic, "*") for topic in topics])
    consumer.message_model = fields.pop("model", "CLUSTERING")
    data = HeartbeatData(client_id, consumer_data_set=[consumer], **fields)
    return bench.ask(34, None, data.encode(), peer=peer)


def notices(peer: Any) -> list[str]:
    """Groups that the peer was told of since it was last looked at."""
    told = [command for command in peer.received if command.code == 40 and not command.is_response]
    assert all(command.is_oneway for command in told)
    peer.received.clear()
    return [command.header(NotifyConsumerIdsChangedHeader).consumer_group for command in told]


def members(bench: Any, group: str = "G") -> list[str] | None:
    answer = bench.ask(38, {"consumerGroup": group}, peer=bench.new_peer())
    if answer.code:
        assert answer.code == 1
        return None
    return GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list


@pytest.fixture
def peers(bench: Any) -> list[Any]:
    return [bench.new_peer(40_000 + i) for i in range(3)]


@pytest.mark.behaviour("START-6")
def test_a_heartbeat_registers_its_consumer_and_tells_all_members(bench: Any, peers: list[Any]) -> None:
    answer = beat(bench, peers[0], "one", "T")
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert notices(peers[0]) == ["G"]
    beat(bench, peers[1], "two", "T")
    assert (notices(peers[0]), notices(peers[1])) == (["G"], ["G"])
    assert members(bench) == ["one", "two"]


def test_a_heartbeat_that_changes_nothing_tells_nobody(bench: Any, peers: list[Any]) -> None:
    beat(bench, peers[0], "one", "T")
    notices(peers[0])
    beat(bench, peers[0], "one", "T")
    assert notices(peers[0]) == []


def test_a_new_or_missing_topic_is_a_change_for_the_whole_group(bench: Any, peers: list[Any]) -> None:
    beat(bench, peers[0], "one", "T")
    notices(peers[0])
    beat(bench, peers[0], "one", "T", "U")
    assert notices(peers[0]) == ["G"]
    beat(bench, peers[0], "one", "U")
    assert notices(peers[0]) == ["G"]
    assert list(bench.broker.clients.consumer_group("G").subscriptions) == ["U"]


def test_a_newer_expression_replaces_the_old_one_quietly(bench: Any, peers: list[Any]) -> None:
    def beat_with(expression: str, version: int) -> None:
        data = SubscriptionData("T", expression, sub_version=version)
        consumer = ConsumerData("G", subscription_data_set=[data])
        body = HeartbeatData("one", consumer_data_set=[consumer]).encode()
        bench.ask(34, None, body, peer=peers[0])

    beat_with("a", 5)
    notices(peers[0])
    beat_with("b", 6)
    beat_with("c", 4)
    assert notices(peers[0]) == []
    assert bench.broker.clients.find_subscription("G", "T").sub_string == "b"


def test_a_heartbeat_makes_the_retry_topic(bench: Any, peers: list[Any]) -> None:
    bench.broker.topics.put(TopicConfig("Ordered", order=True), bench.now_ms)
    bench.broker.groups.put(SubscriptionGroupConfig("G", retry_queue_nums=3), bench.now_ms)
    beat(bench, peers[0], "one", "T")
    assert bench.broker.topics.get("%RETRY%G").write_queue_nums == 3
    assert not bench.broker.topics.get("%RETRY%G").order
    beat(bench, peers[0], "one", "Ordered")
    assert bench.broker.topics.get("%RETRY%G").order


def test_a_group_that_may_not_be_created_is_ignored(bench: Any, peers: list[Any]) -> None:
    bench.settings.update("autoCreateSubscriptionGroup", "false")
    assert beat(bench, peers[0], "one", "T").code == 0
    assert members(bench) is None


def test_a_fingerprint_tells_whether_subscriptions_are_known(bench: Any, peers: list[Any]) -> None:
    def changed(**fields: Any) -> str:
        text: str = beat(bench, peers[0], "one", "T", **fields).ext["IS_SUB_CHANGE"]
        return text

    assert changed(heartbeat_fingerprint=5) == "true"
    assert changed(heartbeat_fingerprint=5) == "false"
    assert changed(heartbeat_fingerprint=6) == "true"
    assert changed() == "true"
    assert changed() == "true"
    assert changed(heartbeat_fingerprint=5) == "true"


def test_a_heartbeat_without_subscriptions_can_keep_the_old_ones(bench: Any, peers: list[Any]) -> None:
    beat(bench, peers[0], "one", "T", heartbeat_fingerprint=5)
    beat(bench, peers[0], "one", heartbeat_fingerprint=5, without_sub=True)
    assert bench.broker.clients.find_subscription("G", "T") is not None


def test_broadcasting_groups_are_not_told(bench: Any, peers: list[Any]) -> None:
    beat(bench, peers[0], "one", "T", model="BROADCASTING")
    assert notices(peers[0]) == []


def test_a_group_can_be_spared_the_notices(bench: Any, peers: list[Any]) -> None:
    config = SubscriptionGroupConfig("G", notify_consumer_ids_changed_enable=False)
    bench.broker.groups.put(config, bench.now_ms)
    beat(bench, peers[0], "one", "T")
    assert notices(peers[0]) == []


def test_unregistering_leaves_the_group_and_tells_the_rest(bench: Any, peers: list[Any]) -> None:
    beat(bench, peers[0], "one", "T")
    beat(bench, peers[1], "two", "T")
    notices(peers[0])
    notices(peers[1])
    answer = bench.ask(35, {"clientID": "one", "consumerGroup": "G"}, peer=peers[0])
    assert answer.code == 0
    assert (notices(peers[0]), notices(peers[1])) == ([], ["G"])
    assert members(bench) == ["two"]


def test_a_lost_connection_leaves_all_its_groups(bench: Any, peers: list[Any]) -> None:
    beat(bench, peers[0], "one", "T", producer_data_set=[ProducerData("P")])
    beat(bench, peers[0], "one", "T", group="H")
    beat(bench, peers[1], "two", "T")
    notices(peers[1])
    bench.broker.disconnected(peers[0], bench.now_ms)
    assert notices(peers[1]) == ["G"]
    assert (members(bench), members(bench, "H")) == (["two"], None)
    assert bench.broker.clients.producers == {}


def test_a_client_that_is_silent_for_two_minutes_is_dropped(bench: Any, peers: list[Any]) -> None:
    beat(bench, peers[0], "one", "T")
    beat(bench, peers[1], "two", "T")
    for _ in range(13):
        bench.wait(10_000, step_ms=10_000)
        beat(bench, peers[1], "two", "T")
        bench.ask(14, {"consumerGroup": "G", "topic": "T", "queueId": 0}, peer=peers[0])
    assert (peers[0].closed, peers[1].closed) == (True, False)
    assert members(bench) == ["two"]


def test_producers_are_known_by_group(bench: Any, peers: list[Any]) -> None:
    data = HeartbeatData("one", producer_data_set=[ProducerData("P"), ProducerData("Q")])
    bench.ask(34, None, data.encode(), peer=peers[0])
    assert sorted(bench.broker.clients.producers) == ["P", "Q"]
    client = bench.broker.clients.find_producer("one")
    assert (client.address, client.language, client.version) == ("127.0.0.1:40000", "PYTHON", 513)
    bench.ask(35, {"clientID": "one", "producerGroup": "P"}, peer=peers[0])
    assert sorted(bench.broker.clients.producers) == ["Q"]


def test_one_connection_cannot_announce_groups_without_end(
    bench: Any, peers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GROUPS_PER_CONNECTION", 3)
    data = HeartbeatData("one", producer_data_set=[ProducerData(f"P{i}") for i in range(5)])
    bench.ask(34, None, data.encode(), peer=peers[0])
    assert len(bench.broker.clients.producers) == 3
    beat(bench, peers[0], "one", "T")
    assert members(bench) is None


def test_a_heartbeat_without_a_body_is_an_error(bench: Any) -> None:
    answer = bench.ask(34)
    assert (answer.code, "body" in answer.remark) == (1, True)


@pytest.mark.parametrize(
    ("kind", "text", "enabled", "code"),
    [
        ("TAG", "a", False, 0),
        ("SQL92", "a > 1", False, 1),
        ("SQL92", "a > 1", True, 0),
        ("SQL92", "a >", True, 23),
    ],
)
def test_a_client_can_check_its_expression(
    bench: Any, kind: str, text: str, enabled: bool, code: int
) -> None:
    bench.settings.update("enablePropertyFilter", str(enabled))
    body = CheckClientRequestBody("c", "G", SubscriptionData("T", text, expression_type=kind))
    assert bench.ask(46, None, body.encode()).code == code
