from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import limits
from penstock.message.record import split_records
from penstock.message.tags import tag_code
from penstock.store.results import GetResult, GetStatus
from penstock.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)


def offsets(answer: Any) -> list[int]:
    return [record.queue_offset for record in split_records(answer.body or b"")]


def subscribe(bench: Any, topic: str, expression: str = "*", **fields: Any) -> None:
    """The test's connection joins group G with one subscription."""
    tags = [] if expression == "*" or "expression_type" in fields else expression.split("||")
    data = SubscriptionData(topic, expression, tags, [tag_code(tag) for tag in tags], sub_version=7, **fields)
    consumer = ConsumerData("G", subscription_data_set=[data])
    assert bench.ask(34, None, HeartbeatData("c1", consumer_data_set=[consumer]).encode()).code == 0


def registered(**fields: Any) -> dict[str, Any]:
    return {"group": "G", "sys_flag": 0, "subscription": None, **fields}


@pytest.mark.behaviour("STO-4")
def test_an_answer_says_what_was_found_and_where_to_go_on(bench: Any) -> None:
    for i in range(5):
        bench.send("T", b"%d" % i)
    answer = bench.pull("T", 1, most=3)
    assert (answer.code, answer.remark, offsets(answer)) == (0, "FOUND", [1, 2, 3])
    assert answer.ext == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "4",
        "minOffset": "0",
        "maxOffset": "5",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


def test_one_answer_has_at_most_32_messages(bench: Any) -> None:
    for _ in range(40):
        bench.send("T")
    assert len(offsets(bench.pull("T", most=1000))) == 32


@pytest.mark.behaviour("STO-6")
def test_tags_are_compared_by_their_hash_in_the_queue(bench: Any) -> None:
    for tag in ("a", "b", "c", "a"):
        bench.send("T", properties=f"TAGS\x01{tag}\x02")
    bench.send("T")
    assert offsets(bench.pull("T", subscription="a || c")) == [0, 2, 3]
    assert offsets(bench.pull("T", subscription="*")) == [0, 1, 2, 3, 4]
    answer = bench.pull("T", subscription="z")
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "5")


@pytest.mark.behaviour("STO-6")
def test_different_tags_with_one_hash_both_pass_the_broker(bench: Any) -> None:
    assert tag_code("Aa") == tag_code("BB")
    for tag in ("Aa", "BB", "C"):
        bench.send("T", properties=f"TAGS\x01{tag}\x02")
    assert offsets(bench.pull("T", subscription="Aa")) == [0, 1]


def test_a_subscription_from_a_heartbeat_filters_pulls_that_carry_none(bench: Any) -> None:
    subscribe(bench, "T", "b")
    for tag in ("a", "b", "a", "b"):
        bench.send("T", properties=f"TAGS\x01{tag}\x02")
    assert offsets(bench.pull("T", **registered())) == [1, 3]


def test_a_pull_must_know_the_latest_subscription(bench: Any) -> None:
    bench.send("T")
    subscribe(bench, "T")
    assert bench.pull("T", **registered(version=7)).code == 0
    assert bench.pull("T", **registered(version=8)).code == 25


def test_a_topic_that_the_group_did_not_subscribe_to_is_not_served(bench: Any) -> None:
    bench.send("T")
    subscribe(bench, "Other")
    assert bench.pull("T", **registered()).code == 24


def test_a_group_that_may_not_broadcast_gets_nothing(bench: Any) -> None:
    bench.send("T")
    bench.broker.groups.put(SubscriptionGroupConfig("G", consume_broadcast_enable=False), bench.now_ms)
    consumer = ConsumerData(
        "G", message_model="BROADCASTING", subscription_data_set=[SubscriptionData("T", "*")]
    )
    bench.ask(34, None, HeartbeatData("c1", consumer_data_set=[consumer]).encode())
    answer = bench.pull("T", **registered())
    assert (answer.code, answer.ext) == (16, {"forbiddenType": "4"})


def test_a_forbidden_topic_is_forbidden_only_to_the_registered_subscription(bench: Any) -> None:
    bench.send("T")
    subscribe(bench, "T")
    bench.broker.groups.set_forbidden("G", "T", 4, bench.now_ms)
    answer = bench.pull("T", **registered())
    assert (answer.code, answer.ext) == (16, {"forbiddenType": "5"})
    assert bench.pull("T", group="G").code == 0
    bench.broker.groups.set_forbidden("G", "T", 0, bench.now_ms)
    assert bench.pull("T", **registered()).code == 0


