"""POP_MESSAGE: what it checks, where it looks, where it begins, what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.broker.pop.helpers import expire_half, item

from penstock.message.record import split_records
from penstock.wire.bodies import SubscriptionGroupConfig


@pytest.mark.scenario(1)
@pytest.mark.behaviour("POP-8")
def test_a_pop_gives_messages_with_handles(pops: Any) -> None:
    pops.send(10)
    answer = pops.pop()
    assert (answer.code, answer.command.remark) == (0, "FOUND")
    assert answer.ext["startOffsetInfo"] == "0 0 0"
    assert answer.ext["msgOffsetInfo"] == "0 0 0,1,2,3,4,5,6,7,8,9"
    assert answer.ext["popTime"] == str(pops.bench.now_ms)
    assert answer.ext["invisibleTime"] == "60000"
    assert (answer.ext["reviveQid"], answer.ext["restNum"]) == ("0", "0")
    assert "orderCountInfo" not in answer.ext
    assert answer.bodies == [b"m%d" % i for i in range(10)]
    assert [message.offset for message in answer.messages] == list(range(10))
    assert str(answer.messages[3].handle) == f"0 {pops.bench.now_ms} 60000 0 0 broker-a 0 3"
    assert [record.topic for record in split_records(answer.command.body)] == ["T"] * 10


# ---- checks -------------------------------------------------------------------------------------


@pytest.mark.scenario(16)
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"most": 33}, 29),
        ({"most": -1}, 29),
        ({"queue_id": 1}, 29),
        ({"group": "no good name!"}, 26),
        ({"topic": "nothing"}, 17),
        ({"topic": "%LMQ%light"}, 17),
        ({"exp": "a > ", "exp_type": "SQL92"}, 23),
        ({"exp": "x", "exp_type": "MAGIC"}, 23),
        ({"invisible_ms": 0}, 29),
        ({"invisible_ms": -5}, 29),
        ({"invisible_ms": 3 * 86_400_000 + 1}, 29),
    ],
)
def test_bad_requests_are_refused_and_change_nothing(pops: Any, fields: dict[str, Any], code: int) -> None:
    pops.send(1)
    answer = pops.pop(**fields)
    assert answer.code == code
    assert answer.command.remark
    assert answer.ext["popTime"] == answer.ext["invisibleTime"] == answer.ext["restNum"] == "0"
    assert (pops.offset(), pops.in_flight()) == (-1, 0)


def test_what_administrators_forbid_is_not_popped(pops: Any) -> None:
    pops.send(1)
    pops.bench.broker.groups.put(SubscriptionGroupConfig("closed", consume_enable=False), pops.bench.now_ms)
    assert pops.pop(group="closed").code == 16
    pops.topic("writeonly", perm=2)
    assert pops.pop(topic="writeonly").code == 16


def test_the_invisible_time_may_be_anything_between_its_bounds(pops: Any) -> None:
    pops.send(2)
    pops.pop(most=1, invisible_ms=1)
    pops.pop(most=1, invisible_ms=3 * 86_400_000)
    pops.bench.wait(100)
    assert pops.pop().bodies == [b"m0"]


@pytest.mark.scenario(19)
def test_a_request_that_comes_too_late_is_told_so_at_once(pops: Any) -> None:
    pops.send(1)
    answer = pops.pop(born_ms=pops.bench.now_ms - 60_000, poll_ms=15_000)
    assert answer.code == 210
    assert "timeout too much" in answer.command.remark
    assert "startOffsetInfo" not in answer.ext
    assert pops.pop(born_ms=pops.bench.now_ms - 15_400, poll_ms=15_000).code == 0


def test_a_request_for_no_messages_finds_none(pops: Any) -> None:
    pops.send(1)
    assert pops.pop(most=0).code == 210
    assert pops.in_flight() == 0


# ---- which queues, in which order ---------------------------------------------------------------


@pytest.mark.behaviour("POP-4")
def test_all_queues_are_visited_from_a_random_one(new_pops: Callable[..., Any]) -> None:
    pops = new_pops(queues=4)
    starts = set()
    for _ in range(40):
        for queue_id in range(4):
            pops.send(1, queue_id=queue_id)
        visited = [
            int(item.split(" ")[1]) for item in pops.pop(queue_id=-1).ext["startOffsetInfo"].split(";")
        ]
        assert visited == [(visited[0] - step) % 4 for step in range(4)]
        starts.add(visited[0])
    assert starts == {0, 1, 2, 3}


def test_a_full_batch_leaves_the_rest_to_the_rest_count(new_pops: Callable[..., Any]) -> None:
    pops = new_pops(queues=4)
    for queue_id in range(4):
        pops.send(3, queue_id=queue_id)
    answer = pops.pop(queue_id=-1, most=5)
    assert (len(answer.messages), answer.rest) == (5, 7)
    assert answer.ext["startOffsetInfo"].count(";") == 1


@pytest.mark.behaviour("POP-4")
def test_retries_come_first_once_in_five_pops_and_fill_up_the_others(new_pops: Callable[..., Any]) -> None:
    first = 0
    pops = new_pops()
    rounds = 100
    for _ in range(rounds):
        pops.send(1)
        pops.pop(invisible_ms=1_000)
        pops.bench.wait(1_100, step_ms=550)
        pops.send(1, first=100)
        answer = pops.pop()
        assert sorted(answer.bodies) == [b"m0", b"m100"]
        first += answer.bodies[0] == b"m0"
        pops.ack_all(answer)
    assert 0.1 * rounds <= first <= 0.3 * rounds


@pytest.mark.scenario(49)
def test_with_the_new_retry_names_both_retry_topics_are_drained(new_pops: Callable[..., Any]) -> None:
    pops = new_pops()
    pops.send(3)
    pops.pop(invisible_ms=1_000)
    pops.bench.wait(1_100)
    pops.bench.properties["enableRetryTopicV2"] = "true"
    pops.restart()
    pops.send(3, first=3)
    assert len(pops.pop(invisible_ms=1_000).messages) == 6
    pops.bench.wait(1_100)  # each goes back to the retry topic that it came from, or to the new one
    drained = set()
    while (answer := pops.pop(most=2)).code == 0:
        drained |= {(message.body, message.real_topic) for message in answer.messages}
        pops.ack_all(answer)
    assert drained == {
        *((b"m%d" % number, "%RETRY%G_T") for number in range(3)),
        *((b"m%d" % number, "%RETRY%G+T") for number in range(3, 6)),
    }
    assert pops.lag().total == 0


def test_retries_are_shown_under_the_real_name_if_that_is_wanted(new_pops: Callable[..., Any]) -> None:
    pops = new_pops(popResponseReturnActualRetryTopic="true")
    pops.send(2)
    pops.pop(invisible_ms=1_000)
    pops.bench.wait(1_100)
    answer = pops.pop()
    assert [record.topic for record in split_records(answer.command.body)] == ["%RETRY%G_T"] * 2
    assert answer.ext["startOffsetInfo"] == "1 0 0"
    pops.ack_all(answer)
    assert pops.lag().total == 0


@pytest.mark.scenario(51)
def test_light_queues_are_not_served_and_refused_as_an_unknown_topic(pops: Any) -> None:
    """The protocol's answer of a broker whose enableLmq is off, which is the default."""
    answer = pops.pop(topic="%LMQ%device-7")
    assert answer.code == 17


