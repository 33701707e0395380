"""Between PULL and POP, and across restarts: nothing may be lost on the way."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import Any

import pytest

from penstock import ConsumeFrom, Message, MessageQueue, Producer, PushConsumer
from penstock.admin import AdminClient, TopicSettings, set_consume_mode
from penstock.client.config import Timings
from penstock.errors import WrongState
from penstock.testing import RunningBroker, broker

FIRST = ConsumeFrom.FIRST_OFFSET


async def put(server: RunningBroker, topic: str, *bodies: bytes) -> None:
    async with Producer(server.name_server) as producer:
        await producer.send_many([Message(topic, body) for body in bodies])


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def listening(
    server: RunningBroker, topic: str, group: str, timings: Timings, listener: Any, **options: Any
) -> PushConsumer:
    consumer = PushConsumer(server.name_server, group=group, consume_from=FIRST, timings=timings, **options)
    consumer.on(topic)(listener)
    return consumer


@pytest.mark.behaviour("POP-1")
@pytest.mark.scenario("pop-30")
async def test_from_pull_to_pop_a_running_consumer_goes_on_at_the_committed_offset(
    server: RunningBroker, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any
) -> None:
    await set_mode("PULL")
    got: list[bytes] = []

    async def note(message: Any) -> None:
        got.append(message.body)

    async with listening(server, topic, group, quick, note) as consumer:
        await put(server, topic, *numbers(50))
        await eventually(lambda: len(got) == 50)
        assert not consumer.pop_service.queues
        await set_mode("POP")
        await eventually(lambda: consumer.pop_service.queues)
        assert {queue.topic for queue in consumer.rebalancer.queues} == {f"%RETRY%{group}"}
        with pytest.raises(WrongState, match="reset it there"):
            await consumer.reset_offset_by_timestamp(0)
        await put(server, topic, *numbers(50, 50))
        await eventually(lambda: len(got) == 100)
    assert sorted(got) == sorted(numbers(100))


@pytest.mark.behaviour("POP-1")
async def test_running_consumers_are_told_of_a_new_mode_and_do_not_wait_for_their_next_rebalance(
    topic: str, group: str, eventually: Any
) -> None:
    """By our broker; Apache's leaves it to their next rebalance."""

    async def note(message: Any) -> None:
        return

    slow = Timings(rebalance_interval_ms=60_000, rebalance_min_interval_ms=20)
    with broker(flush="async") as ours:
        async with AdminClient(ours.name_server) as admin:
            await admin.create_topic(topic, TopicSettings(read_queues=4, write_queues=4))
            await set_consume_mode(admin, topic, group, "PULL", 0)
            async with listening(ours, topic, group, slow, note) as consumer:
                await eventually(lambda: topic in {queue.topic for queue in consumer.rebalancer.queues})
                await set_consume_mode(admin, topic, group, "POP", 0)
                await eventually(lambda: consumer.pop_service.queues, seconds=3)


@pytest.mark.behaviour("POP-1")
@pytest.mark.scenario("pop-29")
async def test_from_pop_to_pull_the_rest_is_pulled_and_what_was_unacked_comes_from_the_retry_topic(
    server: RunningBroker, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any
) -> None:
    await set_mode("POP", queues=1)
    await put(server, topic, *numbers(5))
    held: list[bytes] = []

    async def hang(message: Any) -> None:
        held.append(message.body)
        await asyncio.sleep(60)

    stuck = listening(
        server, topic, group, quick, hang, pop_invisible_ms=1_000, pop_renew=False, stop_timeout_ms=0
    )
    async with stuck:
        await eventually(lambda: len(held) == 5)
    # Stopped without waiting: the five leases are still open when the group begins to pull.
    await set_mode("PULL", queues=1)
    await put(server, topic, *numbers(5, 5))
    got: dict[bytes, tuple[str, int]] = {}

    async def note(message: Any) -> None:
        got[message.body] = (message.topic, message.reconsume_times)

    async with listening(server, topic, group, quick, note) as puller:
        await eventually(lambda: len(got) == 10)
        assert not puller.pop_service.queues
        assert MessageQueue(f"%RETRY%{group}_{topic}", server.broker_name, 0) in puller.rebalancer.queues
    assert {got[body] for body in numbers(5)} == {(topic, 1)}
    assert {got[body] for body in numbers(5, 5)} == {(topic, 0)}


