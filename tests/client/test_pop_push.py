"""Push consumers in POP mode: what they pop, how they retry, and what becomes of slow and hung ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from penstock import ConsumeFrom, ConsumeStatus, Message, Producer, PushConsumer, RetryLater
from penstock.admin import AdminClient
from penstock.client.config import POP_RETRY_DELAYS_MS, Timings
from penstock.errors import TopicNotFound
from penstock.testing import RunningBroker
from penstock.wire.codes import RequestCode

FIRST = ConsumeFrom.FIRST_OFFSET


async def put(server: RunningBroker, topic: str, *bodies: bytes, **options: Any) -> None:
    async with Producer(server.name_server) as producer:
        await producer.send_many([Message(topic, body, **options) for body in bodies])


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def dead_letters(admin: AdminClient, group: str, wanted: int) -> int:
    """How many there are, once there are as many as wanted."""
    count = 0
    for _ in range(400):
        try:
            stats = await admin.topic_stats(f"%DLQ%{group}")
            count = sum(offset.max_offset for offset in stats.offset_table.values())
        except TopicNotFound:
            pass
        if count >= wanted:
            break
        await asyncio.sleep(0.02)
    return count


class Wiretap:
    """An RPC hook that remembers what a client asks."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, dict[str, str]]] = []

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
        self.requests.append((code, dict(ext)))

    def after_response(self, address: str, code: int, ext: dict[str, str], response: Any) -> None:
        return

    def sent(self, code: int) -> list[dict[str, str]]:
        return [ext for asked, ext in self.requests if asked == code]


@pytest.fixture
def consumer(server: RunningBroker, group: str, quick: Timings) -> Any:
    """`consumer(**options)` makes a push consumer of the test's group."""

    def make(**options: Any) -> PushConsumer:
        return PushConsumer(
            server.name_server, **{"group": group, "consume_from": FIRST, "timings": quick, **options}
        )

    return make


@pytest.mark.behaviour("POP-1")
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
async def test_a_group_set_to_pop_consumes_everything_once_and_leaves_nothing_in_flight(
    server: RunningBroker,
    topic: str,
    set_mode: Any,
    consumer: Any,
    eventually: Any,
    nothing_left: Any,
    kind: str,
) -> None:
    await set_mode("POP")
    await put(server, topic, *numbers(300))
    got: list[bytes] = []
    tap = Wiretap()
    popper = consumer(rpc_hooks=[tap], consume_batch=4)

    @popper.on(topic)
    def plain(message: Any) -> None:
        got.append(message.body)
        assert message.topic == topic

    if kind == "coroutine":
        popper.listeners.discard(topic)

        @popper.on(topic)
        async def coroutine(message: Any) -> None:
            plain(message)

    async with popper:
        await eventually(lambda: len(got) >= 300)
        await eventually(lambda: all(queue.unacked == 0 for queue in popper.pop_service.queues.values()))
        await nothing_left()
    assert sorted(got) == sorted(numbers(300))
    assert {int(pop["queueId"]) for pop in tap.sent(RequestCode.POP_MESSAGE)} == {-1}
    assert not [pull for pull in tap.sent(RequestCode.PULL_MESSAGE) if pull["topic"] == topic]
    acks = len(tap.sent(RequestCode.ACK_MESSAGE)) + len(tap.sent(RequestCode.BATCH_ACK_MESSAGE))
    assert acks < 300  # they travel together


async def test_tags_and_filter_hooks_choose_what_the_listener_sees_and_the_rest_is_acked(
    server: RunningBroker, topic: str, set_mode: Any, consumer: Any, eventually: Any, nothing_left: Any
) -> None:
    await set_mode("POP")
    await put(server, topic, b"1", tag="paid")
    await put(server, topic, b"2", tag="lost")
    await put(server, topic, b"3", tag="paid")

    class Without3:
        def filter(self, group: str, queue: Any, messages: list[Any]) -> None:
            messages[:] = [message for message in messages if message.body != b"3"]

    got: list[bytes] = []
    popper = consumer()
    popper.filter_hooks.append(Without3())

    @popper.on(topic, tags="paid")
    def note(message: Any) -> None:
        got.append(message.body)

    async with popper:
        await eventually(lambda: got)
        await nothing_left()
    assert got == [b"1"]