def test_tags_that_are_none_are_a_parse_error(bench: Any) -> None:
    bench.send("T")
    assert bench.pull("T", subscription="||").code == 23


def test_sql_from_a_heartbeat_filters_by_properties(bench: Any) -> None:
    bench.settings.update("enablePropertyFilter", "true")
    subscribe(bench, "T", "price > 5", expression_type="SQL92")
    for price in ("3", "7", "x", "9"):
        bench.send("T", properties=f"price\x01{price}\x02")
    answer = bench.pull("T", **registered(expression_type="SQL92"))
    assert (offsets(answer), answer.ext["nextBeginOffset"]) == ([1, 3], "4")


def test_sql_from_a_heartbeat_that_does_not_compile_is_found_at_the_pull(bench: Any) -> None:
    bench.settings.update("enablePropertyFilter", "true")
    bench.send("T")
    subscribe(bench, "T", "price >", expression_type="SQL92")
    assert bench.pull("T", **registered(expression_type="SQL92")).code == 27


def test_a_lite_pull_is_a_pull_with_a_switch_of_its_own(bench: Any) -> None:
    bench.send("T")
    fields = bench.pull_fields("T", sys_flag=4 | 16)
    assert bench.ask(361, fields).code == 0
    bench.settings.update("litePullMessageEnable", "false")
    assert bench.ask(361, fields).code == 16
    assert bench.ask(11, fields).code == 0


def test_unregistered_consumers_can_be_refused(bench: Any) -> None:
    bench.send("T")
    bench.settings.update("rejectPullConsumerEnable", "true")
    assert bench.pull("T").code == 24
    assert bench.pull("T", group="TOOLS_CONSUMER").code == 0
    subscribe(bench, "T")
    assert bench.pull("T", **registered()).code == 0


def test_a_pull_commits_an_offset_when_it_says_so(bench: Any) -> None:
    bench.send("T")
    bench.pull("T", sys_flag=4, commit=3)
    assert bench.broker.offsets.query("PullG", "T", 0) == -1
    bench.pull("T", sys_flag=4 | 1, commit=3)
    assert bench.broker.offsets.query("PullG", "T", 0) == 3
    assert bench.broker.offsets.query_pulled("PullG", "T", 0) == 1


def test_a_reset_is_told_once_and_wins_over_commits_until_then(bench: Any) -> None:
    for _ in range(5):
        bench.send("T")
    bench.broker.offsets.reset("PullG", "T", 0, 2, bench.now_ms)
    bench.broker.offsets.commit("PullG", "T", 0, 5, bench.now_ms)
    answer = bench.pull("T", 5)
    assert (answer.code, answer.remark) == (21, "OFFSET_RESET")
    assert [answer.ext[key] for key in ("nextBeginOffset", "minOffset", "maxOffset")] == ["2", "0", "5"]
    assert offsets(bench.pull("T", 2)) == [2, 3, 4]
    assert bench.broker.offsets.query("PullG", "T", 0) == 2


def test_a_pull_without_heartbeat_is_remembered_for_the_tools(bench: Any) -> None:
    bench.send("T")
    bench.pull("T", subscription="a||b", group="Quiet")
    found = bench.broker.clients.find_subscription("Quiet", "T")
    assert (found.sub_string, sorted(found.tags_set)) == ("a||b", ["a", "b"])
    bench.wait(620_000, step_ms=5_000)
    assert bench.broker.clients.find_subscription("Quiet", "T") is None


@pytest.mark.behaviour("STO-3")
def test_a_slave_leaves_wrong_offsets_alone(new_bench: Callable[..., Any]) -> None:
    bench = new_bench()
    for _ in range(3):
        bench.send("T")
    master = bench.pull("T", 99)
    assert (master.code, master.ext["nextBeginOffset"]) == (21, "3")
    bench.settings.broker_role = "SLAVE"
    assert bench.pull("T", 99).code == 2
    bench.settings.update("slaveReadEnable", "true")
    for wrong in (99, -1):
        slave = bench.pull("T", wrong)
        assert (slave.code, slave.ext["nextBeginOffset"]) == (20, str(wrong))
    bench.settings.update("offsetCheckInSlave", "true")
    checked = bench.pull("T", 99)
    assert (checked.code, checked.ext["nextBeginOffset"]) == (21, "3")