# ---- where in a queue ---------------------------------------------------------------------------


@pytest.mark.scenario(31)
@pytest.mark.behaviour("POP-6")
def test_a_new_group_begins_where_its_init_mode_says(new_pops: Callable[..., Any]) -> None:
    pops = new_pops(initPopOffsetByCheckMsgInMem="false")
    pops.send(10)
    assert pops.pop(group="last", init=1).bodies == [b"m9"]
    assert pops.pop(group="first", init=0).messages[0].offset == 0
    assert pops.pop(group="first", init=1).code == 210  # it has an offset now


@pytest.mark.scenario(31)
@pytest.mark.behaviour("POP-6")
def test_a_late_first_consumer_of_a_fresh_topic_misses_nothing(pops: Any) -> None:
    pops.send(3)
    assert pops.pop(init=1).messages[0].offset == 0


@pytest.mark.behaviour("POP-6")
@pytest.mark.parametrize("wrong", [5, 1_000_000])
def test_an_offset_behind_the_end_is_corrected_and_the_pop_goes_on(pops: Any, wrong: int) -> None:
    pops.send(3)
    pops.bench.broker.offsets.commit("G", "T", 0, wrong, pops.bench.now_ms)
    corrected = pops.pop()
    assert pops.offset() == 3
    pops.send(1, first=3)
    assert [*corrected.bodies, *pops.pop().bodies][-1] == b"m3"