@pytest.mark.behaviour("POP-13")
@pytest.mark.scenario("pop-12")
async def test_a_failing_message_is_put_off_by_the_delay_of_its_attempt(
    server: RunningBroker, topic: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    """The delays are those of the protocol, a thousand times shorter."""
    await set_mode("POP")
    await put(server, topic, b"x")
    attempts: list[int] = []
    tap = Wiretap()
    delays = tuple(delay_ms // 1000 for delay_ms in POP_RETRY_DELAYS_MS)
    popper = consumer(rpc_hooks=[tap], pop_retry_delays_ms=delays)

    @popper.on(topic)
    def fail(message: Any) -> None:
        attempts.append(message.reconsume_times)
        if len(attempts) < 5:
            raise ValueError("not yet")

    async with popper:
        await eventually(lambda: len(attempts) == 5)
    assert attempts == [0, 1, 2, 3, 4]
    changes = tap.sent(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert [int(change["invisibleTime"]) for change in changes] == [10, 30, 60, 120]
    assert POP_RETRY_DELAYS_MS[:4] == (10_000, 30_000, 60_000, 120_000)


async def test_a_listener_chooses_the_delay_and_negative_levels_mean_dead_letters(
    server: RunningBroker, topic: str, group: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    await set_mode("POP")
    await put(server, topic, b"later", b"never")
    seen: Counter[bytes] = Counter()
    tap = Wiretap()
    popper = consumer(rpc_hooks=[tap], pop_retry_delays_ms=(60_000, 50, 60_000))

    @popper.on(topic)
    def listen(message: Any) -> None:
        seen[message.body] += 1
        if message.body == b"never":
            raise RetryLater(level=-1)
        if seen[b"later"] == 1:
            raise RetryLater(level=1)

    async with popper:
        await eventually(lambda: seen[b"later"] == 2)
        await eventually(lambda: len(tap.sent(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1)
        async with AdminClient(server.name_server) as admin:
            assert await dead_letters(admin, group, 1) == 1
    assert seen == {b"later": 2, b"never": 1}


@pytest.mark.scenario("pop-53")
@pytest.mark.parametrize("policy", ["dead_letter", "ack"])
async def test_a_message_over_the_limit_is_not_shown_but_put_away(
    server: RunningBroker,
    topic: str,
    set_mode: Any,
    consumer: Any,
    eventually: Any,
    nothing_left: Any,
    policy: str,
) -> None:
    """Another consumer with a higher limit has tried it before."""
    await set_mode("POP", queues=1)
    await put(server, topic, b"x")
    tries: list[int] = []
    patient = consumer(pop_retry_delays_ms=(10,), max_reconsume_times=100)

    @patient.on(topic)
    def fail(message: Any) -> None:
        tries.append(message.reconsume_times)
        raise RetryLater("never good")

    async with patient:
        await eventually(lambda: len(tries) >= 5)
    shown: list[int] = []
    tap = Wiretap()
    strict = consumer(max_reconsume_times=2, pop_over_limit=policy, rpc_hooks=[tap])

    @strict.on(topic)
    def show(message: Any) -> None:
        shown.append(message.reconsume_times)

    async with strict:
        await eventually(lambda: tap.sent(RequestCode.ACK_MESSAGE))
        await nothing_left()
    assert not shown
    dead = tap.sent(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert [ask["delayLevel"] for ask in dead] == (["-1"] if policy == "dead_letter" else [])


async def test_the_last_failed_attempt_ends_with_the_dead_letters(
    server: RunningBroker, topic: str, group: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    await set_mode("POP")
    await put(server, topic, b"x")
    tries: list[int] = []
    popper = consumer(pop_retry_delays_ms=(10,), max_reconsume_times=2)

    @popper.on(topic)
    def fail(message: Any) -> None:
        tries.append(message.reconsume_times)
        raise ValueError("never good")

    async with popper, AdminClient(server.name_server) as admin:
        await eventually(lambda: len(tries) == 3)
        assert await dead_letters(admin, group, 1) == 1
    assert tries == [0, 1, 2]


@pytest.mark.behaviour("POP-13")
@pytest.mark.scenario("pop-28")
async def test_the_result_of_a_listener_slower_than_its_lease_is_discarded(
    server: RunningBroker, topic: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    await set_mode("POP")
    await put(server, topic, b"x")
    attempts: list[int] = []
    release = threading.Event()
    tap = Wiretap()
    popper = consumer(pop_invisible_ms=1_500, pop_renew=False, rpc_hooks=[tap])

    @popper.on(topic)
    def slow_at_first(message: Any) -> None:
        attempts.append(message.reconsume_times)
        if len(attempts) == 1:
            release.wait(10)

    async with popper:
        await eventually(lambda: len(attempts) == 2)  # it came again while the first listener still has it
        await eventually(lambda: len(tap.sent(RequestCode.ACK_MESSAGE)) == 1)
        release.set()
        await eventually(lambda: popper.pool.outstanding == 0)
        await asyncio.sleep(0.1)
    assert attempts == [0, 1]
    assert len(tap.sent(RequestCode.ACK_MESSAGE)) == 1
    assert not tap.sent(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)


async def test_a_lease_is_extended_while_the_listener_works(
    server: RunningBroker, topic: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    await set_mode("POP")
    await put(server, topic, b"x")
    attempts: list[int] = []
    done: list[int] = []
    tap = Wiretap()
    popper = consumer(pop_invisible_ms=2_000, rpc_hooks=[tap])

    @popper.on(topic)
    async def slow(message: Any) -> None:
        attempts.append(message.reconsume_times)
        await asyncio.sleep(4.5)
        done.append(message.reconsume_times)

    async with popper:
        await eventually(lambda: done)
        await eventually(lambda: tap.sent(RequestCode.ACK_MESSAGE))
        await asyncio.sleep(2.2)  # longer than the lease: an ack with an old handle would not have counted
    assert attempts == [0]
    assert len(tap.sent(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) >= 2


async def test_a_listener_past_its_consume_timeout_is_not_helped_any_longer(
    server: RunningBroker, topic: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    await set_mode("POP")
    await put(server, topic, b"x")
    attempts: list[int] = []
    popper = consumer(pop_invisible_ms=1_500, consume_timeout_ms=1_000)

    @popper.on(topic)
    async def hang_at_first(message: Any) -> None:
        attempts.append(message.reconsume_times)
        if len(attempts) == 1:
            await asyncio.sleep(60)

    async with popper:
        began = time.monotonic()
        await eventually(lambda: len(attempts) == 2)
        assert time.monotonic() - began > 1.4
        await popper.stop(timeout_ms=0)
    assert attempts == [0, 1]


async def test_messages_that_wait_too_long_for_a_listener_go_back_without_counting_an_attempt(
    server: RunningBroker, topic: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    await set_mode("POP", queues=1)
    await put(server, topic, *numbers(8))
    counts: list[int] = []
    popper = consumer(pop_invisible_ms=2_000, consume_threads=1)

    @popper.on(topic)
    def slow(message: Any) -> None:
        counts.append(message.reconsume_times)
        time.sleep(0.4)

    async with popper:
        await eventually(lambda: len(counts) == 8)
    assert counts == [0] * 8


@pytest.mark.behaviour("POP-14")
@pytest.mark.scenario("pop-27")
async def test_a_consumer_that_hangs_delays_only_what_it_holds(
    server: RunningBroker, topic: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    await set_mode("POP", queues=2)
    await put(server, topic, *numbers(32))
    held: list[bytes] = []
    hung = asyncio.Event()
    # It takes no more than it can hold, so nothing of what comes later is with it.
    stuck = consumer(pop_invisible_ms=1_500, pop_renew=False, consume_threads=32, pop_threshold=31)

    @stuck.on(topic)
    async def hang(message: Any) -> None:
        held.append(message.body)
        await hung.wait()

    got: dict[bytes, float] = {}
    alive = consumer()

    @alive.on(topic)
    async def note(message: Any) -> None:
        got[message.body] = time.monotonic()

    async with stuck:
        await eventually(lambda: len(held) == 32)
        async with alive:
            await asyncio.sleep(0.2)
            sent: dict[bytes, float] = {}
            async with Producer(server.name_server) as producer:
                for number in range(20):
                    body = b"new-%d" % number
                    sent[body] = time.monotonic()
                    await producer.send(Message(topic, body))
            await eventually(lambda: len(got) >= 20)
            assert max(got[body] - at for body, at in sent.items()) < 1.0
            assert not any(body in got for body in numbers(32))
            await eventually(lambda: all(body in got for body in numbers(32)))
            hung.set()


async def test_a_consumer_that_hangs_takes_no_more_when_its_leases_have_ended(
    server: RunningBroker, topic: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    """It has workers left, but what comes again would only hang as well."""
    await set_mode("POP", queues=1)
    await put(server, topic, *numbers(2))
    held: list[bytes] = []
    got: list[bytes] = []
    hung = asyncio.Event()
    stuck = consumer(pop_invisible_ms=1_000, pop_renew=False, consume_threads=8, pop_threshold=1)
    alive = consumer()

    @stuck.on(topic)
    async def hang(message: Any) -> None:
        held.append(message.body)
        await hung.wait()

    @alive.on(topic)
    async def note(message: Any) -> None:
        got.append(message.body)

    async with stuck:
        await eventually(lambda: len(held) == 2)
        await asyncio.sleep(2.5)
        assert len(held) == 2
        async with alive:
            await eventually(lambda: sorted(got) == numbers(2))
        hung.set()
        await put(server, topic, b"later")
        await eventually(lambda: b"later" in held)


@pytest.mark.behaviour("POP-14")
async def test_more_consumers_than_queues_all_get_work(
    server: RunningBroker, topic: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    await set_mode("POP", queues=3)
    share: Counter[int] = Counter()
    consumers = [consumer(pop_batch=1, pop_threshold=1, consume_threads=1) for _ in range(12)]
    for index, one in enumerate(consumers):

        async def work(message: Any, index: int = index) -> None:
            share[index] += 1
            await asyncio.sleep(0.05)

        one.on(topic)(work)
    await asyncio.gather(*(one.start() for one in consumers))
    try:
        await eventually(lambda: all(one.pop_service.queues for one in consumers))
        await put(server, topic, *numbers(120))
        await eventually(lambda: sum(share.values()) >= 120, seconds=20)
    finally:
        await asyncio.gather(*(one.stop() for one in consumers))
    assert sum(share.values()) == 120
    assert len(share) == 12
    assert min(share.values()) >= 3


async def test_no_more_is_popped_than_may_be_unacked(
    server: RunningBroker, topic: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    await set_mode("POP", queues=1)
    await put(server, topic, *numbers(100))
    go_on = threading.Event()
    done: list[bytes] = []
    popper = consumer(pop_batch=4, pop_threshold=10, consume_threads=1)

    @popper.on(topic)
    def wait(message: Any) -> None:
        go_on.wait(10)
        done.append(message.body)

    async with popper:
        await eventually(lambda: popper.pop_service.queues)
        (pop_queue,) = popper.pop_service.queues.values()
        await eventually(lambda: pop_queue.unacked > 10)
        await asyncio.sleep(0.2)
        assert pop_queue.unacked == 12  # the threshold is looked at before a pop, which brings four
        go_on.set()
        await eventually(lambda: len(done) == 100)
        await eventually(lambda: pop_queue.unacked == 0)


async def test_a_stop_lets_listeners_end_and_gives_the_rest_back_at_once(
    server: RunningBroker, topic: str, group: str, set_mode: Any, consumer: Any, eventually: Any
) -> None:
    await set_mode("POP", queues=1)
    await put(server, topic, *numbers(20))
    begun: list[bytes] = []
    ended: list[bytes] = []
    first = consumer(consume_threads=2)

    @first.on(topic)
    async def slow(message: Any) -> None:
        begun.append(message.body)
        await asyncio.sleep(0.3)
        ended.append(message.body)

    async with first:
        await eventually(lambda: len(begun) >= 2)
    assert len(begun) == len(ended) < 20
    rest: list[tuple[bytes, int]] = []
    second = consumer()

    @second.on(topic)
    def note(message: Any) -> None:
        rest.append((message.body, message.reconsume_times))

    async with second:
        await eventually(lambda: len(rest) == 20 - len(ended), seconds=getattr(server, "give_back_s", 3))
    assert sorted([body for body, _ in rest] + ended) == sorted(numbers(20))
    assert {times for _, times in rest} == {0}


async def test_a_batch_listener_acks_up_to_its_index_and_the_rest_comes_again(
    server: RunningBroker, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any
) -> None:
    await set_mode("POP", queues=1)
    await put(server, topic, *numbers(4))
    seen: list[list[tuple[bytes, int]]] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        seen.append([(message.body, message.reconsume_times) for message in messages])
        if len(seen) == 1:
            context.ack_index = 1
        return ConsumeStatus.SUCCESS

    popper = PushConsumer(
        server.name_server,
        group=group,
        listener=listener,
        subscribe={topic: "*"},
        consume_from=FIRST,
        consume_batch=4,
        pop_retry_delays_ms=(20,),
        timings=quick,
    )
    async with popper:
        await eventually(lambda: sum(map(len, seen)) == 6)
    assert seen[0] == [(body, 0) for body in numbers(4)]
    assert sorted(item for batch in seen[1:] for item in batch) == [(b"2", 1), (b"3", 1)]
