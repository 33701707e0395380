"""A group that changes between PULL and POP loses nothing, and a hung consumer blocks nobody."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.message.record import split_records


def pulled(pops: Any, topic: str) -> list[bytes]:
    """What a pull client of the group finds, from the group's offset on."""
    start = max(0, pops.offset(topic))
    answer = pops.bench.pull(topic, start, group="G")
    return [bytes(record.body) for record in split_records(answer.body)] if answer.code == 0 else []


@pytest.mark.scenario(29)
def test_from_pop_to_pull_the_rest_comes_from_the_offset_and_the_unacked_from_the_retry_topic(
    pops: Any,
) -> None:
    pops.send(12)
    popped = pops.pop(most=8, invisible_ms=5_000).messages
    for message in popped[:3]:
        pops.ack(message)
    assert pulled(pops, "T") == [b"m8", b"m9", b"m10", b"m11"]
    pops.bench.wait(5_200, step_ms=50)
    assert pulled(pops, "%RETRY%G_T") == [b"m3", b"m4", b"m5", b"m6", b"m7"]


@pytest.mark.scenario(30)
def test_from_pull_to_pop_the_group_goes_on_where_it_has_committed(pops: Any) -> None:
    pops.send(10)
    pops.bench.broker.groups.find("G", pops.bench.now_ms)
    commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 6}
    assert pops.bench.ask(15, commit).code == 0
    assert pops.pop(init=1).bodies == [b"m6", b"m7", b"m8", b"m9"]


@pytest.mark.scenario(27)
@pytest.mark.behaviour("POP-14")
def test_a_hung_consumer_delays_only_what_it_holds(pops: Any) -> None:
    hung, alive = pops.bench.new_peer(40_001), pops.bench.new_peer(40_002)
    pops.send(32)
    pops.pop(peer=hung, invisible_ms=10_000)
    for number in range(100, 140):  # new messages never wait for the one that hangs
        waiting = pops.park(peer=alive, queue_id=-1)
        pops.send(1, first=number)
        assert waiting().bodies == [b"m%d" % number]
        pops.ack_all(waiting())
        pops.bench.wait(100)
    taken: list[bytes] = []
    while len(taken) < 32:
        waiting = pops.park(peer=alive, queue_id=-1)
        pops.bench.wait(6_200, step_ms=50)
        pops.ack_all(waiting())
        taken += waiting().bodies
    assert sorted(taken) == sorted(b"m%d" % number for number in range(32))
    assert pops.lag().total == 0


@pytest.mark.behaviour("POP-13")
def test_a_consumer_that_fails_puts_a_message_off_and_one_too_slow_loses_it(pops: Any) -> None:
    pops.send(2)
    failing, slow = pops.pop(invisible_ms=10_000).messages
    delays_ms = (10_000, 30_000, 60_000)
    for times, delay_ms in enumerate(delays_ms, 1):
        assert pops.change(failing, delay_ms).code == 0
        pops.bench.wait(delay_ms - 100, step_ms=100)
        assert [m.body for m in pops.pop(group="G").messages if m.body == b"m0"] == []
        pops.bench.wait(200, step_ms=20)
        (failing,) = [message for message in pops.pop().messages if message.body == b"m0"]
        assert failing.times == times
    assert pops.ack(slow).code == 0  # too late: the lease is lost, the copy was given to another
    assert pops.lag().in_flight == 2
