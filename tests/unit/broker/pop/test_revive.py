"""Leases that run out: what comes back, when, in what form, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.broker.pop.helpers import expire_half, item

from penstock.message.properties import find_property
from penstock.wire.bodies import SubscriptionGroupConfig

SLOT_MS = 40


@pytest.mark.scenario(3)
@pytest.mark.behaviour("POP-11")
def test_what_nobody_acked_comes_back_once_through_the_retry_topic(pops: Any) -> None:
    pops.send(10)
    popped = pops.pop()
    pops.bench.wait(59_980, step_ms=20)
    assert pops.pop().code == 210
    pops.bench.wait(100, step_ms=20)
    again = pops.pop()
    assert again.bodies == popped.bodies
    assert [message.times for message in again.messages] == [1] * 10
    assert {message.record.topic for message in again.messages} == {"T"}
    assert {message.real_topic for message in again.messages} == {"%RETRY%G_T"}
    assert {message.handle.retry_flag for message in again.messages} == {"1"}
    assert pops.pop().code == 210
    config = pops.bench.broker.topics.get("%RETRY%G_T")
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


def test_a_copy_tells_its_first_pop_and_its_group_and_keeps_the_rest(pops: Any) -> None:
    bench = pops.bench
    properties = "KEYS\x01k1\x02TAGS\x01A\x02UNIQ_KEY\x01U7\x02colour\x01red\x02"
    bench.send("T", b"m", properties=properties, flag=5, born_ms=1_234)
    first_ms = bench.now_ms
    for times in (1, 2):
        pops.pop(invisible_ms=1_000)
        bench.wait(1_100)
        record = bench.stored("%RETRY%G_T")[times - 1]
        assert (record.reconsume_times, record.flag, record.born_ms) == (times, 5, 1_234)
        found = {
            key: find_property(record.properties_text, key)
            for key in ("KEYS", "TAGS", "UNIQ_KEY", "colour", "1ST_POP_TIME", "ORIGIN_GROUP")
        }
        assert found == {
            "KEYS": "k1",
            "TAGS": "A",
            "UNIQ_KEY": "U7",
            "colour": "red",
            "1ST_POP_TIME": str(first_ms),
            "ORIGIN_GROUP": "G",
        }


@pytest.mark.parametrize("lead_ms", range(0, 100, 7))
def test_nothing_comes_back_early_nor_later_than_a_slot_and_a_tick(pops: Any, lead_ms: int) -> None:
    pops.bench.now_ms += lead_ms
    pops.send(1)
    pops.pop(invisible_ms=1_000)
    popped_ms = pops.bench.now_ms
    waiting = pops.park()
    while waiting() is None:
        pops.bench.wait(20, step_ms=20)
    late_ms = pops.bench.now_ms - popped_ms - 1_000
    assert 0 <= late_ms <= SLOT_MS + 20


# ---- dead letters -------------------------------------------------------------------------------


def fail_until_gone(pops: Any, most: int = 50) -> list[int]:
    """Pops and never acks; tells the attempt counts that were seen."""
    seen = []
    while len(seen) < most and (answer := pops.pop(invisible_ms=1_000)).code == 0:
        seen += [message.times for message in answer.messages]
        pops.bench.wait(1_100, step_ms=100)
    return seen


def test_a_message_that_fails_every_attempt_ends_in_the_dead_letter_topic(pops: Any) -> None:
    pops.bench.broker.groups.put(SubscriptionGroupConfig("G", retry_max_times=3), pops.bench.now_ms)
    pops.bench.send("T", b"poison", properties="UNIQ_KEY\x01U1\x02")
    assert fail_until_gone(pops) == [0, 1, 2, 3]
    (dead,) = pops.bench.stored("%DLQ%G")
    assert (bytes(dead.body), dead.reconsume_times) == (b"poison", 4)
    assert find_property(dead.properties_text, "RETRY_TOPIC") == "T"
    assert find_property(dead.properties_text, "UNIQ_KEY") == "U1"
    assert pops.lag().total == 0


def test_the_default_is_sixteen_retries(pops: Any) -> None:
    pops.send(1)
    assert fail_until_gone(pops) == list(range(17))
    assert len(pops.bench.stored("%DLQ%G")) == 1


def test_the_old_way_without_dead_letters_can_be_set(new_pops: Callable[..., Any]) -> None:
    pops = new_pops(popDeadLetterEnable="false")
    pops.bench.broker.groups.put(SubscriptionGroupConfig("G", retry_max_times=1), pops.bench.now_ms)
    pops.send(1)
    assert fail_until_gone(pops, 6) == [0, 1, 2, 3, 4, 5]
    assert pops.bench.broker.topics.get("%DLQ%G") is None


def test_suspending_uses_up_no_attempt(pops: Any) -> None:
    pops.bench.broker.groups.put(SubscriptionGroupConfig("G", retry_max_times=0), pops.bench.now_ms)
    pops.send(1)
    for _ in range(3):
        (message,) = pops.pop().messages
        pops.change(message, 500, suspend=True)
        pops.bench.wait(600)
    (message,) = pops.pop(invisible_ms=500).messages
    assert message.times == 0
    pops.bench.wait(600)
    assert len(pops.bench.stored("%DLQ%G")) == 1


# ---- what cannot come back ----------------------------------------------------------------------


@pytest.mark.scenario(39)
def test_a_message_that_retention_removed_does_not_come_back_as_another(new_pops: Callable[..., Any]) -> None:
    pops = new_pops()
    for number in range(200):
        assert pops.bench.send("T", b"%04d" % number + b"x" * 20_000).code == 0
    pops.pop(most=2, invisible_ms=60_000)
    oldest = expire_half(pops)
    assert oldest > 2
    pops.bench.wait(200)
    assert pops.in_flight() == 0
    assert pops.bench.broker.topics.get("%RETRY%G_T") is None
    assert pops.pop(most=1).messages[0].offset == oldest


@pytest.mark.scenario(50)
@pytest.mark.parametrize("what", ["topic", "group", "group and its offsets"])
def test_what_was_in_flight_for_a_deleted_topic_or_group_is_dropped(pops: Any, what: str) -> None:
    pops.topic("U")
    pops.send(2)
    pops.send(1, topic="U")
    pops.pop(invisible_ms=1_000)
    pops.pop(topic="U", group="H", invisible_ms=1_000)
    if what == "topic":
        assert pops.bench.ask(215, {"topic": "T"}).code == 0
    else:
        clean = what == "group and its offsets"
        assert pops.bench.ask(207, {"groupName": "G", "cleanOffset": clean}).code == 0
    pops.bench.wait(1_200)
    leases = pops.bench.broker.pop.leases
    assert leases.count == 0
    assert pops.bench.broker.topics.get("%RETRY%G_T") is None
    assert pops.pop(topic="U", group="H").bodies == [b"m0"]  # the others' revival goes on


def test_a_topic_made_anew_is_not_given_messages_of_the_old_one(pops: Any) -> None:
    pops.send(3)
    pops.pop(invisible_ms=2_000)
    assert pops.bench.ask(215, {"topic": "T"}).code == 0
    pops.topic()
    pops.send(2, first=50)
    pops.bench.wait(3_000)
    assert pops.pop().bodies == [b"m50", b"m51"]


def test_a_message_with_the_longest_properties_comes_back_without_ours(pops: Any) -> None:
    length = 32_760
    while pops.bench.send("T", b"m", properties=f"a\x01{'x' * length}\x02").code != 0:
        length -= 1
    pops.pop(invisible_ms=1_000)
    pops.bench.wait(1_200)
    (message,) = pops.pop().messages
    assert (message.body, message.times) == (b"m", 1)
    assert message.record.find("ORIGIN_GROUP") is None


# ---- a disk that fails --------------------------------------------------------------------------


@pytest.mark.scenario(40)
def test_copies_that_cannot_be_written_are_made_when_they_can_be(pops: Any) -> None:
    pops.send(3)
    pops.pop(invisible_ms=1_000)
    store = pops.bench.store
    store.refuse("test", "the disk is full")
    pops.bench.wait(4_000, step_ms=100)
    assert pops.in_flight() == 3
    assert pops.pop().code == 210
    store.allow("test")
    pops.bench.wait(200)
    answer = pops.pop()
    assert answer.bodies == [b"m0", b"m1", b"m2"]
    assert [message.times for message in answer.messages] == [1, 1, 1]


def test_copies_lost_with_a_failed_flush_are_made_again(pops: Any) -> None:
    pops.send(3)
    pops.pop(invisible_ms=1_000)
    bench = pops.bench
    bench.now_ms += 1_100
    bench.broker.tick(bench.now_ms)
    flush = bench.store.take_flush()
    error = OSError(28, "no space left")
    bench.store.flushed(flush, error)
    bench.broker.flush_failed(error, bench.now_ms)
    for _ in range(5):
        bench.now_ms += 2_000
        for job in bench.store.tick(bench.now_ms):
            job()
        bench.wait(20, step_ms=20)
    assert sorted(pops.pop().bodies) == [b"m0", b"m1", b"m2"]
    assert pops.lag().in_flight == 3


def test_a_pop_whose_lease_could_not_be_written_is_refused_and_redelivered_in_its_time(pops: Any) -> None:
    pops.send(2)
    bench = pops.bench
    number = bench.request(200050, pops.fields(invisible_ms=1_000))
    flush = bench.store.take_flush()
    error = OSError(28, "no space left")
    bench.store.flushed(flush, error)
    bench.broker.flush_failed(error, bench.now_ms)
    assert bench.answered(number).code == 14
    for _ in range(5):
        bench.now_ms += 2_000
        for job in bench.store.tick(bench.now_ms):
            job()
        bench.wait(20, step_ms=20)
    assert sorted(pops.pop().bodies) == [b"m0", b"m1"]


def test_acks_that_came_while_a_flush_failed_are_refused_and_count_when_the_disk_is_well(pops: Any) -> None:
    pops.send(3)
    batch = pops.pop(invisible_ms=20_000).messages
    bench = pops.bench
    first = bench.request(200051, pops.ack_fields(batch[0]))
    flush = bench.store.take_flush()
    second = bench.request(200051, pops.ack_fields(batch[1]))
    error = OSError(28, "no space left")
    bench.store.flushed(flush, error)
    bench.broker.flush_failed(error, bench.now_ms)
    assert [bench.answered(first).code, bench.answered(second).code] == [14, 14]
    third = bench.request(200051, pops.ack_fields(batch[2]))
    assert bench.answered(third) is None
    for _ in range(5):
        bench.now_ms += 1_000
        for job in bench.store.tick(bench.now_ms):
            job()
        bench.wait(20, step_ms=20)
    assert bench.answered(third).code == 0
    pops.kill()
    pops.bench.wait(20_000, step_ms=100)
    assert pops.pop().code == 210


# ---- the clock ----------------------------------------------------------------------------------


def test_a_clock_set_back_keeps_messages_for_no_longer_than_their_time(pops: Any) -> None:
    pops.send(1)
    pops.pop(invisible_ms=10_000)
    pops.bench.now_ms -= 3_600_000
    pops.bench.wait(9_900, step_ms=100)
    assert pops.pop().code == 210
    pops.bench.wait(200)
    (message,) = pops.pop().messages
    assert pops.ack(message).code == 0
    assert pops.lag().total == 0


def test_a_clock_set_back_while_the_broker_is_down_keeps_nothing_for_longer(pops: Any) -> None:
    pops.send(1)
    pops.pop(invisible_ms=10_000)
    pops.bench.now_ms -= 3_600_000
    pops.kill()
    pops.bench.wait(10_100, step_ms=100)
    assert pops.pop().bodies == [b"m0"]


def test_a_clock_set_forward_gives_messages_back_early_rather_than_never(pops: Any) -> None:
    pops.send(1)
    (old,) = pops.pop(invisible_ms=10_000).messages
    pops.bench.now_ms += 3_600_000
    pops.bench.wait(100)
    (message,) = pops.pop().messages
    pops.bench.now_ms -= 3_600_000
    assert pops.ack(old).code == 0
    assert pops.ack(message).code == 0
    pops.bench.wait(70_000, step_ms=1_000)
    assert pops.pop().code == 210


def test_a_message_stored_in_a_moment_of_wrong_time_comes_back_all_the_same(pops: Any) -> None:
    pops.bench.now_ms += 3_600_000
    pops.send(1)
    pops.bench.now_ms -= 3_600_000
    assert pops.pop(invisible_ms=1_000).bodies == [b"m0"]
    pops.bench.wait(1_200)
    assert pops.pop().bodies == [b"m0"]


def test_thousands_that_end_at_once_all_come_back_within_a_second(pops: Any) -> None:
    count = 3_000
    for number in range(count // 100):
        body = b"".join(item(b"m%d" % (number * 100 + at), "") for at in range(100))
        assert pops.bench.send("T", body, batch=True).code == 0
    popped = 0
    while popped < count:
        popped += len(pops.pop(invisible_ms=5_000).messages)
    pops.bench.wait(6_000, step_ms=20)
    bodies: list[bytes] = []
    while (answer := pops.pop()).code == 0:
        bodies += answer.bodies
        pops.batch_ack(answer.messages)
    assert sorted(bodies) == sorted(b"m%d" % number for number in range(count))
    assert pops.lag().total == 0
