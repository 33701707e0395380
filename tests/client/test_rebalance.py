"""Who takes which queues, when, and from where."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from typing import Any

import pytest

from penstock import ConsumeFrom, ConsumeStatus, Message, MessageModel, MessageQueue, Producer, PushConsumer
from penstock.client.allocation import AveragelyByCircle
from penstock.client.config import Timings
from penstock.client.rebalance import RebalanceService
from penstock.testing import RunningBroker
from penstock.wire.bodies import HeartbeatData
from penstock.wire.codes import RequestCode, ResponseCode

IDS = RequestCode.GET_CONSUMER_LIST_BY_GROUP


def success(messages: Any, context: Any) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


def push(name_server: str, group: str, topic: str, quick: Timings, **options: Any) -> PushConsumer:
    options.setdefault("listener", success)
    return PushConsumer(name_server, group=group, subscribe={topic: "*"}, timings=quick, **options)


def owned(consumer: PushConsumer, topic: str) -> list[int]:
    return sorted(queue.queue_id for queue in consumer.rebalancer.queues if queue.topic == topic)


@pytest.mark.scenario(19)
@pytest.mark.behaviour("REB-1", "REB-6", "START-6", "START-7")
async def test_three_consumers_share_eight_queues_and_cover_for_one_that_leaves(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    slow = dataclasses.replace(quick, rebalance_interval_ms=60_000)  # only notices wake it
    async with Producer(server.name_server, default_topic_queues=8) as producer:
        await producer.send(Message(topic, b"x"))
    consumers = [push(server.name_server, group, topic, slow) for _ in range(3)]
    for consumer in consumers:
        await consumer.start()
    ordered = sorted(consumers, key=lambda consumer: consumer.client_id)
    await eventually(lambda: [len(owned(consumer, topic)) for consumer in ordered] == [3, 3, 2])
    assert [owned(consumer, topic) for consumer in ordered] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    await ordered[0].stop()
    await eventually(
        lambda: sorted(owned(ordered[1], topic) + owned(ordered[2], topic)) == list(range(8)), 3.0
    )
    for consumer in ordered[1:]:
        await consumer.stop()


@pytest.mark.scenario(21)
async def test_a_consumer_without_a_queue_sends_no_pulls(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    cluster.queues = 2
    cluster.ids = ["0.0.0.0@a", "0.0.0.0@b"]
    async with cluster.running("b1"), push(cluster.name_server, "g", topic, quick) as consumer:
        await eventually(lambda: len(cluster.sent(IDS)) > 3)
        assert not owned(consumer, topic)
        assert not [r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic]


@pytest.mark.scenario(22)
async def test_rebalances_keep_their_distance_however_often_they_are_woken() -> None:
    runs: list[float] = []

    class Consumer:
        async def rebalance(self) -> bool:
            runs.append(time.monotonic())
            return True

    loop = asyncio.get_running_loop()
    timings = Timings(rebalance_interval_ms=60_000, rebalance_min_interval_ms=100)
    service = RebalanceService({"g": Consumer()}, timings, loop)
    service.start()
    began = time.monotonic()
    for _ in range(40):
        service.wake()
        await asyncio.sleep(0.01)
    await service.stop()
    assert 3 <= len(runs) <= (time.monotonic() - began) / 0.1 + 1
    assert all(later - earlier >= 0.099 for earlier, later in itertools.pairwise(runs))


async def test_a_failing_rebalance_of_one_consumer_does_not_stop_the_others() -> None:
    runs: list[str] = []

    class Broken:
        async def rebalance(self) -> bool:
            raise RuntimeError("a bug")

    class Healthy:
        async def rebalance(self) -> bool:
            runs.append("healthy")
            return False

    timings = Timings(rebalance_interval_ms=60_000, rebalance_min_interval_ms=10)
    service = RebalanceService({"a": Broken(), "b": Healthy()}, timings, asyncio.get_running_loop())
    service.start()
    service.wake()
    await asyncio.sleep(0.1)
    await service.stop()
    assert len(runs) > 2  # not balanced: it runs again soon, without being woken


@pytest.mark.scenario(24)
async def test_a_queue_whose_pull_got_lost_is_dropped_and_started_anew(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    queue = MessageQueue(topic, "b1", 0)
    async with cluster.running("b1"):
        cluster.offsets[queue] = 12
        async with push(cluster.name_server, "g", topic, quick) as consumer:
            await eventually(
                lambda: [r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic]
            )
            first = consumer.rebalancer.queues[queue]
            first.last_pull_ms -= 121_000
            consumer.instance.rebalance_service.wake()
            await eventually(lambda: consumer.rebalancer.queues.get(queue) not in (first, None))
            assert first.dropped
            pulls = [r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic]
            await eventually(
                lambda: (
                    len([r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic]) == 2
                )
            )
            assert pulls[0].ext["queueOffset"] == "12"


@pytest.mark.scenario(25)
async def test_queues_are_kept_while_the_ids_of_the_group_cannot_be_had(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"), push(cluster.name_server, "g", topic, quick) as consumer:
        await eventually(lambda: owned(consumer, topic) == [0])
        cluster.on(IDS, lambda request: request.reply(ResponseCode.SYSTEM_ERROR))
        before = len(cluster.sent(IDS))
        consumer.instance.rebalance_service.wake()
        await eventually(lambda: len(cluster.sent(IDS)) > before)
        await asyncio.sleep(0.05)
        assert owned(consumer, topic) == [0]


@pytest.mark.behaviour("REB-1")
async def test_broadcasting_takes_all_queues_whoever_else_is_there(
    cluster: Any, topic: str, quick: Timings, eventually: Any, tmp_path: Any
) -> None:
    cluster.queues = 4
    cluster.ids = ["0.0.0.0@other"]
    async with cluster.running("b1", "b2"):
        consumer = push(
            cluster.name_server,
            "g",
            topic,
            quick,
            message_model=MessageModel.BROADCASTING,
            local_offset_dir=str(tmp_path),
        )
        async with consumer:
            await eventually(lambda: len(consumer.rebalancer.queues) == 8)
            assert not cluster.sent(IDS)
            assert "%RETRY%g" not in consumer.topics()


@pytest.mark.behaviour("REB-2")
async def test_the_strategy_can_be_chosen(cluster: Any, topic: str, quick: Timings, eventually: Any) -> None:
    cluster.queues = 6
    cluster.ids = ["0.0.0.0@first"]
    async with cluster.running("b1"):
        consumer = push(cluster.name_server, "g", topic, quick, allocation=AveragelyByCircle())
        async with consumer:
            await eventually(lambda: owned(consumer, topic) == [1, 3, 5])


@pytest.mark.behaviour("REB-3", "REB-4")
async def test_a_queue_that_moves_away_is_dropped_after_its_offset_was_persisted(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    queue = MessageQueue(topic, "b1", 0)
    slow = dataclasses.replace(quick, persist_first_ms=60_000)
    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1, 2]})
        consumer = push(cluster.name_server, "g", topic, slow, consume_from=ConsumeFrom.FIRST_OFFSET)
        async with consumer:
            await eventually(lambda: consumer.offset_store.memory(queue) == 3)
            process_queue = consumer.rebalancer.queues[queue]
            assert queue not in cluster.offsets
            cluster.ids.insert(0, "0.0.0.0@first")
            consumer.instance.rebalance_service.wake()
            await eventually(lambda: queue not in consumer.rebalancer.queues)
            assert process_queue.dropped
            await eventually(lambda: cluster.offsets.get(queue) == 3)  # a oneway, so it may be under way
            assert consumer.offset_store.memory(queue) is None


@pytest.mark.scenario(26)
@pytest.mark.behaviour("REB-5")
@pytest.mark.parametrize(
    ("start", "stored", "normal", "retry"),
    [
        (ConsumeFrom.LAST_OFFSET, None, "77", "0"),
        (ConsumeFrom.FIRST_OFFSET, None, "0", "0"),
        (ConsumeFrom.TIMESTAMP, None, "33", "77"),
        (ConsumeFrom.LAST_OFFSET, 5, "5", "0"),
        (ConsumeFrom.FIRST_OFFSET, 5, "5", "0"),
        (ConsumeFrom.TIMESTAMP, 5, "5", "77"),
    ],
)
async def test_the_first_pull_starts_at_the_stored_offset_or_where_the_consumer_wants(
    cluster: Any,
    topic: str,
    quick: Timings,
    eventually: Any,
    start: ConsumeFrom,
    stored: int | None,
    normal: str,
    retry: str,
) -> None:
    async with cluster.running("b1"):
        if stored is not None:
            cluster.offsets[MessageQueue(topic, "b1", 0)] = stored
        began = time.time() * 1000
        async with push(cluster.name_server, "g", topic, quick, consume_from=start):
            await eventually(lambda: len(cluster.sent(RequestCode.PULL_MESSAGE)) >= 2)
            first = {r.ext["topic"]: r.ext["queueOffset"] for r in cluster.sent(RequestCode.PULL_MESSAGE)}
            assert first == {topic: normal, "%RETRY%g": retry}
        for search in cluster.sent(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
            assert int(search.ext["timestamp"]) == pytest.approx(began - 30 * 60_000, abs=5_000)


@pytest.mark.scenario(27)
@pytest.mark.behaviour("REB-5")
async def test_a_queue_is_not_started_until_its_stored_offset_is_known(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"):
        plain = cluster.handlers[("*", RequestCode.QUERY_CONSUMER_OFFSET)]
        cluster.on(RequestCode.QUERY_CONSUMER_OFFSET, lambda request: request.reply(ResponseCode.SYSTEM_BUSY))
        async with push(cluster.name_server, "g", topic, quick) as consumer:
            await eventually(lambda: len(cluster.sent(RequestCode.QUERY_CONSUMER_OFFSET)) > 4)
            assert not consumer.rebalancer.queues
            assert not cluster.sent(RequestCode.PULL_MESSAGE)
            cluster.on(RequestCode.QUERY_CONSUMER_OFFSET, plain)
            await eventually(lambda: owned(consumer, topic) == [0])


async def test_a_changed_assignment_is_told_to_brokers_before_pulls_carry_its_version(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    versions: list[int] = []
    async with cluster.running("b1"):
        plain = cluster.handlers[("*", RequestCode.HEART_BEAT)]

        def heartbeat(request: Any) -> Any:
            data = HeartbeatData.decode(request.command.body)
            for consumer in data.consumer_data_set:
                versions.extend(
                    item.sub_version for item in consumer.subscription_data_set if item.topic == topic
                )
            return plain(request)

        cluster.on(RequestCode.HEART_BEAT, heartbeat)

        def pull(request: Any) -> Any:
            if request.ext["topic"] == topic:
                assert int(request.ext["subVersion"]) <= max(versions)
            return None

        cluster.on(RequestCode.PULL_MESSAGE, pull)
        seen: list[Any] = []
        consumer = push(cluster.name_server, "g", topic, quick)
        consumer.on_assignment(lambda *arguments: seen.append(arguments))
        async with consumer:
            await eventually(
                lambda: [r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic]
            )
            assert len(set(versions)) >= 2
            queue = MessageQueue(topic, "b1", 0)
            assert (topic, [queue], [queue]) in seen


@pytest.mark.behaviour("REB-6")
async def test_no_message_is_lost_while_consumers_come_and_go(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    got: list[int] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.extend(int(message.body) for message in messages)
        return ConsumeStatus.SUCCESS

    def make() -> PushConsumer:
        return push(
            server.name_server, group, topic, quick, listener=listener, consume_from=ConsumeFrom.FIRST_OFFSET
        )

    total = 0
    async with Producer(server.name_server, default_topic_queues=8) as producer:

        async def send_some() -> None:
            nonlocal total
            await producer.send_many([Message(topic, b"%d" % number) for number in range(total, total + 200)])
            total += 200

        await send_some()
        first, second = make(), make()
        await first.start()
        await send_some()
        await second.start()
        await send_some()
        await asyncio.sleep(0.1)
        await first.stop()
        await send_some()
        third = make()
        await third.start()
        await send_some()
        await eventually(lambda: len(set(got)) == total, 15.0)
        await second.stop()
        await third.stop()
    assert set(got) == set(range(total))


async def test_a_topic_can_be_subscribed_and_given_up_while_the_consumer_runs(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    got: list[bytes] = []
    late = f"{topic}-late"

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.append(messages[0].body)
        return ConsumeStatus.SUCCESS

    async with Producer(server.name_server) as producer:
        await producer.send(Message(topic, b"1"))
        await producer.send(Message(late, b"2"))
        consumer = push(
            server.name_server,
            group,
            topic,
            quick,
            listener=listener,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        )
        async with consumer:
            await eventually(lambda: got == [b"1"])
            consumer.subscribe(late)
            await eventually(lambda: got == [b"1", b"2"])
            consumer.unsubscribe(topic)
            await eventually(lambda: not owned(consumer, topic))
            await producer.send(Message(topic, b"3"))
            await producer.send(Message(late, b"4"))
            await eventually(lambda: b"4" in got)
            assert b"3" not in got
