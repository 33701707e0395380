"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: honest handles, late ones, forged ones."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from penstock.wire.bodies import TopicConfig


@pytest.mark.scenario(2)
@pytest.mark.behaviour("POP-10")
def test_acked_messages_never_come_back(pops: Any) -> None:
    pops.send(10)
    pops.ack_all(pops.pop())
    assert pops.offset() == 10
    pops.bench.wait(62_000, step_ms=500)
    assert pops.pop().code == 210
    pops.kill()
    pops.bench.wait(62_000, step_ms=500)
    assert pops.pop().code == 210


@pytest.mark.scenario(4)
def test_of_a_batch_only_what_was_not_acked_comes_back(pops: Any) -> None:
    pops.send(3)
    batch = pops.pop().messages
    for message in (batch[2], batch[1]):
        assert pops.ack(message).code == 0
    pops.bench.wait(60_200, step_ms=100)
    assert pops.pop().bodies == [b"m0"]


@pytest.mark.scenario(5)
def test_the_same_ack_five_times_counts_once(pops: Any) -> None:
    pops.send(3)
    batch = pops.pop().messages
    assert [pops.ack(batch[0]).code for _ in range(5)] == [0] * 5
    assert pops.in_flight() == 2
    pops.bench.wait(60_200, step_ms=100)
    assert pops.pop().bodies == [b"m1", b"m2"]


@pytest.mark.scenario(6)
def test_a_late_ack_succeeds_and_the_copy_is_still_delivered(pops: Any) -> None:
    pops.send(1)
    (message,) = pops.pop(invisible_ms=1_000).messages
    pops.bench.wait(1_200)
    assert pops.ack(message).code == 0
    (again,) = pops.pop().messages
    assert (again.body, again.times) == (b"m0", 1)


@pytest.mark.scenario(7)
@pytest.mark.behaviour("POP-11")
def test_a_message_whose_ack_was_lost_comes_back_exactly_once(pops: Any) -> None:
    pops.send(1)
    pops.pop(invisible_ms=1_000)
    pops.bench.wait(1_200)
    pops.ack_all(pops.pop())
    pops.bench.wait(70_000, step_ms=500)
    assert pops.pop().code == 210


# ---- batches ------------------------------------------------------------------------------------


@pytest.mark.scenario(13)
def test_one_batch_ack_covers_two_queues_and_a_retry_queue(pops: Any) -> None:
    pops.topic("U", queues=2)
    pops.send(1, topic="U", first=50)
    pops.pop(topic="U", invisible_ms=1_000)
    pops.bench.wait(1_200)
    pops.send(6, topic="U")
    pops.send(4, topic="U", queue_id=1)
    messages = [
        *pops.pop(topic="U", queue_id=0).messages,
        *pops.pop(topic="U", queue_id=1).messages,
    ]
    assert sorted({message.real_topic for message in messages}) == ["%RETRY%G_U", "U"]
    odd = [message for message in messages if message.offset % 2 or message.handle.retry_flag == "1"]
    assert pops.batch_ack(odd).code == 0
    assert pops.lag("U").in_flight == 5
    left = [message for message in messages if message not in odd]
    assert pops.batch_ack(left).code == 0
    assert pops.lag("U").total == 0


def test_the_bits_of_a_batch_ack_are_as_the_protocol_has_them(pops: Any) -> None:
    pops.send(8)
    batch = pops.pop().messages
    entry = {
        "consumerGroup": "G",
        "topic": "T",
        "retry": "0",
        "startOffset": 0,
        "queueId": 0,
        "reviveQueueId": 0,
        "popTime": batch[0].handle.pop_ms,
        "invisibleTime": 60_000,
        "bitSet": "Kg==",
    }
    body = json.dumps({"acks": [entry], "brokerName": "broker-a"}).encode()
    assert pops.bench.ask(200151, None, body).code == 0
    (lease,) = pops.leases().leases
    assert lease.offsets == [0, 2, 4, 6, 7]  # {1, 3, 5} are acked


@pytest.mark.scenario(14)
@pytest.mark.parametrize("body", [b"", b"{}", b'{"acks":[],"brokerName":"broker-a"}'])
def test_a_batch_ack_of_nothing_is_told_so(pops: Any, body: bytes) -> None:
    assert pops.bench.ask(200151, None, body).code == 208


