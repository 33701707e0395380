"""Orderly consumption in POP mode: order holds across failures, slow listeners and many consumers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import ConsumeFrom, Message, OrderlyStatus, Producer, PushConsumer, RetryLater
from penstock.admin import AdminClient, TopicSettings, set_consume_mode
from penstock.client.config import Timings
from penstock.errors import TopicNotFound
from penstock.testing import RunningBroker, broker

FIRST = ConsumeFrom.FIRST_OFFSET


async def put(server: RunningBroker, topic: str, keys: int, each: int) -> None:
    """`each` messages for each of the keys; those of one key are in one queue, in order."""
    async with Producer(server.name_server) as producer:
        for number in range(each):
            for key in range(keys):
                await producer.send(Message(topic, b"%d-%d" % (key, number)), queue_key=str(key))


def make(
    server: RunningBroker, group: str, timings: Timings, name: str = "one", **options: Any
) -> PushConsumer:
    return PushConsumer(
        server.name_server,
        group=group,
        consume_from=FIRST,
        orderly=True,
        timings=timings,
        instance_name=name,
        **options,
    )


def by_key(seen: list[bytes]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for body in seen:
        key, number = map(int, body.split(b"-"))
        found.setdefault(key, []).append(number)
    return found


@pytest.mark.behaviour("POP-15")
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
async def test_the_order_of_every_queue_holds_with_several_consumers(
    server: RunningBroker, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any, kind: str
) -> None:
    await set_mode("POP", queues=3)
    seen: list[bytes] = []
    consumers = [make(server, group, quick, f"c{index}", pop_batch=4) for index in range(4)]
    for consumer in consumers:

        def plain(message: Any) -> None:
            seen.append(message.body)

        async def coroutine(message: Any) -> None:
            await asyncio.sleep(0.001)
            seen.append(message.body)

        consumer.on(topic)(plain if kind == "thread" else coroutine)
    await put(server, topic, keys=5, each=20)
    await asyncio.gather(*(consumer.start() for consumer in consumers))
    try:
        await eventually(lambda: len(seen) >= 100, seconds=20)
    finally:
        await asyncio.gather(*(consumer.stop() for consumer in consumers))
    assert by_key(seen) == {key: list(range(20)) for key in range(5)}


async def test_a_failed_message_holds_up_those_behind_it_and_comes_again_first(
    server: RunningBroker, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any
) -> None:
    await set_mode("POP", queues=1)
    await put(server, topic, keys=1, each=6)
    seen: list[tuple[bytes, int]] = []
    consumer = make(server, group, quick, suspend_ms=50)

    @consumer.on(topic)
    def fail_in_the_middle(message: Any) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"0-2" and message.reconsume_times < 2:
            raise RetryLater("not yet")

    async with consumer:
        await eventually(lambda: b"0-5" in dict(seen))
    bodies = [body for body, _ in seen]
    assert bodies == [b"0-0", b"0-1", b"0-2", b"0-2", b"0-2", b"0-3", b"0-4", b"0-5"]
    assert [times for body, times in seen if body == b"0-2"] == [0, 1, 2]


async def test_the_whole_batch_stays_here_while_its_first_message_takes_long(
    server: RunningBroker, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any
) -> None:
    await set_mode("POP", queues=1)
    await put(server, topic, keys=1, each=5)
    seen: list[tuple[str, bytes]] = []
    consumers = {name: make(server, group, quick, name, pop_invisible_ms=1_500) for name in ("one", "two")}
    for name, consumer in consumers.items():

        async def slow_at_first(message: Any, name: str = name) -> None:
            if message.body == b"0-0":
                await asyncio.sleep(3.5)  # more than two leases
            seen.append((name, message.body))

        consumer.on(topic)(slow_at_first)
    async with consumers["one"], consumers["two"]:
        await eventually(lambda: len(seen) == 5)
        await asyncio.sleep(0.2)
    assert [body for _, body in seen] == [b"0-%d" % number for number in range(5)]
    assert len({name for name, _ in seen}) == 1


async def test_after_the_last_attempt_the_queue_goes_on_without_the_message(
    server: RunningBroker, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any
) -> None:
    await set_mode("POP", queues=1)
    await put(server, topic, keys=1, each=3)
    seen: list[bytes] = []
    consumer = make(server, group, quick, suspend_ms=20, max_reconsume_times=1)

    @consumer.on(topic)
    def fail(message: Any) -> None:
        seen.append(message.body)
        if message.body == b"0-0":
            raise ValueError("never good")

    async with consumer, AdminClient(server.name_server) as admin:
        await eventually(lambda: seen[-1:] == [b"0-2"])
        for _ in range(400):
            try:
                if (await admin.topic_stats(f"%DLQ%{group}")).offset_table:
                    break
            except TopicNotFound:
                pass
            await asyncio.sleep(0.02)
        else:
            pytest.fail("no dead letters after 8 s")
    assert seen == [b"0-0", b"0-0", b"0-1", b"0-2"]


async def test_a_listener_may_commit_by_itself_and_roll_back(
    server: RunningBroker,
    topic: str,
    group: str,
    set_mode: Any,
    quick: Timings,
    eventually: Any,
    nothing_left: Any,
) -> None:
    await set_mode("POP", queues=1)
    await put(server, topic, keys=1, each=4)
    seen: list[bytes] = []

    def listener(messages: Any, context: Any) -> OrderlyStatus:
        context.auto_commit = False
        seen.append(messages[0].body)
        if messages[0].body == b"0-1":
            return OrderlyStatus.ROLLBACK if seen.count(b"0-1") == 1 else OrderlyStatus.COMMIT
        return OrderlyStatus.SUCCESS

    consumer = PushConsumer(
        server.name_server,
        group=group,
        listener=listener,
        subscribe={topic: "*"},
        consume_from=FIRST,
        orderly=True,
        suspend_ms=20,
        timings=quick,
    )
    async with consumer:
        await eventually(lambda: seen.count(b"0-3") == 1)
        await nothing_left()
    assert seen == [b"0-0", b"0-1", b"0-0", b"0-1", b"0-2", b"0-3"]


async def test_the_order_holds_from_pull_to_pop_and_back(
    server: RunningBroker, topic: str, group: str, set_mode: Any, quick: Timings, eventually: Any
) -> None:
    await set_mode("PULL", queues=2)
    seen: list[bytes] = []
    consumer = make(server, group, quick, pop_invisible_ms=2_000)

    @consumer.on(topic)
    async def note(message: Any) -> None:
        await asyncio.sleep(0.002)
        if message.body not in seen:  # at least once: what was in progress may come again
            seen.append(message.body)

    async with consumer:
        producing = asyncio.create_task(put(server, topic, keys=4, each=80))
        for mode in ("POP", "PULL", "POP"):
            await asyncio.sleep(0.4)
            await set_mode(mode, queues=2)
        await producing
        await eventually(lambda: len(seen) == 320, seconds=20)
    assert by_key(seen) == {key: list(range(80)) for key in range(4)}


async def test_what_is_lost_at_a_renewal_no_longer_counts_when_the_listener_has_returned(
    topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    """A reset ends the leases at our broker: neither the message that runs nor the one behind it may stay."""
    with broker(flush="async") as ours:
        async with AdminClient(ours.name_server) as admin:
            await admin.create_topic(topic, TopicSettings(read_queues=1, write_queues=1))
            await set_consume_mode(admin, topic, group, "POP", 0)
            async with Producer(ours.name_server) as producer:
                await producer.send_many([Message(topic, b"1"), Message(topic, b"2")])
            begun, go_on = asyncio.Event(), asyncio.Event()
            popper = make(ours, group, quick, pop_invisible_ms=1_000)

            @popper.on(topic)
            async def wait(message: Any) -> None:
                begun.set()
                await go_on.wait()

            async with popper:
                await asyncio.wait_for(begun.wait(), 30)
                await admin.reset_offset(group, topic, -1)
                await asyncio.sleep(1.5)
                go_on.set()
                queues = popper.pop_service.queues.values()
                await eventually(lambda: not any(queue.unacked for queue in queues))