async def test_the_retry_topic_is_left_to_the_pops_when_the_group_pops_again(
    server: RunningBroker, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any
) -> None:
    await set_mode("POP", queues=1)
    await put(server, topic, b"x")
    tries: list[int] = []

    async def fail_once(message: Any) -> None:
        tries.append(message.reconsume_times)
        if message.reconsume_times == 0:
            raise ValueError("once")

    retries = f"%RETRY%{group}_{topic}"
    consumer = listening(server, topic, group, quick, fail_once, pop_retry_delays_ms=(10,))
    async with consumer:
        await eventually(lambda: len(tries) == 2)
        await set_mode("PULL", queues=1)
        await eventually(lambda: retries in {queue.topic for queue in consumer.rebalancer.queues})
        await set_mode("POP", queues=1)
        await eventually(lambda: consumer.pop_service.queues)
        await eventually(lambda: retries not in {queue.topic for queue in consumer.rebalancer.queues})
        assert consumer.subscription(retries) is None


async def test_switching_to_and_fro_under_load_loses_nothing(
    server: RunningBroker, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any
) -> None:
    await set_mode("POP", queues=4)
    got: Counter[bytes] = Counter()

    async def note(message: Any) -> None:
        await asyncio.sleep(0.002)
        got[message.body] += 1

    consumers = [
        listening(server, topic, group, quick, note, pop_invisible_ms=2_000, instance_name=f"c{index}")
        for index in range(3)
    ]
    await asyncio.gather(*(consumer.start() for consumer in consumers))
    sent: list[bytes] = []

    async def produce() -> None:
        async with Producer(server.name_server) as producer:
            for number in range(150):
                bodies = numbers(10, 10 * number)
                await producer.send_many([Message(topic, body) for body in bodies])
                sent.extend(bodies)
                await asyncio.sleep(0.02)

    try:
        producing = asyncio.create_task(produce())
        for mode in ("PULL", "POP", "PULL", "POP"):
            await asyncio.sleep(0.6)
            await set_mode(mode, queues=4)
        await producing
        await eventually(lambda: len(got) == len(sent), seconds=20)
    finally:
        await asyncio.gather(*(consumer.stop() for consumer in consumers))
    assert set(got) == set(sent)