@pytest.mark.parametrize(
    ("changes", "code", "left"),
    [
        ({"r": "7"}, 1, 3),
        ({"t": "nothing"}, 0, 3),
        ({"q": 99}, 0, 3),
        ({"so": -1}, 0, 3),
        ({"pt": 5}, 0, 3),
        ({"c": "others"}, 0, 3),
        ({"it": 59_999}, 29, 3),
        ({"pt": 1 << 60}, 29, 3),
        ({"b": base64.b64encode(b"\xff" * 2_000).decode()}, 29, 3),
        ({"b": base64.b64encode(b"\xff" * 20).decode()}, 29, 3),
        ({"b": ""}, 0, 3),
        ({"b": "****"}, 1, 3),
        ({}, 0, 0),
    ],
)
def test_a_batch_ack_that_is_wrong_in_one_place_acks_nothing(
    pops: Any, changes: dict[str, Any], code: int, left: int
) -> None:
    pops.send(3)
    pop_ms = pops.pop().messages[0].handle.pop_ms
    entry = {"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": pop_ms, "it": 60_000, "b": "Bw=="}
    body = json.dumps({"acks": [{**entry, **changes}], "brokerName": "broker-a"}).encode()
    answer = pops.bench.ask(200151, None, body)
    assert (answer.code, pops.in_flight()) == (code, left)
    assert bool(answer.remark) == (code != 0)


def test_one_bad_entry_does_not_keep_the_others_from_counting(pops: Any) -> None:
    pops.topic("U")
    pops.send(1)
    pops.send(1, topic="U")
    (first,) = pops.pop().messages
    (second,) = pops.pop(topic="U").messages
    first.handle = first.handle._replace(invisible_ms=1)
    assert pops.batch_ack([first, second]).code == 29
    assert (pops.in_flight(), pops.in_flight("U")) == (1, 0)


def test_a_batch_ack_for_another_broker_is_refused(pops: Any) -> None:
    pops.send(1)
    assert pops.batch_ack(pops.pop().messages, brokerName="broker-z").code == 29
    assert pops.in_flight() == 1


# ---- bad handles --------------------------------------------------------------------------------


@pytest.mark.scenario(15)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"offset": 11}, 208),
        ({"queueId": 99}, 13),
        ({"queueId": -1}, 13),
        ({"topic": "nothing"}, 17),
        ({"extraInfo": "1 2 3"}, 1),
        ({"extraInfo": ""}, 1),
        ({"extraInfo": "a b c d e f g h"}, 1),
        ({"extraInfo": "0 -1 60000 0 0 broker-a 0 0"}, 1),
        ({"extraInfo": "٣ 1 60000 0 0 broker-a 0 0"}, 1),
        ({"extraInfo": "9" * 30 + " 1 60000 0 0 broker-a 0 0"}, 1),
    ],
)
def test_acks_and_changes_that_cannot_be_read_are_refused(
    pops: Any, changes: dict[str, Any], code: int
) -> None:
    pops.send(10)
    message = pops.pop().messages[0]
    assert pops.ack(message, **changes).code == code
    answer = pops.change(message, 1_000, **changes)
    assert answer.code == code
    assert pops.in_flight() == 10


@pytest.mark.scenario(15)
def test_the_offset_behind_the_last_message_may_be_acked_but_not_changed(pops: Any) -> None:
    pops.send(1)
    (message,) = pops.pop().messages
    behind = {"offset": 1, "extraInfo": str(message.handle._replace(offset=1))}
    assert pops.ack(message, **behind).code == 0
    assert pops.change(message, 1_000, **behind).code == 208
    assert pops.in_flight() == 1


def forgeries(handle: Any) -> list[Any]:
    return [
        handle._replace(broker_name="broker-z"),
        handle._replace(queue_id=1),
        handle._replace(offset=2),
        handle._replace(retry_flag="1"),
        handle._replace(invisible_ms=59_999),
        handle._replace(start_offset=2),
        handle._replace(pop_ms=handle.pop_ms + 3_600_000),
    ]


