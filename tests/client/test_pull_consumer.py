"""The pull consumer: assignment, polling, positions and commits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from penstock import ConsumeFrom, Message, MessageQueue, Producer, PullConsumer
from penstock.client.config import Timings
from penstock.errors import InvalidArgument, WrongState
from penstock.testing import RunningBroker
from penstock.wire.bodies import HeartbeatData
from penstock.wire.codes import RequestCode, ResponseCode

FIRST = ConsumeFrom.FIRST_OFFSET
LITE = RequestCode.LITE_PULL_MESSAGE


def pull(name_server: str, group: str, topic: str, quick: Timings, **options: Any) -> PullConsumer:
    options.setdefault("consume_from", FIRST)
    return PullConsumer(name_server, group=group, subscribe={topic: "*"}, timings=quick, **options)


async def fill(server: RunningBroker, topic: str, count: int) -> MessageQueue:
    async with Producer(server.name_server) as producer:
        queue = (await producer.queues(topic))[0]
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number), queue=queue)
    return queue


async def test_polls_hand_out_every_message_of_the_subscribed_topics(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    async with Producer(server.name_server) as producer:
        await producer.send_many([Message(topic, b"%d" % number) for number in range(100)])
    got: list[int] = []
    async with pull(server.name_server, group, topic, quick) as consumer:
        while len(got) < 100:
            batch = await consumer.poll(5_000)
            assert 0 < len(batch) <= 10
            assert len({message.queue for message in batch}) == 1
            got += [int(message.body) for message in batch]
        assert await consumer.poll(20) == []
    assert sorted(got) == list(range(100))


async def test_the_consumer_can_be_iterated(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    await fill(server, topic, 25)
    got: list[int] = []
    async with pull(server.name_server, group, topic, quick) as consumer:
        async for message in consumer:
            got.append(int(message.body))
            if len(got) == 25:
                break
    assert got == list(range(25))


async def test_the_request_is_that_of_a_lite_pull(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"), pull(cluster.name_server, "g", topic, quick):
        await eventually(lambda: cluster.sent(LITE))
        ext = cluster.sent(LITE)[0].ext
        assert ext["sysFlag"] == "22"
        assert (ext["subscription"], ext["subVersion"], ext["commitOffset"]) == ("*", "0", "0")
        assert (ext["maxMsgNums"], ext["suspendTimeoutMillis"]) == ("10", "20000")
        data = HeartbeatData.decode(cluster.sent(RequestCode.HEART_BEAT)[0].command.body)
        assert data.consumer_data_set[0].consume_type == "CONSUME_ACTIVELY"


@pytest.mark.scenario(60)
def test_subscribing_and_assigning_exclude_each_other() -> None:
    subscribed = PullConsumer("h:1", group="g", subscribe={"t": "*"})
    with pytest.raises(WrongState, match="not both"):
        subscribed.assign([])
    assigned = PullConsumer("h:1", group="g")
    assigned.assign([])
    with pytest.raises(WrongState, match="not both"):
        assigned.subscribe("t")


async def test_a_consumer_with_nothing_to_consume_does_not_start() -> None:
    with pytest.raises(InvalidArgument, match="subscribe"):
        await PullConsumer("h:1", group="g").start()


@pytest.mark.scenario(61)
async def test_what_was_handed_out_is_committed_by_a_later_poll(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    queue = await fill(server, topic, 10)
    consumer = pull(
        server.name_server, group, topic, quick, auto_commit_interval_ms=1_000, persist_interval_ms=50
    )
    async with consumer:
        assert len(await consumer.poll(5_000)) == 10
        assert consumer.offset_store.memory(queue) in (None, 0)
        await consumer.poll(10)
        assert consumer.offset_store.memory(queue) in (None, 0)  # not due yet
        await asyncio.sleep(1.0)
        await consumer.poll(10)
        assert consumer.offset_store.memory(queue) == 10
        api = consumer.instance.api

        async def persisted() -> int | None:
            return await api.query_offset(server.address, group, queue)

        for _ in range(100):
            if await persisted() == 10:
                break
            await asyncio.sleep(0.02)
        assert await persisted() == 10


async def test_without_auto_commit_only_a_commit_moves_the_offset(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    queue = await fill(server, topic, 10)
    async with pull(server.name_server, group, topic, quick, auto_commit=False) as consumer:
        assert len(await consumer.poll(5_000)) == 10
        await consumer.poll(10)
        await consumer.commit(persist=True)
        assert await consumer.committed(queue) == 10
        await consumer.commit({queue: 4}, persist=True)
        assert await consumer.instance.api.query_offset(server.address, group, queue) == 4
        with pytest.raises(InvalidArgument, match="negative"):
            await consumer.commit({queue: -1})
        with pytest.raises(InvalidArgument, match="not assigned"):
            await consumer.commit({MessageQueue("x", "y", 0): 1})
    async with pull(server.name_server, group, topic, quick) as again:
        assert [message.queue_offset for message in await again.poll(5_000)] == [4, 5, 6, 7, 8, 9]


@pytest.mark.scenario(55)
async def test_committing_some_queues_keeps_the_progress_of_the_others(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    async with Producer(server.name_server) as producer:
        queues = (await producer.queues(topic))[:2]
        for queue in queues:
            await producer.send(Message(topic, b"x"), queue=queue)
    async with pull(server.name_server, group, topic, quick, auto_commit=False) as consumer:
        await consumer.poll(5_000)
        await consumer.poll(5_000)
        await consumer.commit()
        await consumer.commit([queues[0]], persist=True)
        table = consumer.offset_store.table(topic)
        assert (table[queues[0]], table[queues[1]]) == (1, 1)


@pytest.mark.scenario(62)
async def test_seek_moves_to_an_offset_a_bound_or_a_time(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    queue = await fill(server, topic, 120)
    await asyncio.sleep(0.05)
    between = int(time.time() * 1000)
    await asyncio.sleep(0.05)
    await fill(server, topic, 5)
    async with pull(server.name_server, group, topic, quick, auto_commit=False) as consumer:
        assert (await consumer.poll(5_000))[0].queue_offset == 0
        await consumer.seek(queue, 100)
        assert (await consumer.poll(5_000))[0].queue_offset == 100
        await consumer.seek_to_begin(queue)
        assert (await consumer.poll(5_000))[0].queue_offset == 0
        await consumer.seek_to_time(queue, between)
        assert (await consumer.poll(5_000))[0].queue_offset == 120
        await consumer.seek_to_end(queue)
        await fill(server, topic, 1)
        assert [message.queue_offset for message in await consumer.poll(5_000)] == [125]
        with pytest.raises(InvalidArgument, match="0 to 126"):
            await consumer.seek(queue, 127)
        with pytest.raises(InvalidArgument, match="not assigned"):
            await consumer.seek(MessageQueue("other", "b", 0), 0)


@pytest.mark.scenario(63)
async def test_a_paused_queue_hands_out_what_is_cached_and_then_nothing(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    queue = await fill(server, topic, 30)
    async with pull(server.name_server, group, topic, quick) as consumer:
        await eventually(lambda: consumer.waiting_batches == 3)
        consumer.pause([queue])
        got = [message for _ in range(3) for message in await consumer.poll(1_000)]
        assert len(got) == 30
        await fill(server, topic, 1)  # answers the pull that was held when the pause began
        await consumer.poll(300)
        await fill(server, topic, 1)
        assert await consumer.poll(150) == []
        consumer.resume([queue])
        assert len(await consumer.poll(1_000)) == 1


async def test_assigned_queues_are_read_without_a_group_sharing_them(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    async with Producer(server.name_server) as producer:
        queues = await producer.queues(topic)
        for queue in queues:
            await producer.send(
                Message(topic, b"%d" % queue.queue_id, tag="even" if queue.queue_id % 2 == 0 else "odd"),
                queue=queue,
            )
    consumer = PullConsumer(server.name_server, group=group, consume_from=FIRST, timings=quick)
    consumer.assign(queues)
    consumer.filter(topic, "even")
    async with consumer:
        got = [message.body for _ in range(2) for message in await consumer.poll(5_000)]
        assert sorted(got) == [b"0", b"2"]
        consumer.assign(queues[:1])
        assert consumer.assignment == queues[:1]


async def test_two_pull_consumers_share_a_topic_and_hear_of_it(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    async with Producer(server.name_server, default_topic_queues=4) as producer:
        await producer.send(Message(topic, b"x"))
    heard: list[Any] = []
    first, second = (pull(server.name_server, group, topic, quick) for _ in range(2))
    first.on_assignment(lambda topic, queues, mine: heard.append(len(mine)))
    async with first:
        await eventually(lambda: len(first.assignment) == 4)
        async with second:
            await eventually(lambda: len(first.assignment) == len(second.assignment) == 2)
            assert not set(first.assignment) & set(second.assignment)
        await eventually(lambda: len(first.assignment) == 4)
    assert heard == [4, 2, 4]


async def test_a_pull_that_fails_is_made_again(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    codes = [ResponseCode.SYSTEM_ERROR, ResponseCode.FLOW_CONTROL]
    quick = replace(quick, pull_error_ms=800)  # far from the delay of a busy broker, on any machine
    async with cluster.running("b1"):

        def answer(request: Any) -> Any:
            if codes:
                return request.reply(codes.pop(0))
            return cluster.pulled(request, offsets=[0]) if request.ext["queueOffset"] == "0" else None

        cluster.on(LITE, answer)
        async with pull(cluster.name_server, "g", topic, quick) as consumer:
            assert len(await consumer.poll(3_000)) == 1
            first, second, third = cluster.sent(LITE)[:3]
            assert second.at - first.at >= quick.pull_error_ms / 1000
            assert third.at - second.at < quick.pull_error_ms / 1000


async def test_cached_messages_are_bounded(cluster: Any, topic: str, quick: Timings, eventually: Any) -> None:
    async with cluster.running("b1"):

        def answer(request: Any) -> Any:
            start = int(request.ext["queueOffset"])
            return cluster.pulled(request, offsets=list(range(start, start + 10)))

        cluster.on(LITE, answer)
        async with pull(cluster.name_server, "g", topic, quick, pull_threshold_messages=50) as consumer:
            await eventually(lambda: consumer.waiting_batches >= 6)
            await asyncio.sleep(0.1)
            assert consumer.waiting_batches == 6
            await consumer.poll()
            await eventually(lambda: consumer.waiting_batches == 6)


async def test_a_change_of_a_topics_queues_is_reported(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    seen: list[int] = []
    async with cluster.running("b1"):
        consumer = pull(cluster.name_server, "g", topic, quick, topic_check_interval_ms=30)
        consumer.on_topic_change(topic, lambda topic, queues: seen.append(len(queues)))
        async with consumer:
            await asyncio.sleep(0.1)
            assert seen == []
            cluster.queues = 3
            await eventually(lambda: seen == [3])


async def test_a_stopped_consumer_wakes_its_poll_and_refuses_the_next(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    consumer = pull(server.name_server, group, topic, quick)
    await consumer.start()
    waiting = asyncio.ensure_future(consumer.poll(60_000))
    await asyncio.sleep(0.05)
    await consumer.stop()
    with pytest.raises(WrongState, match="not running"):
        await waiting
    with pytest.raises(WrongState):
        await consumer.poll()


async def test_running_info_lists_the_queues(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"), pull(cluster.name_server, "g", topic, quick) as consumer:
        await eventually(lambda: consumer.assignment)
        info = await consumer.running_info(with_stacks=False)
        assert list(info.mq_table) == consumer.assignment
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert "PROP_THREADPOOL_CORE_SIZE" not in info.properties
        broker = cluster.servers["b1"]
        broker.ask(221, {"topic": topic, "group": "g"})
        broker.ask(309, {"consumerGroup": "g", "brokerName": "b1"}, b"x")
        await eventually(lambda: len(broker.responses) == 2)
        assert {response.code for response in broker.responses} == {0, ResponseCode.SYSTEM_ERROR}