async def test_leases_survive_a_restart_of_the_broker_and_acks_wait_for_it(
    topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    async with broker() as server:
        async with AdminClient(server.name_server) as admin:
            await admin.create_topic(topic, TopicSettings(read_queues=2, write_queues=2))
            await set_consume_mode(admin, topic, group, "POP")
        await put(server, topic, *numbers(20))
        got: Counter[bytes] = Counter()
        go_on = asyncio.Event()

        async def wait(message: Any) -> None:
            got[message.body] += 1
            await go_on.wait()

        async with listening(server, topic, group, quick, wait, pop_invisible_ms=20_000) as consumer:
            await eventually(lambda: len(got) == 20)
            await asyncio.to_thread(server.kill)
            go_on.set()  # the listeners end while there is no broker to tell
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
            await put(server, topic, *numbers(5, 20))
            await eventually(lambda: len(got) == 25, seconds=15)
            await eventually(lambda: all(q.unacked == 0 for q in consumer.pop_service.queues.values()))
            async with AdminClient(server.name_server) as admin:
                assert (await admin.leases(group)).total == 0
        assert set(got.values()) == {1}


async def test_a_popping_consumer_gets_the_messages_of_all_brokers(
    topic: str, group: str, quick: Timings, eventually: Any, start: Any
) -> None:
    running = start("serve", "--shards", "2")
    async with AdminClient(running.name_server) as admin:
        await admin.create_topic(topic, TopicSettings(read_queues=2, write_queues=2))
        await set_consume_mode(admin, topic, group, "POP")
    got: Counter[bytes] = Counter()
    consumer = PushConsumer(running.name_server, group=group, consume_from=FIRST, timings=quick)

    @consumer.on(topic)
    def note(message: Any) -> None:
        got[message.broker_name.encode() + b" " + message.body] += 1

    async with consumer, Producer(running.name_server) as producer:
        queues = await producer.queues(topic)
        for number in range(3):  # across several rebalances, whichever broker is asked
            for queue in queues:
                await producer.send(Message(topic, b"%d-%d" % (number, queue.queue_id)), queue=queue)
            await eventually(lambda number=number: len(got) == (number + 1) * len(queues))
            await asyncio.sleep(1.1)
        assert {queue.queue_id for queue in consumer.pop_service.queues} == {-1}
        assert len(consumer.pop_service.queues) == 2
    assert set(got.values()) == {1}


@pytest.mark.behaviour("POP-14")
async def test_consumers_that_come_and_go_cause_no_pause(
    server: Any, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any
) -> None:
    """A pop that waits while its consumer stops may be given a message; that one goes back."""
    await set_mode("POP", queues=3)
    arrived: list[float] = []
    got: Counter[bytes] = Counter()

    async def note(message: Any) -> None:
        arrived.append(time.monotonic())
        got[message.body] += 1

    def make(index: int) -> PushConsumer:
        return listening(server, topic, group, quick, note, instance_name=f"c{index}")

    running = [make(index) for index in range(3)]
    await asyncio.gather(*(consumer.start() for consumer in running))
    await eventually(lambda: all(consumer.pop_service.queues for consumer in running))
    produced = 0
    stopped = asyncio.Event()

    async def produce() -> None:
        nonlocal produced
        async with Producer(server.name_server) as producer:
            while not stopped.is_set():
                await producer.send(Message(topic, b"%d" % produced))
                produced += 1
                await asyncio.sleep(0.01)

    producing = asyncio.create_task(produce())
    try:
        for index in range(3):
            await asyncio.sleep(0.2)
            await running[index].stop()
            running[index] = make(index + 3)
            await running[index].start()
        await asyncio.sleep(0.3)
    finally:
        stopped.set()
        await producing
        ended = time.monotonic()
        flow = list(arrived)
        await eventually(lambda: len(got) == produced)
        await asyncio.gather(*(consumer.stop() for consumer in running))
    pauses = [later - earlier for earlier, later in itertools.pairwise(flow)]
    assert max(pauses) < 1.0
    assert arrived[-1] - ended < getattr(server, "give_back_s", 1.0)
    assert set(got.values()) == {1}


async def test_a_rebalance_under_way_when_a_consumer_stops_begins_no_pops(
    topic: str, group: str, quick: Timings, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def note(message: Any) -> None: ...

    with broker(flush="async") as ours:
        async with AdminClient(ours.name_server) as admin:
            await admin.create_topic(topic, TopicSettings(read_queues=1, write_queues=1))
            await set_consume_mode(admin, topic, group, "POP", 0)
        leaving = listening(ours, topic, group, quick, note)
        await leaving.start()
        await eventually(lambda: leaving.pop_service.queues)
        assigned = leaving.pop_service.assigned

        async def slowly(name: str) -> Any:
            assignment = await assigned(name)
            asked.set()
            await answer.wait()
            return assignment

        monkeypatch.setattr(leaving.pop_service, "assigned", slowly)
        leaving.instance.rebalance_service.wake()
        await asked.wait()
        stopping = asyncio.create_task(leaving.stop())
        await eventually(lambda: not leaving.pop_service.queues)
        answer.set()
        await stopping
        assert not leaving.pop_service.queues


@pytest.mark.behaviour("POP-14")
async def test_a_message_that_comes_at_the_very_end_of_a_stop_goes_back_at_once(
    topic: str, group: str, quick: Timings, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last moment at which a broker can give something away: just before it learns who leaves."""
    got: list[bytes] = []

    async def note(message: Any) -> None:
        got.append(message.body)

    with broker(flush="async") as ours:
        async with AdminClient(ours.name_server) as admin:
            await admin.create_topic(topic, TopicSettings(read_queues=1, write_queues=1))
            await set_consume_mode(admin, topic, group, "POP", 0)
        leaving = listening(ours, topic, group, quick, note, instance_name="leaving")
        await leaving.start()
        await eventually(lambda: leaving.pop_service.queues)
        await put(ours, topic, b"before")
        await eventually(lambda: got == [b"before"])
        unregister = leaving.instance.unregister_consumer

        async def just_before(name: str) -> None:
            await put(ours, topic, b"late")
            await unregister(name)

        monkeypatch.setattr(leaving.instance, "unregister_consumer", just_before)
        await leaving.stop()
        async with listening(ours, topic, group, quick, note, instance_name="next"):
            await eventually(lambda: got == [b"before", b"late"], seconds=10)