def test_forged_and_foreign_handles_are_refused_and_change_nothing(pops: Any) -> None:
    pops.send(3)
    message = pops.pop().messages[1]
    honest = message.handle
    for forged in forgeries(honest):
        answer = pops.ack(message, extraInfo=str(forged))
        assert (answer.code, bool(answer.remark)) == (29, True), forged
        answer = pops.change(message, 1_000, extraInfo=str(forged))
        assert answer.code == 29, forged
        assert answer.ext["popTime"] == "0"
        assert pops.in_flight() == 3
    assert pops.ack(message, extraInfo=f"{honest} 4711").code == 0  # what proxies append is left alone
    assert pops.in_flight() == 2


def test_a_handle_of_another_group_has_no_effect(pops: Any) -> None:
    pops.send(1)
    (message,) = pops.pop().messages
    pops.pop(group="H")
    assert pops.ack(message, consumerGroup="nobody").code == 0
    assert pops.change(message, 1_000, consumerGroup="nobody").code == 208
    assert (pops.in_flight(), pops.in_flight(group="H")) == (1, 1)


def test_a_handle_from_before_the_topic_was_made_anew_has_no_effect(pops: Any) -> None:
    pops.send(3)
    old = pops.pop().messages
    assert pops.bench.ask(215, {"topic": "T"}).code == 0
    assert pops.ack(old[0]).code == 17
    pops.topic()
    assert pops.ack(old[0]).code in (0, 208)
    pops.send(3, first=10)
    new = pops.pop()
    assert new.bodies == [b"m10", b"m11", b"m12"]
    assert pops.ack(old[0]).code == 0
    assert pops.change(old[0], 5_000).code == 208
    assert pops.in_flight() == 3
    pops.bench.wait(61_000, step_ms=100)
    assert sorted(pops.pop().bodies) == [b"m10", b"m11", b"m12"]


def test_an_ack_from_before_a_reset_does_not_fit_what_is_popped_after_it(pops: Any) -> None:
    pops.send(2)
    for order in (False, True):
        (old,) = pops.pop(most=1, order=order).messages
        reset = {"group": "G", "topic": "T", "timestamp": 0, "isForce": True}
        assert pops.bench.ask(222, reset).code == 0
        (new,) = pops.pop(most=1, order=order).messages
        assert new.body == b"m0"
        pops.ack(old)
        assert pops.lag().in_flight == 1
        assert pops.ack(new).code == 0
        assert pops.lag().in_flight == 0
        assert pops.bench.ask(222, reset).code == 0


def test_acks_of_a_deleted_group_have_no_effect_and_its_leases_are_gone(pops: Any) -> None:
    pops.send(2)
    batch = pops.pop().messages
    assert pops.bench.ask(207, {"groupName": "G", "cleanOffset": True}).code == 0
    assert pops.ack(batch[0]).code == 0
    assert pops.bench.broker.pop.leases.count == 0
    assert pops.pop().bodies == [b"m0", b"m1"]  # it begins anew


# ---- changing the invisible time ----------------------------------------------------------------


@pytest.mark.scenario(9)
@pytest.mark.behaviour("POP-12")
def test_a_changed_message_comes_back_by_its_new_time_only(pops: Any) -> None:
    pops.send(1)
    (message,) = pops.pop(invisible_ms=10_000).messages
    pops.bench.wait(5_000, step_ms=100)
    old = str(message.handle)
    answer = pops.change(message, 30_000)
    assert answer.code == 0
    assert answer.ext == {"popTime": str(pops.bench.now_ms), "invisibleTime": "30000", "reviveQid": "0"}
    assert str(message.handle) != old
    pops.bench.wait(29_900, step_ms=100)
    assert pops.pop().code == 210
    pops.bench.wait(200)
    (again,) = pops.pop().messages
    assert again.times == 1


@pytest.mark.scenario(10)
@pytest.mark.behaviour("POP-12")
def test_after_a_change_the_old_handle_is_dead(pops: Any) -> None:
    pops.send(1)
    (message,) = pops.pop().messages
    old = str(message.handle)
    pops.change(message, 5_000)
    assert pops.ack(message, extraInfo=old).code == 0
    assert pops.change(message, 5_000, extraInfo=old).code == 208
    pops.bench.wait(5_200)
    assert pops.pop().bodies == [b"m0"]