@pytest.mark.scenario(33)
@pytest.mark.behaviour("POP-6")
def test_an_offset_before_the_beginning_is_corrected_and_handles_stay_good(
    new_pops: Callable[..., Any],
) -> None:
    pops = new_pops()
    for number in range(200):
        assert pops.bench.send("T", b"%04d" % number + b"x" * 20_000).code == 0
    pops.pop(most=1)
    pops.bench.broker.offsets.commit("G", "T", 0, 0, pops.bench.now_ms)
    oldest = expire_half(pops)
    assert oldest > 0
    answer = pops.pop(most=3)
    assert [message.offset for message in answer.messages] == [oldest, oldest + 1, oldest + 2]
    assert answer.ext["startOffsetInfo"] == f"0 0 {oldest}"
    assert {pops.ack(message).code for message in answer.messages} == {0}
    assert pops.in_flight() == 1  # what was popped before its file went


# ---- filters, limits ----------------------------------------------------------------------------


@pytest.mark.scenario(21)
@pytest.mark.behaviour("POP-7")
def test_a_filter_passes_over_what_it_does_not_want_and_leases_none_of_it(pops: Any) -> None:
    for _ in range(50):
        properties = "TAGS\x01B\x02"
        body = b"".join(item(b"b", properties) for _ in range(100))
        assert pops.bench.send("T", body, batch=True).code == 0
    pops.send(1, tag="A")
    waiting = pops.park(exp="A")
    pops.bench.wait(2_000)
    answer = waiting()
    assert answer is not None
    assert (answer.code, answer.bodies) == (0, [b"m0"])
    assert pops.offset() == 5_001
    assert pops.in_flight() == 1


def test_a_filtered_batch_has_gaps_and_every_message_its_own_handle(pops: Any) -> None:
    for number in range(9):
        pops.send(1, tag="A" if number % 3 == 1 else "B", first=number)
    answer = pops.pop(exp="A")
    assert answer.bodies == [b"m1", b"m4", b"m7"]
    assert answer.ext["startOffsetInfo"] == "0 0 0"
    assert answer.ext["msgOffsetInfo"] == "0 0 1,4,7"
    assert pops.offset() == 9
    pops.ack(answer.messages[1])
    pops.bench.wait(60_200)
    assert pops.pop(exp="A").bodies == [b"m1", b"m7"]


def test_sql_expressions_filter_pops(pops: Any) -> None:
    pops.bench.send("T", b"cheap", properties="price\x013\x02")
    pops.bench.send("T", b"dear", properties="price\x0130\x02")
    assert pops.pop(exp="price > 10", exp_type="SQL92").bodies == [b"dear"]


