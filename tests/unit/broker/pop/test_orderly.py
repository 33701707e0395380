"""Orderly pops: a queue is blocked until its batch is acked or over, and order holds."""

from __future__ import annotations

from typing import Any

import pytest


def offsets(answer: Any) -> list[int]:
    return [message.offset for message in answer.messages]


def times(answer: Any) -> list[int]:
    return [message.times for message in answer.messages]


@pytest.mark.scenario(41)
@pytest.mark.behaviour("POP-15")
def test_a_queue_is_blocked_until_its_batch_is_acked_or_over(pops: Any) -> None:
    pops.send(5)
    other = pops.bench.new_peer()
    first = pops.pop(order=True, most=2, invisible_ms=5_000)
    assert (offsets(first), first.ext["reviveQid"]) == ([0, 1], "999")
    assert first.ext["orderCountInfo"] == "0 0 0"
    blocked = pops.pop(order=True, most=2, peer=other)
    assert (blocked.code, blocked.rest) == (210, 0)
    pops.ack_all(first)
    assert pops.offset() == 2
    second = pops.pop(order=True, most=2, invisible_ms=5_000, peer=other)
    assert offsets(second) == [2, 3]
    pops.bench.wait(5_000)
    again = pops.pop(order=True, most=2)
    assert (offsets(again), times(again)) == ([2, 3], [1, 1])


@pytest.mark.scenario(42)
@pytest.mark.behaviour("POP-15")
def test_a_batch_with_a_gap_comes_again_as_a_whole(pops: Any) -> None:
    pops.send(103)
    pops.bench.broker.offsets.commit("G", "T", 0, 100, pops.bench.now_ms)
    batch = pops.pop(order=True, most=3, invisible_ms=5_000).messages
    pops.ack(batch[1])
    pops.ack(batch[2])
    assert pops.offset() == 100
    pops.bench.wait(5_000)
    again = pops.pop(order=True, most=3)
    assert (offsets(again), times(again)) == ([100, 101, 102], [1, 1, 1])
    assert again.ext["orderCountInfo"] == "0 qo0%100 1;0 qo0%101 1;0 qo0%102 1;0 0 1"
    for message in again.messages:
        pops.ack(message)
    assert pops.offset() == 103


@pytest.mark.scenario(43)
@pytest.mark.behaviour("POP-15")
@pytest.mark.parametrize("queue_id", [0, -1])
def test_the_last_ack_wakes_who_waits(pops: Any, queue_id: int) -> None:
    pops.send(4)
    batch = pops.pop(order=True, most=2)
    waiting = pops.park(order=True, queue_id=queue_id)
    pops.ack(batch.messages[0])
    assert waiting() is None
    pops.ack(batch.messages[1])
    answer = waiting()
    assert answer is not None
    assert offsets(answer) == [2, 3]


@pytest.mark.parametrize("queue_id", [0, -1])
def test_the_end_of_the_block_wakes_who_waits(pops: Any, queue_id: int) -> None:
    pops.send(2)
    pops.pop(order=True, invisible_ms=5_000)
    waiting = pops.park(order=True, queue_id=queue_id)
    pops.bench.wait(4_980, step_ms=20)
    assert waiting() is None
    pops.bench.wait(60, step_ms=20)
    answer = waiting()
    assert answer is not None
    assert times(answer) == [1, 1]


@pytest.mark.parametrize("queue_id", [0, -1])
def test_who_waits_is_woken_when_the_last_of_several_put_off_messages_is_due(
    pops: Any, queue_id: int
) -> None:
    """A consumer that fails puts off its batch message by message, so they are due one after the other."""
    pops.send(3)
    batch = pops.pop(order=True, invisible_ms=60_000).messages
    waiting = pops.park(order=True, queue_id=queue_id)
    for message in batch:
        pops.change(message, 100)
        pops.bench.wait(30, step_ms=10)
    pops.bench.wait(60, step_ms=10)
    assert waiting() is None
    pops.bench.wait(40, step_ms=10)
    answer = waiting()
    assert answer is not None
    assert offsets(answer) == [0, 1, 2]


@pytest.mark.scenario(44)
def test_the_same_attempt_gets_the_same_batch_again(pops: Any) -> None:
    pops.send(3)
    first = pops.pop(order=True, most=2, attempt="a1")
    pops.bench.wait(100)
    again = pops.pop(order=True, most=2, attempt="a1")
    assert (offsets(again), times(again)) == (offsets(first), [0, 0])
    assert pops.pop(order=True, attempt="a2").code == 210
    assert pops.ack(first.messages[0]).code == 0  # of the delivery whose answer was lost
    assert pops.offset() == 0
    pops.ack_all(again)
    assert pops.offset() == 2


@pytest.mark.scenario(45)
def test_a_message_put_off_blocks_its_queue_for_that_time(pops: Any) -> None:
    pops.send(2)
    (message,) = pops.pop(order=True, most=1, invisible_ms=60_000).messages
    pops.bench.wait(1_000)
    popped_ms = message.handle.pop_ms
    answer = pops.change(message, 5_000)
    assert answer.code == 0
    assert answer.ext == {"popTime": str(popped_ms), "invisibleTime": "6000", "reviveQid": "999"}
    pops.bench.wait(4_900)
    assert pops.pop(order=True, most=1).code == 210
    pops.bench.wait(100)
    (again,) = pops.pop(order=True, most=1).messages
    assert (again.offset, again.times) == (0, 1)
    assert pops.change(again, 5_000).code == 0
    assert pops.ack(again).code == 0
    assert pops.offset() == 1