@pytest.mark.scenario(11)
@pytest.mark.behaviour("POP-12")
def test_after_a_change_the_new_handle_ends_it(pops: Any) -> None:
    pops.send(2)
    batch = pops.pop(invisible_ms=10_000).messages
    assert pops.change(batch[1], 5_000).code == 0
    assert str(batch[1].handle).startswith("1 ")  # its lease begins at the message itself
    assert pops.ack(batch[1]).code == 0
    pops.bench.wait(10_200, step_ms=100)
    assert pops.pop().bodies == [b"m0"]


@pytest.mark.scenario(55)
@pytest.mark.parametrize(("suspend", "times"), [(True, 0), (False, 1)])
def test_a_suspended_message_comes_back_without_counting_an_attempt(
    pops: Any, suspend: bool, times: int
) -> None:
    pops.send(1)
    (message,) = pops.pop(invisible_ms=10_000).messages
    pops.bench.wait(2_000)
    assert pops.change(message, 4_000, suspend=suspend).code == 0
    waiting = pops.park(queue_id=-1)
    pops.bench.wait(3_900)
    assert waiting() is None
    pops.bench.wait(200)
    (again,) = waiting().messages
    assert again.times == times


def test_a_message_may_be_given_up_at_once(pops: Any) -> None:
    pops.send(1)
    (message,) = pops.pop().messages
    assert pops.change(message, 0).code == 0
    pops.bench.wait(100)
    (again,) = pops.pop().messages
    assert again.times == 1


@pytest.mark.parametrize("invisible_ms", [-1, 3 * 86_400_000 + 1])
def test_a_new_time_out_of_bounds_is_refused(pops: Any, invisible_ms: int) -> None:
    pops.send(1)
    (message,) = pops.pop().messages
    assert pops.change(message, invisible_ms).code == 29
    assert pops.ack(message).code == 0


def test_what_is_acked_or_over_cannot_be_changed(pops: Any) -> None:
    pops.send(2)
    batch = pops.pop(invisible_ms=1_000).messages
    pops.ack(batch[0])
    assert pops.change(batch[0], 5_000).code == 208
    pops.bench.now_ms += 1_000
    assert pops.change(batch[1], 5_000).code == 208
    pops.bench.wait(100)
    assert pops.pop().bodies == [b"m1"]


def test_many_changes_within_a_millisecond_give_as_many_handles(pops: Any) -> None:
    pops.send(1)
    (message,) = pops.pop().messages
    seen = {str(message.handle)}
    for _ in range(5):
        assert pops.change(message, 1_000).code == 0
        seen.add(str(message.handle))
    assert len(seen) == 6
    assert pops.in_flight() == 1
    assert pops.ack(message).code == 0
    assert pops.lag().total == 0


def test_a_retry_is_acked_and_changed_under_its_real_topic(pops: Any) -> None:
    pops.send(2)
    pops.pop(invisible_ms=1_000)
    pops.bench.wait(1_200)
    batch = pops.pop().messages
    assert pops.ack(batch[0], topic="T", extraInfo=str(batch[0].handle)).code == 29
    assert pops.change(batch[1], 2_000).code == 0
    assert pops.ack(batch[0]).code == 0
    pops.bench.wait(2_200)
    (again,) = pops.pop().messages
    assert (again.body, again.times) == (b"m1", 2)


def test_acks_are_answered_when_they_are_durable(pops: Any) -> None:
    pops.send(1)
    (message,) = pops.pop().messages
    bench = pops.bench
    first = bench.request(200051, pops.ack_fields(message))
    again = bench.request(200051, pops.ack_fields(message))
    assert bench.answered(first) is bench.answered(again) is None
    bench.flush()
    assert bench.answered(first).code == bench.answered(again).code == 0


def test_a_queue_that_was_taken_away_gives_its_messages_back_all_the_same(pops: Any) -> None:
    pops.topic("U", queues=2)
    pops.send(1, topic="U", queue_id=1)
    (message,) = pops.pop(topic="U", queue_id=1, invisible_ms=1_000).messages
    pops.bench.broker.topics.put(TopicConfig("U", read_queue_nums=1, write_queue_nums=1), pops.bench.now_ms)
    assert pops.ack(message).code == 13
    pops.bench.wait(1_200)
    assert pops.pop(topic="U").bodies == [b"m0"]