@pytest.mark.scenario(52)
def test_a_queue_with_too_much_in_flight_gives_nothing_until_some_is_acked(
    new_pops: Callable[..., Any],
) -> None:
    pops = new_pops(enablePopMessageThreshold="true", popInflightMessageThreshold="10")
    pops.send(20)
    popped = pops.pop(most=11)
    answer = pops.pop()
    assert (answer.code, answer.rest) == (210, 9)
    waiting = pops.park()
    assert waiting() is None
    pops.ack(popped.messages[0])
    answer = waiting()
    assert answer is not None
    assert len(answer.messages) == 9
    assert pops.pop().code == 210


@pytest.mark.scenario(22)
@pytest.mark.behaviour("POP-5")
def test_pops_at_the_same_time_share_a_queue_without_overlap(pops: Any) -> None:
    """None of them waits for the others' leases to be on the disk."""
    pops.send(1_000)
    asked = pops.fields(most=7)
    bench = pops.bench
    seen: list[int] = []
    while True:
        numbers = [bench.request(200050, asked) for _ in range(16)]
        bench.flush()
        answers = [pops.read(bench.answered(number), asked) for number in numbers]
        for answer in answers:
            seen += [message.offset for message in answer.messages]
            pops.ack_all(answer)
        if not any(answer.messages for answer in answers):
            break
    assert seen == list(range(1_000))


@pytest.mark.behaviour("POP-9")
def test_what_is_left_over_wakes_the_next_in_line(pops: Any) -> None:
    waiting = [pops.park(most=2, queue_id=-1) for _ in range(3)]
    numbers = [pops.bench.request(310, pops.bench.send_fields("T"), b"m%d" % number) for number in range(5)]
    pops.bench.flush()
    assert all(pops.bench.answered(number) for number in numbers)
    bodies = [body for answered in waiting for body in answered().bodies]
    assert bodies == [b"m%d" % number for number in range(5)]


def test_a_message_larger_than_a_batch_should_be_is_still_delivered(pops: Any) -> None:
    pops.bench.send("T", b"x" * 500_000)
    pops.bench.send("T", b"y" * 300_000)
    answer = pops.pop()
    assert [len(body) for body in answer.bodies] == [500_000]
    assert answer.rest == 1


def test_a_producer_cannot_hand_in_a_handle(pops: Any) -> None:
    forged = "0 1 1 0 0 broker-a 0 0"
    pops.bench.send("T", b"m", properties=f"POP_CK\x01{forged}\x02")
    (message,) = pops.pop(invisible_ms=1_000).messages
    assert str(message.handle) != forged
    pops.bench.wait(1_100)
    (message,) = pops.pop().messages
    assert pops.ack(message).code == 0
    assert pops.lag().total == 0


def test_a_pop_without_the_optional_fields_is_served(pops: Any) -> None:
    pops.send(1)
    asked = pops.fields()
    for name in ("bornTime", "initMode", "exp", "expType", "order"):
        del asked[name]
    assert pops.bench.ask(200050, asked).code == 0


@pytest.mark.parametrize("name", ["consumerGroup", "topic", "queueId", "maxMsgNums", "invisibleTime"])
def test_a_pop_without_a_required_field_is_refused_by_name(pops: Any, name: str) -> None:
    asked = pops.fields()
    del asked[name]
    answer = pops.bench.ask(200050, asked)
    assert answer.code == 1
    assert name in answer.remark


def test_peeking_shows_messages_and_changes_nothing(pops: Any) -> None:
    asked = {"consumerGroup": "G", "topic": "T", "queueId": 0, "maxMsgNums": 2}
    assert pops.bench.ask(200052, asked).code == 19
    pops.send(3)
    answer = pops.bench.ask(200052, asked)
    assert (answer.code, answer.remark, answer.ext["restNum"]) == (0, "FOUND", "3")
    assert [bytes(record.body) for record in split_records(answer.body)] == [b"m0", b"m1"]
    assert (pops.offset(), pops.in_flight()) == (-1, 0)