@pytest.mark.scenario(46)
def test_an_ack_of_an_older_delivery_has_no_effect(pops: Any) -> None:
    pops.send(2)
    (old,) = pops.pop(order=True, most=1, invisible_ms=1_000).messages
    pops.bench.wait(1_000)
    (new,) = pops.pop(order=True, most=1).messages
    assert pops.ack(old).code == 0
    assert pops.change(old, 1_000).code == 208
    assert pops.offset() == 0
    assert pops.ack(new).code == 0
    assert pops.offset() == 1
    assert pops.ack(new).code == 0
    assert pops.change(new, 1_000).ext["popTime"] == "0"  # it is done: success, and nothing changes


@pytest.mark.scenario(47)
def test_an_ack_of_what_was_not_given_out_is_illegal(pops: Any) -> None:
    pops.send(5)
    (message,) = pops.pop(order=True, most=1).messages
    message.handle = message.handle._replace(offset=3)
    answer = pops.ack(message)
    assert answer.code == 13
    assert "was not given out" in answer.remark
    assert pops.batch_ack([message]).code == 13
    assert pops.offset() == 0


def test_an_orderly_ack_out_of_nowhere_does_not_move_the_group(pops: Any) -> None:
    pops.send(5)
    (message,) = pops.pop(order=True, most=1).messages
    for group in ("G", "stranger"):
        forged = pops.ack_fields(message, consumerGroup=group, offset=4)
        forged["extraInfo"] = str(message.handle._replace(offset=4, start_offset=4, pop_ms=77))
        assert pops.bench.ask(200051, forged).code == 0
        assert pops.offset(group=group) <= 0


def test_a_batch_ack_serves_orderly_batches_too(pops: Any) -> None:
    pops.send(3)
    batch = pops.pop(order=True).messages
    assert pops.batch_ack(batch[1:]).code == 0
    assert pops.offset() == 0
    assert pops.batch_ack(batch[:1]).code == 0
    assert pops.offset() == 3


@pytest.mark.scenario(48)
@pytest.mark.behaviour("POP-15")
@pytest.mark.parametrize("way", ["kill", "restart"])
def test_block_and_counts_survive_the_end_of_the_broker(pops: Any, way: str) -> None:
    pops.send(4)
    pops.pop(order=True, most=2, invisible_ms=1_000)
    pops.bench.wait(1_000)
    batch = pops.pop(order=True, most=2, invisible_ms=5_000).messages
    pops.ack(batch[0])
    getattr(pops, way)()
    assert pops.offset() == 1
    assert pops.pop(order=True).code == 210
    waiting = pops.park(order=True, most=2)
    pops.bench.wait(5_020, step_ms=20)
    answer = waiting()
    assert answer is not None
    assert (offsets(answer), times(answer)) == ([1, 2], [2, 0])


def test_queues_block_one_by_one(pops: Any) -> None:
    pops.topic("U", queues=2)
    for queue_id in range(2):
        pops.send(2, topic="U", queue_id=queue_id)
    first = pops.pop(topic="U", order=True, queue_id=0)
    assert {message.handle.queue_id for message in first.messages} == {0}
    second = pops.pop(topic="U", order=True, queue_id=-1)
    assert {message.handle.queue_id for message in second.messages} == {1}
    assert pops.pop(topic="U", order=True, queue_id=-1).code == 210


def test_orderly_pops_leave_retries_alone_and_make_none(pops: Any) -> None:
    pops.send(1)
    pops.pop(order=True, invisible_ms=1_000)
    pops.bench.wait(3_000)
    assert pops.bench.broker.topics.get("%RETRY%G_T") is None
    assert pops.bench.broker.pop.leases.count == 0


def test_filtered_messages_are_passed_over_in_order(pops: Any) -> None:
    for number in range(6):
        pops.send(1, tag="AB"[number % 2], first=number)
    batch = pops.pop(order=True, exp="B", most=2)
    assert offsets(batch) == [1, 3]
    pops.ack_all(batch)
    assert pops.offset() == 4
    pops.ack_all(pops.pop(order=True, exp="B"))
    assert pops.pop(order=True, exp="B").code == 210


def test_what_somebody_holds_for_days_is_not_forgotten_after_one(pops: Any) -> None:
    pops.send(2)
    batch = pops.pop(order=True, invisible_ms=2 * 86_400_000).messages
    pops.bench.wait(30 * 3_600_000, step_ms=1_800_000)
    assert pops.pop(order=True).code == 210
    assert pops.ack(batch[0]).code == 0
    assert pops.offset() == 1
    pops.bench.wait(3 * 86_400_000, step_ms=3_600_000)
    assert not pops.bench.broker.pop.orders.table


def test_a_smaller_batch_does_not_forget_the_attempts_of_the_rest(pops: Any) -> None:
    pops.send(3)
    for _ in range(2):
        pops.pop(order=True, invisible_ms=1_000)
        pops.bench.wait(1_000)
    pops.ack_all(pops.pop(order=True, most=1))
    answer = pops.pop(order=True)
    assert (offsets(answer), times(answer)) == ([1, 2], [2, 2])