def test_slave_reading_suggests_the_groups_broker(bench: Any) -> None:
    bench.send("T")
    bench.broker.groups.put(SubscriptionGroupConfig("PullG", broker_id=1), bench.now_ms)
    assert bench.pull("T").ext["suggestWhichBrokerId"] == "0"
    bench.settings.update("slaveReadEnable", "true")
    assert bench.pull("T").ext["suggestWhichBrokerId"] == "1"


@pytest.mark.behaviour("STO-2")
def test_a_queue_that_was_never_written_has_no_message(bench: Any) -> None:
    bench.broker.topics.put(TopicConfig("T", read_queue_nums=2), bench.now_ms)
    assert (bench.pull("T", 0).code, bench.pull("T", 0).remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert bench.pull("T", 3).code == 21


@pytest.mark.behaviour("STO-2", "STO-4")
@pytest.mark.parametrize(
    ("status", "offset", "code"),
    [
        (GetStatus.FOUND, 3, 0),
        (GetStatus.NO_MATCHED_MESSAGE, 3, 20),
        (GetStatus.MESSAGE_WAS_REMOVING, 3, 20),
        (GetStatus.OFFSET_FOUND_NULL, 3, 19),
        (GetStatus.OFFSET_OVERFLOW_ONE, 3, 19),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 3, 21),
        (GetStatus.OFFSET_TOO_SMALL, 3, 21),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 3, 21),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 19),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 3, 21),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 19),
    ],
)
def test_every_status_has_its_code_and_is_named(
    bench: Any, monkeypatch: pytest.MonkeyPatch, status: GetStatus, offset: int, code: int
) -> None:
    bench.send("T")
    monkeypatch.setattr(bench.store, "get", lambda *_: GetResult(status, 7, 5, 9, [], 0, 0))
    answer = bench.pull("T", offset)
    assert (answer.code, answer.remark) == (code, status.name)
    assert [answer.ext[key] for key in ("nextBeginOffset", "minOffset", "maxOffset")] == ["7", "5", "9"]


# ---- long polling -----------------------------------------------------------------------------------

HOLD = 4 | 2


@pytest.mark.behaviour("STO-5")
def test_a_pull_that_finds_nothing_waits_for_the_next_message(bench: Any) -> None:
    bench.send("T")
    opaque = hold(bench, "T", 1)
    bench.wait(3_000)
    assert bench.answered(opaque) is None
    bench.send("T")
    answer = bench.answered(opaque)
    assert (answer.code, offsets(answer)) == (0, [1])


@pytest.mark.behaviour("STO-5")
def test_a_pull_at_the_start_of_an_empty_queue_waits_for_the_first_message(bench: Any) -> None:
    bench.broker.topics.put(TopicConfig("T"), bench.now_ms)
    opaque = hold(bench, "T", 0)
    assert bench.answered(opaque) is None
    bench.send("T")
    assert offsets(bench.answered(opaque)) == [0]


@pytest.mark.behaviour("STO-5")
def test_a_held_pull_is_answered_at_its_deadline(bench: Any) -> None:
    bench.send("T")
    opaque = hold(bench, "T", 1, suspend_ms=2_000)
    bench.wait(1_999, step_ms=1)
    assert bench.answered(opaque) is None
    bench.wait(1)
    answer = bench.answered(opaque)
    assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")


@pytest.mark.behaviour("STO-5", "STO-6")
def test_only_a_matching_message_wakes_a_filtered_pull(bench: Any) -> None:
    bench.send("T")
    opaque = hold(bench, "T", 1, subscription="a")
    bench.send("T", properties="TAGS\x01b\x02")
    assert bench.answered(opaque) is None
    bench.send("T", properties="TAGS\x01a\x02")
    assert offsets(bench.answered(opaque)) == [2]


@pytest.mark.behaviour("STO-5")
def test_messages_that_do_not_match_send_a_held_pull_on_at_the_next_scan(bench: Any) -> None:
    bench.send("T")
    opaque = hold(bench, "T", 1, subscription="a")
    bench.send("T", properties="TAGS\x01b\x02")
    bench.wait(5_100)
    answer = bench.answered(opaque)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "2")


