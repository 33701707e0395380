"""How far a POP group is, and what is with whom: ready, in flight, delayed, oldest; the list of leases."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.wire.bodies import GroupLags


def figures(pops: Any, **names: str) -> tuple[int, int, int]:
    lag = pops.lag(**names)
    return lag.ready, lag.in_flight, lag.delayed


@pytest.mark.behaviour("POP-7")
def test_every_message_of_a_group_is_ready_in_flight_or_delayed_until_it_is_acked(pops: Any) -> None:
    pops.send(10)
    first_ms = pops.bench.now_ms
    pops.bench.wait(1_000)
    pops.send(2, first=10)
    answer = pops.pop(most=4)
    lag = pops.lag()
    assert (lag.ready, lag.in_flight, lag.delayed) == (8, 4, 0)
    assert (lag.group, lag.topic, lag.mode, lag.total) == ("G", "T", "PULL", 12)
    assert lag.oldest_timestamp == first_ms
    pops.change(answer.messages[1], 90_000)
    assert figures(pops) == (8, 3, 1)
    for index in (0, 2, 3):
        pops.ack(answer.messages[index])
    assert figures(pops) == (8, 0, 1)
    pops.ack(answer.messages[1])
    assert figures(pops) == (8, 0, 0)
    pops.ack_all(pops.pop())
    lag = pops.lag()
    assert (lag.total, lag.oldest_timestamp) == (0, None)


def test_what_comes_back_counts_for_the_topic_it_belongs_to(pops: Any) -> None:
    pops.send(3)
    stored_ms = pops.bench.now_ms
    pops.pop()
    pops.bench.wait(60_200)
    assert figures(pops) == (3, 0, 0)
    assert pops.lag().oldest_timestamp > stored_ms  # the copies have a store time of their own
    again = pops.pop(most=2)
    assert figures(pops) == (1, 2, 0)
    pops.ack_all(again)
    assert figures(pops) == (1, 0, 0)


def test_the_oldest_message_is_found_whatever_was_acked_or_changed(pops: Any) -> None:
    times = []
    for number in range(6):
        pops.send(1, first=number)
        times.append(pops.bench.now_ms)
        pops.bench.wait(100)
    batch = pops.pop().messages
    for index in (0, 1, 3, 4):
        pops.ack(batch[index])
    assert pops.lag().oldest_timestamp == times[2]
    pops.change(batch[2], 90_000)
    assert pops.lag().oldest_timestamp == times[2]
    pops.ack(batch[2])
    assert pops.lag().oldest_timestamp == times[5]


def test_an_orderly_batch_is_in_flight_too(pops: Any) -> None:
    pops.send(5)
    batch = pops.pop(order=True, most=3).messages
    assert figures(pops) == (2, 3, 0)
    pops.ack(batch[1])
    pops.change(batch[2], 90_000)
    assert figures(pops) == (2, 1, 1)
    pops.ack(batch[0])
    (lease,) = pops.leases().leases
    assert (lease.offsets, lease.order, lease.delayed) == ([2], True, True)
    pops.bench.wait(90_001)
    assert figures(pops) == (3, 0, 0)
    assert pops.leases().leases == []


def test_lags_of_all_groups_are_told_at_once_and_survive_a_kill(pops: Any) -> None:
    pops.send(4)
    pops.topic("U")
    pops.send(1, topic="U")
    pops.pop(most=1)
    pops.pop(group="H", most=3)
    pops.pop(topic="U")
    pops.kill()
    answer = pops.bench.ask(700001, {})
    found = {(lag.group, lag.topic): (lag.ready, lag.in_flight) for lag in GroupLags.decode(answer.body).lags}
    assert found == {("G", "T"): (3, 1), ("G", "U"): (0, 1), ("H", "T"): (1, 3)}


def test_leases_tell_what_is_with_whom_and_until_when(pops: Any) -> None:
    pops.topic("U", queues=2)
    pops.send(3, topic="U", queue_id=1)
    pops.send(2)
    other = pops.bench.new_peer(40_001)
    long = pops.pop(topic="U", queue_id=1, invisible_ms=90_000)
    pops.ack(long.messages[1])
    pops.pop(most=1, invisible_ms=30_000, peer=other)
    late = pops.pop(most=1, invisible_ms=50_000).messages[0]
    now_ms = pops.bench.now_ms
    pops.bench.wait(10_000)
    pops.change(late, 70_000)
    shown = pops.leases()
    assert shown.total == 4
    assert [
        (lease.topic, lease.queue_id, lease.offsets, lease.holder, lease.delayed) for lease in shown.leases
    ] == [
        ("T", 0, [0], "127.0.0.1:40001", False),
        ("T", 0, [1], "127.0.0.1:33154", True),
        ("U", 1, [0, 2], "127.0.0.1:33154", False),
    ]
    assert [lease.visible_timestamp for lease in shown.leases] == [
        now_ms + 30_000,
        now_ms + 80_000,
        now_ms + 90_000,
    ]
    assert [lease.topic for lease in pops.leases(topic="U").leases] == ["U"]
    assert [lease.topic for lease in pops.leases(maxNums=1).leases] == ["T"]
    assert pops.leases(maxNums=1).total == 4
    assert pops.leases(maxNums=-1).leases == []


def test_a_lease_of_a_retry_says_so(pops: Any) -> None:
    pops.send(1)
    pops.pop(invisible_ms=1_000)
    pops.bench.wait(1_200)
    pops.pop()
    (lease,) = pops.leases().leases
    assert (lease.topic, lease.retry, lease.offsets) == ("T", True, [0])


def test_unknown_groups_and_topics_are_refused(pops: Any) -> None:
    ask = pops.bench.ask
    assert ask(700001, {"consumerGroup": "nobody"}).code == 26
    assert ask(700002, {"consumerGroup": "nobody"}).code == 26
    assert ask(700001, {"topic": "nothing"}).code == 17
    assert ask(700002, {}).code == 1
