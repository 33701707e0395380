"""Pops and notifications that wait: who is woken by what, who is not, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def test_a_pop_without_time_to_wait_is_answered_at_once(pops: Any) -> None:
    answer = pops.pop(poll_ms=0)
    assert (answer.code, answer.command.remark) == (210, "NO_MESSAGE_IN_QUEUE")


@pytest.mark.scenario(17)
@pytest.mark.behaviour("POP-9")
@pytest.mark.parametrize("queue_id", [0, -1])
def test_a_waiting_pop_is_answered_when_a_message_arrives(pops: Any, queue_id: int) -> None:
    waiting = pops.park(queue_id=queue_id, poll_ms=5_000)
    pops.bench.wait(2_000)
    assert waiting() is None
    pops.send(1)
    assert waiting().bodies == [b"m0"]  # without waiting for a tick


@pytest.mark.scenario(18)
@pytest.mark.behaviour("POP-9")
def test_a_pop_that_waited_in_vain_is_told_so_in_time(pops: Any) -> None:
    waiting = pops.park(poll_ms=5_000)
    pops.bench.wait(4_900, step_ms=20)
    assert waiting() is None
    pops.bench.wait(300, step_ms=20)
    answer = waiting()
    assert answer is not None
    assert answer.code == 210
    assert pops.bench.now_ms - 300 <= int(answer.ext["popTime"]) <= pops.bench.now_ms
    assert (answer.ext["invisibleTime"], answer.ext["reviveQid"], answer.ext["restNum"]) == (
        "60000",
        "0",
        "0",
    )
    assert answer.ext["startOffsetInfo"] == answer.ext["msgOffsetInfo"] == ""


def test_a_client_that_leaves_its_group_is_given_nothing_any_more(pops: Any) -> None:
    bench = pops.bench
    peer = bench.new_peer(50_001)
    leaving = bench.request(200050, pops.fields(poll_ms=15_000), peer=peer)
    other_group = bench.request(200050, pops.fields(poll_ms=15_000, group="H"), peer=peer)
    staying = pops.park(poll_ms=15_000)
    bye = bench.request(35, {"clientID": "c", "consumerGroup": "G"}, peer=peer)
    # Told before the reply, after which it may close its connection.
    assert [answer.opaque for answer in peer.received] == [leaving, bye]
    assert peer.received[0].code == 210
    pops.send(1)
    assert staying().bodies == [b"m0"]
    assert [answer.opaque for answer in peer.received[2:]] == [other_group]


@pytest.mark.scenario(20)
@pytest.mark.behaviour("POP-9")
def test_one_pop_too_many_is_told_that_the_line_is_full(pops: Any) -> None:
    asked = pops.fields(poll_ms=15_000)
    bench = pops.bench
    for _ in range(1_025):
        bench.request(200050, asked)
    info = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    assert bench.ask(200055, info).ext["pollingNum"] == "1025"
    assert bench.ask(200050, asked).code == 209
    assert bench.ask(200055, info).ext["pollingNum"] == "1025"
    assert bench.ask(200055, {**info, "topic": "nothing"}).code == 17


def test_a_broker_with_all_its_places_taken_says_so(new_pops: Callable[..., Any]) -> None:
    pops = new_pops(queues=8, maxPopPollingSize="3")
    for queue_id in range(3):
        pops.park(queue_id=queue_id)
    assert pops.pop(queue_id=3, poll_ms=5_000).code == 209
    pops.bench.wait(15_100, step_ms=100)
    assert pops.park(queue_id=3, poll_ms=5_000)() is None


def test_thousands_of_waiting_pops_each_get_their_message(new_pops: Callable[..., Any]) -> None:
    pops = new_pops(queues=8)
    bench = pops.bench
    peers = [bench.new_peer(50_000 + number) for number in range(40)]
    numbers = {}
    for index in range(4_000):
        peer = peers[index % 40]
        asked = pops.fields(queue_id=index % 8, most=1, poll_ms=60_000, group=f"G{index % 2}")
        numbers[bench.request(200050, asked, peer=peer)] = (peer, asked)
    for number in range(2_000):
        bench.request(310, bench.send_fields("T", queue_id=number % 8), b"m%d" % number)
    bench.flush()
    bench.flush()
    seen: dict[str, list[bytes]] = {"G0": [], "G1": []}
    for peer in peers:
        for command in peer.received:
            asked = numbers[command.opaque][1]
            seen[asked["consumerGroup"]] += pops.read(command, asked).bodies
    # even queues have the pops of one group, odd queues those of the other
    assert sorted(seen["G0"]) == sorted(b"m%d" % n for n in range(2_000) if n % 8 % 2 == 0)
    assert sorted(seen["G1"]) == sorted(b"m%d" % n for n in range(2_000) if n % 8 % 2 == 1)


def test_whoever_has_gone_is_not_given_messages(pops: Any) -> None:
    gone = pops.bench.new_peer()
    pops.park(peer=gone)
    waiting = pops.park()
    pops.bench.broker.disconnected(gone, pops.bench.now_ms)
    pops.send(1)
    assert waiting().bodies == [b"m0"]


def test_a_clients_fast_clock_does_not_make_the_wait_longer(pops: Any) -> None:
    waiting = pops.park(born_ms=pops.bench.now_ms + 3_600_000, poll_ms=5_000)
    pops.bench.wait(5_200, step_ms=100)
    assert waiting().code == 210


def test_only_one_who_wants_the_message_is_woken(pops: Any) -> None:
    for_a = pops.park(exp="A")
    for_b = pops.park(exp="B")
    pops.send(1, tag="B")
    assert for_a() is None
    assert for_b().bodies == [b"m0"]
    pops.send(1, tag="A", first=1)
    assert for_a().bodies == [b"m1"]


def test_every_group_has_its_own_copy_of_an_arrival(pops: Any) -> None:
    waiting = [pops.park(group=f"G{number}") for number in range(5)]
    pops.send(1)
    assert [answered().bodies for answered in waiting] == [[b"m0"]] * 5


# ---- wake-ups by revival ------------------------------------------------------------------------


@pytest.mark.scenario(56)
@pytest.mark.behaviour("POP-11")
@pytest.mark.parametrize("queue_id", [-1, 0, 3])
def test_a_waiting_pop_gets_what_comes_back_whichever_queue_it_asked_for(
    new_pops: Callable[..., Any], queue_id: int
) -> None:
    pops = new_pops(queues=4)
    pops.send(1, queue_id=2)
    pops.pop(queue_id=2, invisible_ms=5_000)
    pops.pop(queue_id=2, group="H")
    waiting = pops.park(queue_id=queue_id)
    others = pops.park(queue_id=queue_id, group="H")
    pops.bench.wait(4_980, step_ms=20)
    assert waiting() is None
    pops.bench.wait(100, step_ms=20)
    answer = waiting()
    assert answer is not None
    assert [message.times for message in answer.messages] == [1]
    assert others() is None


def test_each_of_many_that_come_back_wakes_somebody(new_pops: Callable[..., Any]) -> None:
    pops = new_pops(queues=4)
    for queue_id in range(4):
        pops.send(2, queue_id=queue_id)
    pops.pop(queue_id=-1, invisible_ms=2_000)
    waiting = [pops.park(queue_id=queue_id, most=1) for queue_id in (-1, -1, 0, 1, 2, 3, 3, 3)]
    pops.bench.wait(2_100, step_ms=20)
    answers = [answered() for answered in waiting]
    assert [answer and len(answer.messages) for answer in answers] == [1] * 8


def test_an_orderly_pop_in_front_does_not_keep_retries_from_others(pops: Any) -> None:
    pops.send(1)
    pops.pop(invisible_ms=1_000)
    orderly = pops.park(queue_id=-1, order=True)
    waiting = pops.park(queue_id=0)
    pops.bench.wait(1_100, step_ms=20)
    assert orderly() is None
    assert waiting().bodies == [b"m0"]


@pytest.mark.scenario(32)
def test_a_reset_wakes_those_who_wait_and_begins_there(pops: Any) -> None:
    pops.send(10)
    pops.pop()
    waiting = pops.park()
    reset = {"group": "G", "topic": "T", "timestamp": 0, "isForce": True}
    assert pops.bench.ask(222, reset).code == 0
    answer = waiting()
    assert answer is not None
    assert [message.offset for message in answer.messages] == list(range(10))
    pops.ack_all(answer)
    pops.bench.wait(61_000, step_ms=500)
    assert pops.pop().code == 210  # the older leases count no more
    assert pops.offset() == 10


def test_skipping_what_waits_ends_its_leases_too(pops: Any) -> None:
    pops.send(10)
    pops.pop(most=4)
    skip = {"group": "G", "topic": "T", "timestamp": -1, "isForce": True}
    assert pops.bench.ask(222, skip).code == 0
    assert pops.lag().total == 0
    pops.kill()
    pops.bench.wait(61_000, step_ms=500)
    assert pops.pop().code == 210


# ---- notifications ------------------------------------------------------------------------------


def notification(pops: Any, **fields: Any) -> Callable[[], Any]:
    asked = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": -1,
        "pollTime": 15_000,
        "bornTime": pops.bench.now_ms,
        **fields,
    }
    number = pops.bench.request(200054, asked)

    def answered() -> Any:
        pops.bench.flush()
        return pops.bench.answered(number)

    return answered


@pytest.mark.scenario(54)
def test_a_notification_tells_of_an_arrival_and_a_pop_finds_it(pops: Any) -> None:
    waiting = notification(pops)
    assert waiting() is None
    pops.send(1)
    assert waiting().ext == {"hasMsg": "true", "pollingFull": "false"}
    assert pops.pop(queue_id=-1).bodies == [b"m0"]
    assert notification(pops, pollTime=0)().ext["hasMsg"] == "false"


@pytest.mark.scenario(57)
def test_a_notification_with_a_filter_waits_for_what_it_wants(pops: Any) -> None:
    waiting = notification(pops, exp="A", expType="TAG")
    pops.send(1, tag="B")
    assert waiting() is None
    pops.send(1, tag="A")
    assert waiting().ext["hasMsg"] == "true"


def test_a_notification_ends_in_its_time(pops: Any) -> None:
    waiting = notification(pops, pollTime=2_000)
    pops.bench.wait(1_900, step_ms=20)
    assert waiting() is None
    pops.bench.wait(150, step_ms=20)
    assert (waiting().code, waiting().ext["hasMsg"]) == (0, "false")


def test_a_notification_tells_of_retries_and_of_nothing_in_flight(pops: Any) -> None:
    pops.send(1)
    assert notification(pops)().ext["hasMsg"] == "true"
    pops.pop(invisible_ms=1_000)
    waiting = notification(pops)
    assert waiting() is None
    pops.bench.wait(1_100)
    assert waiting().ext["hasMsg"] == "true"


def test_notifications_have_lines_of_their_own_that_may_be_full(new_pops: Callable[..., Any]) -> None:
    pops = new_pops(popPollingSize="2")
    waiting = [notification(pops) for _ in range(4)]
    assert [answered() is None for answered in waiting] == [True, True, True, False]
    assert waiting[3]().ext == {"hasMsg": "false", "pollingFull": "true"}
    assert (
        pops.bench.ask(200055, {"consumerGroup": "G", "topic": "T", "queueId": -1}).ext["pollingNum"] == "0"
    )


def test_an_orderly_notification_says_nothing_while_the_queue_is_blocked(pops: Any) -> None:
    pops.send(2)
    batch = pops.pop(order=True, most=1, invisible_ms=5_000).messages
    waiting = notification(pops, order=True)
    assert waiting() is None
    pops.ack(batch[0])
    assert waiting().ext["hasMsg"] == "true"


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"topic": "nothing"}, 17), ({"queueId": 7}, 29), ({"exp": "a >", "expType": "SQL92"}, 23)],
)
def test_notifications_about_nothing_are_refused(pops: Any, fields: dict[str, Any], code: int) -> None:
    answer = notification(pops, **fields)()
    assert (answer.code, answer.ext["hasMsg"]) == (code, "false")
