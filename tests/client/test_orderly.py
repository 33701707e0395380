"""Orderly consumption: one at a time, in order, under the broker's lock."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from typing import Any

import pytest

from penstock import (
    ConsumeFrom,
    Message,
    MessageQueue,
    OrderlyStatus,
    Producer,
    PushConsumer,
    RetryLater,
)
from penstock.client.config import Timings
from penstock.client.consume_orderly import ConsumeOrderly
from penstock.testing import RunningBroker
from penstock.wire.bodies import LockBatchRequestBody, LockBatchResponseBody
from penstock.wire.codes import RequestCode, ResponseCode

FIRST = ConsumeFrom.FIRST_OFFSET
LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


def orderly(
    name_server: str, group: str, topic: str, timings: Timings, listener: Any, **options: Any
) -> PushConsumer:
    return PushConsumer(
        name_server,
        group=group,
        listener=listener,
        subscribe={topic: "*"},
        consume_from=FIRST,
        orderly=True,
        timings=timings,
        **options,
    )


async def put_in_one_queue(server: RunningBroker, topic: str, count: int) -> MessageQueue:
    async with Producer(server.name_server) as producer:
        queue = (await producer.queues(topic))[0]
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number), queue=queue)
    return queue


@pytest.mark.scenario(48)
@pytest.mark.behaviour("ORD-1", "START-8", "REB-7")
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
async def test_a_queue_is_consumed_in_order_one_call_at_a_time(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any, kind: str
) -> None:
    seen: dict[int, list[int]] = {}
    inside: set[int] = set()

    def enter(queue_id: int) -> None:
        assert queue_id not in inside
        inside.add(queue_id)

    def plain(messages: Any, context: Any) -> OrderlyStatus:
        queue_id = context.queue.queue_id
        enter(queue_id)
        time.sleep(0.001)
        seen.setdefault(queue_id, []).extend(int(message.body) for message in messages)
        inside.remove(queue_id)
        return OrderlyStatus.SUCCESS

    async def coroutine(messages: Any, context: Any) -> OrderlyStatus:
        queue_id = context.queue.queue_id
        enter(queue_id)
        await asyncio.sleep(0.001)
        seen.setdefault(queue_id, []).extend(int(message.body) for message in messages)
        inside.remove(queue_id)
        return OrderlyStatus.SUCCESS

    async with Producer(server.name_server) as producer:
        for number in range(100):
            await producer.send(Message(topic, b"%d" % number), queue_key=number % 4)
    listener = plain if kind == "thread" else coroutine
    async with orderly(server.name_server, group, topic, quick, listener, consume_batch=3) as consumer:
        assert isinstance(consumer.consume_service, ConsumeOrderly)
        await eventually(lambda: sum(map(len, seen.values())) == 100)
    for numbers in seen.values():
        assert numbers == sorted(numbers)


@pytest.mark.behaviour("ORD-3")
async def test_suspend_keeps_the_batch_and_tries_it_again_before_anything_later(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    seen: list[tuple[int, int]] = []

    def listener(messages: Any, context: Any) -> OrderlyStatus | None:
        message = messages[0]
        seen.append((int(message.body), message.reconsume_times))
        context.suspend_ms = 20
        if message.body == b"1" and message.reconsume_times < 2:
            if message.reconsume_times:
                raise ValueError("suspends as well")
            return None
        return OrderlyStatus.SUCCESS

    await put_in_one_queue(server, topic, 3)
    async with orderly(server.name_server, group, topic, quick, listener):
        await eventually(lambda: len(seen) == 5)
    assert seen == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]


@pytest.mark.scenario(49)
@pytest.mark.parametrize(("wanted", "expected"), [(5, 10), (60_000, 30_000), (-1, 1_000), (500, 500)])
async def test_the_suspend_time_is_kept_between_10_ms_and_30_s(
    cluster: Any, topic: str, quick: Timings, eventually: Any, wanted: int, expected: int
) -> None:
    delays: list[int] = []

    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        context.suspend_ms = wanted
        return OrderlyStatus.SUSPEND

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0]})
        async with orderly(cluster.name_server, "g", topic, quick, listener) as consumer:
            service = consumer.consume_service
            assert isinstance(service, ConsumeOrderly)
            service._step_later = lambda process_queue, delay_ms: delays.append(delay_ms)  # type: ignore[method-assign]
            await eventually(lambda: delays)
    assert delays == [expected]


@pytest.mark.scenario(50)
@pytest.mark.behaviour("ORD-3")
async def test_after_the_maximum_attempts_a_message_leaves_the_queue_for_the_dead_letters(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    seen: list[tuple[int, int]] = []
    dead: list[bytes] = []

    def listener(messages: Any, context: Any) -> OrderlyStatus:
        message = messages[0]
        seen.append((int(message.body), message.reconsume_times))
        context.suspend_ms = 10
        return OrderlyStatus.SUSPEND if message.body == b"0" else OrderlyStatus.SUCCESS

    await put_in_one_queue(server, topic, 2)
    async with orderly(server.name_server, group, topic, quick, listener, max_reconsume_times=2):
        await eventually(lambda: len(seen) >= 4)
        await asyncio.sleep(0.2)
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0)]
    undertaker = PushConsumer(server.name_server, group=f"{group}-dead", consume_from=FIRST, timings=quick)

    @undertaker.on(f"%DLQ%{group}")
    def bury(message: Any) -> None:
        dead.append(message.body)

    async with undertaker:
        await eventually(lambda: dead == [b"0"])


@pytest.mark.scenario(51)
@pytest.mark.behaviour("ORD-3")
async def test_manual_commit_moves_the_offset_once_and_rollback_brings_everything_again(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    seen: list[int] = []
    offsets: list[int | None] = []
    answers = iter(
        [
            OrderlyStatus.SUCCESS,
            OrderlyStatus.SUCCESS,
            OrderlyStatus.COMMIT,
            OrderlyStatus.SUCCESS,
            OrderlyStatus.ROLLBACK,
            OrderlyStatus.SUCCESS,
            OrderlyStatus.COMMIT,
        ]
    )
    queue = MessageQueue(topic, "b1", 0)

    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        context.auto_commit = False
        context.suspend_ms = 10
        offsets.append(consumer.offset_store.memory(queue))
        seen.append(messages[0].queue_offset)
        return next(answers)

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1, 2, 3, 4]})
        consumer = orderly(cluster.name_server, "g", topic, quick, listener)
        async with consumer:
            await eventually(lambda: consumer.offset_store.memory(queue) == 5)
    assert seen == [0, 1, 2, 3, 4, 3, 4]
    assert offsets == [None, None, None, 3, 3, 3, 3]


@pytest.mark.behaviour("ORD-3")
async def test_commit_and_rollback_count_as_success_under_auto_commit(
    cluster: Any, topic: str, quick: Timings, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        return OrderlyStatus.ROLLBACK if messages[0].queue_offset else OrderlyStatus.COMMIT

    queue = MessageQueue(topic, "b1", 0)
    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1]})
        async with orderly(cluster.name_server, "g", topic, quick, listener) as consumer:
            await eventually(lambda: consumer.offset_store.memory(queue) == 2)
    assert "counts as SUCCESS" in caplog.text


async def test_a_handler_may_choose_how_long_its_queue_is_suspended(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    times: list[float] = []
    consumer = PushConsumer(server.name_server, group=group, consume_from=FIRST, orderly=True, timings=quick)

    @consumer.on(topic)
    async def handle(message: Any) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise RetryLater(suspend_ms=150)

    await put_in_one_queue(server, topic, 1)
    async with consumer:
        await eventually(lambda: len(times) == 2)
    assert 0.14 < times[1] - times[0] < 0.6


# ---- locks --------------------------------------------------------------------------------------------


@pytest.mark.behaviour("ORD-2")
async def test_locks_are_renewed_and_released_at_the_stop_after_the_offsets(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    timings = dataclasses.replace(quick, lock_interval_ms=50)

    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        return OrderlyStatus.SUCCESS

    def renewals() -> list[Any]:
        """Lock requests for more than the one queue that a rebalance takes."""
        return [r for r in cluster.sent(LOCK) if len(LockBatchRequestBody.decode(r.command.body).mq_set) == 2]

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0]})
        async with orderly(cluster.name_server, "g", topic, timings, listener) as consumer:
            await eventually(lambda: len(renewals()) >= 3)
            await eventually(lambda: consumer.offset_store.memory(MessageQueue(topic, "b1", 0)) == 1)
            client_id = consumer.client_id
        released = cluster.sent(UNLOCK)
        assert len(released) == 1
        assert not released[0].command.is_oneway
        assert LockBatchRequestBody.decode(released[0].command.body).client_id == client_id
        commit = [r for r in cluster.sent(RequestCode.UPDATE_CONSUMER_OFFSET) if r.ext["topic"] == topic][-1]
        assert commit.at < released[0].at
    assert Timings().lock_interval_ms == 20_000


@pytest.mark.scenario(23)
@pytest.mark.behaviour("REB-7")
async def test_a_queue_whose_lock_is_refused_is_not_taken_until_it_is_granted(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    granted = [False]

    def lock(request: Any) -> Any:
        queues = LockBatchRequestBody.decode(request.command.body).mq_set if granted[0] else []
        return request.reply(body=LockBatchResponseBody(queues).encode())

    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        return OrderlyStatus.SUCCESS

    async with cluster.running("b1"):
        cluster.on(LOCK, lock)
        async with orderly(cluster.name_server, "g", topic, quick, listener) as consumer:
            await eventually(lambda: len(cluster.sent(LOCK)) >= 4)
            assert not consumer.rebalancer.queues
            granted[0] = True
            await eventually(lambda: MessageQueue(topic, "b1", 0) in consumer.rebalancer.queues, 2.0)


@pytest.mark.behaviour("PULL-9")
async def test_without_the_lock_a_queue_is_not_pulled(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    timings = dataclasses.replace(quick, lock_interval_ms=50)
    refuse = [False]

    def lock(request: Any) -> Any:
        queues = [] if refuse[0] else LockBatchRequestBody.decode(request.command.body).mq_set
        return request.reply(body=LockBatchResponseBody(queues).encode())

    def pulls() -> int:
        return len([r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic])

    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        return OrderlyStatus.SUCCESS

    held: list[Any] = []
    async with cluster.running("b1"):
        cluster.on(LOCK, lock)
        cluster.on(RequestCode.PULL_MESSAGE, lambda r: held.append(r) if r.ext["topic"] == topic else None)
        async with orderly(cluster.name_server, "g", topic, timings, listener) as consumer:
            await eventually(lambda: held)
            process_queue = consumer.rebalancer.queues[MessageQueue(topic, "b1", 0)]
            refuse[0] = True
            await eventually(lambda: not process_queue.locked)
            held[0].peer.send(cluster.pulled(held[0], ResponseCode.PULL_NOT_FOUND))
            await asyncio.sleep(0.1)
            assert pulls() == 1
            refuse[0] = False
            await eventually(lambda: pulls() == 2)


@pytest.mark.behaviour("PULL-9")
async def test_the_first_pull_under_a_lock_reads_the_offset_again_and_corrects_it(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    queue = MessageQueue(topic, "b1", 0)
    asked: list[int] = []
    fail = [True]

    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        return OrderlyStatus.SUCCESS

    async with cluster.running("b1"):
        cluster.offsets[queue] = 40
        plain = cluster.handlers[("*", RequestCode.QUERY_CONSUMER_OFFSET)]

        def query(request: Any) -> Any:
            if request.ext["topic"] != topic:
                return plain(request)
            asked.append(cluster.offsets[queue])
            if len(asked) == 2 and fail:
                fail.clear()
                return request.reply(ResponseCode.SYSTEM_ERROR)
            answer = plain(request)
            cluster.offsets[queue] = 30  # the former owner's last commit arrives late
            return answer

        def pulls() -> list[Any]:
            return [r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic]

        cluster.on(RequestCode.QUERY_CONSUMER_OFFSET, query)
        timings = dataclasses.replace(quick, persist_first_ms=10_000)
        async with orderly(cluster.name_server, "g", topic, timings, listener):
            await eventually(pulls)
            assert pulls()[0].ext["queueOffset"] == "30"
            assert len(asked) == 3


@pytest.mark.scenario(52)
async def test_a_lock_that_was_not_renewed_in_time_stops_consumption_until_it_is_taken_again(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    timings = dataclasses.replace(quick, lock_max_live_ms=150, lock_interval_ms=60_000)
    seen: list[float] = []
    locked_again: list[float] = []

    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        seen.append(time.monotonic())
        return OrderlyStatus.SUCCESS

    held: list[Any] = []
    async with cluster.running("b1"):
        cluster.on(RequestCode.PULL_MESSAGE, lambda r: held.append(r) if r.ext["topic"] == topic else None)
        async with orderly(cluster.name_server, "g", topic, timings, listener):
            await eventually(lambda: held)
            await asyncio.sleep(0.3)
            plain = cluster.handlers[("*", LOCK)]

            def lock(request: Any) -> Any:
                locked_again.append(time.monotonic())
                return plain(request)

            cluster.on(LOCK, lock)
            held[0].peer.send(cluster.pulled(held[0], offsets=[0]))
            await eventually(lambda: seen)
    assert locked_again
    assert locked_again[0] < seen[0]


@pytest.mark.scenario(53)
async def test_a_queue_that_never_runs_dry_gives_others_a_turn_from_time_to_time(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    timings = dataclasses.replace(quick, orderly_continuous_ms=100)
    times: list[float] = []

    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        await asyncio.sleep(0.02)
        times.append(time.monotonic())
        return OrderlyStatus.SUCCESS

    async with cluster.running("b1"):
        cluster.feed(topic, {0: list(range(12))})
        async with orderly(cluster.name_server, "g", topic, timings, listener) as consumer:
            service = consumer.consume_service
            assert isinstance(service, ConsumeOrderly)
            real, pauses = service._step_later, []

            def later(process_queue: Any, delay_ms: int) -> None:
                pauses.append(delay_ms)
                real(process_queue, delay_ms)

            service._step_later = later  # type: ignore[method-assign]
            await eventually(lambda: len(times) == 12)
    assert 10 in pauses
    assert Timings().orderly_continuous_ms == 60_000


@pytest.mark.scenario(54)
@pytest.mark.behaviour("ORD-1", "REB-3")
async def test_a_queue_is_unlocked_only_after_its_listener_has_returned(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    timings = dataclasses.replace(quick, unlock_wait_ms=50, rebalance_interval_ms=100)
    release = threading.Event()
    returned: list[float] = []
    entered = threading.Event()

    def listener(messages: Any, context: Any) -> OrderlyStatus:
        entered.set()
        release.wait(10)
        returned.append(time.monotonic())
        return OrderlyStatus.SUCCESS

    queue = MessageQueue(topic, "b1", 0)

    def unlocks() -> list[Any]:
        return [
            r for r in cluster.sent(UNLOCK) if queue in LockBatchRequestBody.decode(r.command.body).mq_set
        ]

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0]})
        async with orderly(cluster.name_server, "g", topic, timings, listener) as consumer:
            await eventually(entered.is_set)
            process_queue = consumer.rebalancer.queues[queue]
            cluster.ids.insert(0, "0.0.0.0@first")
            consumer.instance.rebalance_service.wake()
            await eventually(lambda: process_queue.unlock_tries > 0)
            assert not unlocks()
            release.set()
            await eventually(unlocks)
            assert returned[0] < unlocks()[0].at
            assert unlocks()[0].command.is_oneway


@pytest.mark.scenario(54)
async def test_a_listener_that_never_returns_loses_its_queue_when_the_lock_runs_out(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    timings = dataclasses.replace(
        quick, unlock_wait_ms=20, rebalance_interval_ms=50, unlock_delay_ms=300, lock_interval_ms=60_000
    )
    release = threading.Event()
    entered = threading.Event()

    def listener(messages: Any, context: Any) -> OrderlyStatus:
        entered.set()
        release.wait(10)
        return OrderlyStatus.SUCCESS

    queue = MessageQueue(topic, "b1", 0)
    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0]})
        consumer = orderly(cluster.name_server, "g", topic, timings, listener, stop_timeout_ms=0)
        async with consumer:
            await eventually(entered.is_set)
            cluster.ids.insert(0, "0.0.0.0@first")
            consumer.instance.rebalance_service.wake()
            await eventually(lambda: queue not in consumer.rebalancer.queues)
            assert cluster.sent(UNLOCK)
        release.set()


@pytest.mark.behaviour("ORD-1")
async def test_a_listener_gets_its_time_to_return_also_when_the_lock_was_renewed_long_ago(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    timings = dataclasses.replace(
        quick, unlock_wait_ms=10, unlock_delay_ms=60_000, rebalance_interval_ms=30, lock_first_ms=60_000
    )
    release = asyncio.Event()
    entered = asyncio.Event()

    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        entered.set()
        await release.wait()
        return OrderlyStatus.SUCCESS

    queue = MessageQueue(topic, "b1", 0)

    def unlocked() -> bool:
        bodies = [LockBatchRequestBody.decode(request.command.body) for request in cluster.sent(UNLOCK)]
        return any(queue in body.mq_set for body in bodies)

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0]})
        async with orderly(cluster.name_server, "g", topic, timings, listener) as consumer:
            await entered.wait()
            process_queue = consumer.rebalancer.queues[queue]
            process_queue.last_lock_ms -= 60_001
            cluster.ids.insert(0, "0.0.0.0@first")
            consumer.instance.rebalance_service.wake()
            await eventually(lambda: process_queue.unlock_tries > 1)
            assert not unlocked()
            release.set()
            await eventually(unlocked)


@pytest.mark.behaviour("ORD-1", "REB-6", "ORD-2")
async def test_order_holds_while_a_second_consumer_joins_and_the_first_leaves(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    timings = dataclasses.replace(quick, rebalance_interval_ms=200)
    seen: dict[int, list[int]] = {}
    inside: set[int] = set()

    async def listener(messages: Any, context: Any) -> OrderlyStatus:
        queue_id = context.queue.queue_id
        assert queue_id not in inside
        inside.add(queue_id)
        await asyncio.sleep(0.002)
        seen.setdefault(queue_id, []).append(int(messages[0].body))
        inside.discard(queue_id)
        return OrderlyStatus.SUCCESS

    def distinct() -> int:
        return sum(len(set(numbers)) for numbers in seen.values())

    async with Producer(server.name_server) as producer:
        queues = await producer.queues(topic)
        sent = 0

        async def send_some(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                await producer.send(Message(topic, b"%d" % sent), queue=queues[sent % len(queues)])
                sent += 1

        await send_some(60)
        first = orderly(server.name_server, group, topic, timings, listener)
        second = orderly(server.name_server, group, topic, timings, listener)
        await first.start()
        await eventually(lambda: distinct() > 10)
        await second.start()
        await send_some(60)
        await eventually(lambda: len(second.rebalancer.queues) >= 2)
        await send_some(60)
        await first.stop()
        await send_some(60)
        await eventually(lambda: distinct() == 240, 15.0)
        await second.stop()
    for numbers in seen.values():
        # At a hand-over messages may come again, in order; none comes before an earlier one was consumed.
        fresh: list[int] = []
        for number in numbers:
            if not fresh or number > fresh[-1]:
                fresh.append(number)
            else:
                assert number in fresh
        assert fresh == sorted(set(numbers))