@pytest.mark.behaviour("STO-5")
def test_sql_is_asked_before_a_held_pull_is_woken(bench: Any) -> None:
    bench.settings.update("enablePropertyFilter", "true")
    bench.send("T")
    opaque = hold(bench, "T", 1, subscription="a = '1'", expression_type="SQL92")
    bench.send("T", properties="a\x012\x02")
    assert bench.answered(opaque) is None
    bench.send("T", properties="a\x011\x02")
    assert offsets(bench.answered(opaque)) == [2]


def test_a_wrong_offset_is_never_held(bench: Any) -> None:
    bench.send("T")
    opaque = hold(bench, "T", 5)
    assert bench.answered(opaque).code == 21


def test_a_held_pull_commits_at_once_and_only_once(bench: Any) -> None:
    bench.send("T")
    hold(bench, "T", 1, sys_flag=HOLD | 1, commit=1)
    assert bench.broker.offsets.query("PullG", "T", 0) == 1
    bench.broker.offsets.commit("PullG", "T", 0, 9, bench.now_ms)
    bench.send("T")
    assert bench.broker.offsets.query("PullG", "T", 0) == 9


def test_without_long_polling_a_pull_is_held_for_a_second(bench: Any) -> None:
    bench.settings.update("longPollingEnable", "false")
    bench.send("T")
    opaque = hold(bench, "T", 1)
    bench.wait(1_000)
    assert bench.answered(opaque).code == 19


def test_the_held_pulls_of_a_lost_connection_are_forgotten(bench: Any) -> None:
    bench.send("T")
    peer = bench.new_peer()
    hold(bench, "T", 1, peer=peer)
    assert len(bench.broker.puller.held) == 1
    bench.broker.disconnected(peer, bench.now_ms)
    assert len(bench.broker.puller.held) == 0
    bench.send("T")
    bench.wait(20_000, step_ms=1_000)
    assert peer.received == []


def test_past_the_bound_pulls_are_answered_at_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.limits.HELD_PULLS_PER_BROKER", 1)
    bench.send("T")
    first, second = hold(bench, "T", 1), hold(bench, "T", 1)
    assert bench.answered(first) is None
    assert bench.answered(second).code == 19


def test_all_held_pulls_of_a_queue_are_woken(bench: Any) -> None:
    bench.send("T")
    held = [hold(bench, "T", 1, group=f"G{i}") for i in range(3)]
    bench.send("T")
    assert [bench.answered(opaque).code for opaque in held] == [0, 0, 0]


def test_a_topic_deleted_under_a_held_pull_is_said(bench: Any) -> None:
    bench.send("T")
    opaque = hold(bench, "T", 1, suspend_ms=1_000)
    bench.broker.topics.delete("T", bench.now_ms)
    bench.wait(1_000)
    assert bench.answered(opaque).code == 17


def hold(bench: Any, topic: str, offset: int, *, peer: Any = None, **fields: Any) -> int:
    wanted = bench.pull_fields(topic, offset, **{"sys_flag": HOLD, "suspend_ms": 15_000, **fields})
    opaque: int = bench.request(11, wanted, peer=peer)
    bench.flush()
    return opaque


def test_a_reader_that_asks_for_large_answers_gets_them(bench: Any) -> None:
    for number in range(80):
        bench.send("T", b"%d" % number, queue_id=number % 2)
    assert len(split_records(bench.pull("T", most=80).body)) == 32
    answer = bench.pull("T", most=80, bulk=True)
    assert [record.body for record in split_records(answer.body)] == [b"%d" % n for n in range(0, 80, 2)]
    assert answer.ext["nextBeginOffset"] == "40"


def test_a_large_answer_has_a_bound(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(60):
        bench.send("T", bytes(1000), queue_id=0)
    monkeypatch.setattr(limits, "BULK_PULL_MESSAGES", 50)
    assert len(split_records(bench.pull("T", most=100, bulk=True).body)) == 50
    monkeypatch.setattr(limits, "BULK_PULL_BYTES", 40_000)
    assert 20_000 < len(bench.pull("T", most=100, bulk=True).body) <= 40_000
