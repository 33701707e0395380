"""Concurrent consumption, on a real broker where it can be seen there and on a scripted one where not."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from penstock import (
    ConsumeFrom,
    ConsumeStatus,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    RetryLater,
)
from penstock.client.config import Timings
from penstock.client.listener import ReturnType
from penstock.errors import WrongState
from penstock.testing import RunningBroker
from penstock.wire.codes import RequestCode, ResponseCode

FIRST = ConsumeFrom.FIRST_OFFSET
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK


async def put(server: RunningBroker, topic: str, *bodies: bytes, **options: Any) -> None:
    async with Producer(server.name_server) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **options))


@pytest.mark.behaviour("CON-1", "START-8")
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
async def test_every_message_reaches_a_listener_once_in_batches_of_the_chosen_size(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any, kind: str
) -> None:
    batches: list[list[bytes]] = []

    def plain(messages: Any, context: Any) -> ConsumeStatus:
        batches.append([message.body for message in messages])
        return ConsumeStatus.SUCCESS

    async def coroutine(messages: Any, context: Any) -> ConsumeStatus:
        return plain(messages, context)

    async with Producer(server.name_server) as producer:
        await producer.send_many([Message(topic, b"%d" % number) for number in range(200)])
    consumer = PushConsumer(
        server.name_server,
        group=group,
        listener=plain if kind == "thread" else coroutine,
        subscribe={topic: "*"},
        consume_from=FIRST,
        consume_batch=8,
        timings=quick,
    )
    async with consumer:
        await eventually(lambda: sum(map(len, batches)) == 200)
        assert max(map(len, batches)) == 8
        await asyncio.sleep(0.05)
    assert sorted(int(body) for batch in batches for body in batch) == list(range(200))


async def test_handlers_by_topic_get_their_messages_one_by_one_filtered_by_tag(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    paid: list[bytes] = []
    other: list[bytes] = []
    consumer = PushConsumer(server.name_server, group=group, consume_from=FIRST, timings=quick)

    @consumer.on(topic, tags="paid || shipped")
    async def bill(message: Any) -> None:
        paid.append(message.body)

    @consumer.on(topic + "-other")
    def note(message: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        other.append(message.body)

    await put(server, topic, b"1", tag="paid")
    await put(server, topic, b"2", tag="lost")
    await put(server, topic, b"3", tag="shipped")
    await put(server, topic + "-other", b"4")
    async with consumer:
        await eventually(lambda: len(paid) == 2 and len(other) == 1)
    assert sorted(paid) == [b"1", b"3"]


async def test_an_sql_expression_filters_at_the_broker(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    got: list[bytes] = []
    consumer = PushConsumer(server.name_server, group=group, consume_from=FIRST, timings=quick)

    @consumer.on(topic, sql="price > 10")
    def note(message: Any) -> None:
        got.append(message.body)

    await put(server, topic, b"cheap", properties={"price": "5"})
    await put(server, topic, b"dear", properties={"price": "50"})
    async with consumer:
        await eventually(lambda: got)
    assert got == [b"dear"]


@pytest.mark.behaviour("CON-4", "CON-6", "CON-2")
@pytest.mark.scenario(46)
@pytest.mark.parametrize("failure", ["none", "raise", "later"])
async def test_a_failed_message_comes_again_under_its_own_topic_with_one_more_attempt(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any, failure: str
) -> None:
    seen: list[tuple[str, int, str]] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus | None:
        message = messages[0]
        seen.append((message.topic, message.reconsume_times, context.queue.topic))
        assert int(message.properties["CONSUME_START_TIME"]) == pytest.approx(time.time() * 1000, abs=5_000)
        if message.reconsume_times == 0:
            if failure == "raise":
                raise ValueError("try again")
            return None if failure == "none" else ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.SUCCESS

    await put(server, topic, b"x")
    consumer = PushConsumer(
        server.name_server,
        group=group,
        listener=listener,
        subscribe={topic: "*"},
        consume_from=FIRST,
        timings=quick,
    )
    async with consumer:
        await eventually(lambda: len(seen) == 2)
    assert seen == [(topic, 0, topic), (topic, 1, f"%RETRY%{group}")]


@pytest.mark.behaviour("CON-10")
async def test_after_16_attempts_a_message_lands_in_the_dead_letter_topic(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    attempts: list[int] = []
    dead: list[Any] = []

    def listener(messages: Any, context: Any) -> None:
        attempts.append(messages[0].reconsume_times)

    await put(server, topic, b"poison", keys=["k1"])
    options: dict[str, Any] = {"consume_from": FIRST, "timings": quick}
    consumer = PushConsumer(
        server.name_server, group=group, listener=listener, subscribe={topic: "*"}, **options
    )
    undertaker = PushConsumer(server.name_server, group=f"{group}-dead", **options)

    @undertaker.on(f"%DLQ%{group}")
    def bury(message: Any) -> None:
        dead.append(message)

    async with consumer:
        await eventually(lambda: len(attempts) == 17, 20.0)
        await asyncio.sleep(0.3)
    assert attempts == list(range(17))
    async with undertaker:
        await eventually(lambda: dead)
    assert dead[0].body == b"poison"
    assert dead[0].keys == ["k1"]


@pytest.mark.behaviour("CON-10")
async def test_the_delay_level_of_a_retry_can_be_chosen(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    times: list[float] = []
    consumer = PushConsumer(server.name_server, group=group, consume_from=FIRST, timings=quick)

    @consumer.on(topic)
    def fail_once(message: Any) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise RetryLater("not yet", level=1)

    await put(server, topic, b"x")
    async with consumer:
        await eventually(lambda: len(times) == 2)
    assert 0.9 < times[1] - times[0] < 3.0


@pytest.mark.behaviour("CON-11")
async def test_a_delayed_message_is_consumed_when_it_is_due(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    got: list[tuple[str, float]] = []
    consumer = PushConsumer(server.name_server, group=group, consume_from=FIRST, timings=quick)

    @consumer.on(topic)
    def note(message: Any) -> None:
        got.append((message.topic, time.monotonic()))

    async with Producer(server.name_server) as producer, consumer:
        sent = time.monotonic()
        await producer.send(Message(topic, b"later", delay_level=1))
        await eventually(lambda: got)
    assert got[0][0] == topic
    assert 0.9 < got[0][1] - sent < 3.0


@pytest.mark.behaviour("CON-7")
@pytest.mark.scenario(44)
async def test_broadcasting_drops_what_fails_with_a_warning_and_goes_on(
    cluster: Any, topic: str, quick: Timings, eventually: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1]})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=lambda messages, context: None,
            subscribe={topic: "*"},
            consume_from=FIRST,
            message_model=MessageModel.BROADCASTING,
            local_offset_dir=str(tmp_path),
            timings=quick,
        )
        async with consumer:
            await eventually(lambda: consumer.offset_store.memory(MessageQueue(topic, "b1", 0)) == 2)
            assert not cluster.sent(SEND_BACK)
            assert "broadcasting does not retry" in caplog.text


@pytest.mark.scenario(40)
@pytest.mark.behaviour("CON-5", "CON-6")
async def test_messages_after_the_ack_index_are_sent_back_and_the_offset_passes_all(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    def listener(messages: Any, context: Any) -> ConsumeStatus:
        context.ack_index = 1
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1, 2, 3]})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            subscribe={topic: "*"},
            consume_from=FIRST,
            consume_batch=4,
            timings=quick,
        )
        async with consumer:
            await eventually(lambda: consumer.offset_store.memory(MessageQueue(topic, "b1", 0)) == 4)
            back = cluster.sent(SEND_BACK)
            assert [request.ext["offset"] for request in back] == ["2000", "3000"]
            assert back[0].ext["originMsgId"] == "id-2"
            assert back[0].ext["originTopic"] == topic
            assert back[0].ext["maxReconsumeTimes"] == "16"
            assert back[0].ext["delayLevel"] == "0"
            stats = consumer.stats.topic(topic)
            assert (stats.consume_ok.value, stats.consume_failed.value) == (2, 2)


@pytest.mark.scenario(41)
async def test_level_minus_one_asks_for_the_dead_letter_topic(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    def listener(messages: Any, context: Any) -> ConsumeStatus:
        context.delay_level = -1
        return ConsumeStatus.RECONSUME_LATER

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0]})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            subscribe={topic: "*"},
            consume_from=FIRST,
            max_reconsume_times=3,
            timings=quick,
        )
        async with consumer:
            await eventually(lambda: cluster.sent(SEND_BACK))
            ext = cluster.sent(SEND_BACK)[0].ext
            assert (ext["delayLevel"], ext["maxReconsumeTimes"]) == ("-1", "3")


@pytest.mark.scenario(42)
@pytest.mark.behaviour("CON-6")
async def test_where_the_broker_does_not_take_a_message_back_it_is_sent_to_the_retry_topic(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"):
        cluster.on(SEND_BACK, lambda request: request.reply(ResponseCode.SYSTEM_ERROR))
        cluster.feed(topic, {0: [0]}, reconsume_times=2, properties={"colour": "red"})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=lambda messages, context: None,
            subscribe={topic: "*"},
            consume_from=FIRST,
            timings=quick,
        )
        async with consumer:
            await eventually(lambda: cluster.sent(RequestCode.SEND_MESSAGE_V2))
            sent = cluster.sent(RequestCode.SEND_MESSAGE_V2)[0]
            assert sent.ext["b"] == "%RETRY%g"
            assert sent.ext["a"] == "CLIENT_INNER_PRODUCER"
            assert (sent.ext["j"], sent.ext["l"]) == ("3", "16")
            assert "DELAY\x015\x02" in sent.ext["i"]
            assert f"RETRY_TOPIC\x01{topic}\x02" in sent.ext["i"]
            assert "ORIGIN_MESSAGE_ID\x01id-0\x02" in sent.ext["i"]
            assert "colour\x01red\x02" in sent.ext["i"]
            assert "CONSUME_START_TIME" not in sent.ext["i"]
            assert "MAX_OFFSET" not in sent.ext["i"]
            assert sent.command.body == b"0"
            await eventually(lambda: consumer.offset_store.memory(MessageQueue(topic, "b1", 0)) == 1)


@pytest.mark.scenario(43)
@pytest.mark.behaviour("CON-6", "CON-8")
async def test_where_that_fails_too_the_message_is_consumed_again_here_and_pins_the_offset(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    attempts: list[tuple[int, float]] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        if messages[0].queue_offset != 0:
            return ConsumeStatus.SUCCESS
        attempts.append((messages[0].reconsume_times, time.monotonic()))
        return ConsumeStatus.SUCCESS if len(attempts) == 3 else ConsumeStatus.RECONSUME_LATER

    async with cluster.running("b1"):
        cluster.on(SEND_BACK, lambda request: request.reply(ResponseCode.SYSTEM_ERROR))
        cluster.on(RequestCode.SEND_MESSAGE_V2, lambda request: request.reply(ResponseCode.MESSAGE_ILLEGAL))
        cluster.feed(topic, {0: [0, 1, 2]})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            subscribe={topic: "*"},
            consume_from=FIRST,
            timings=quick,
        )
        queue = MessageQueue(topic, "b1", 0)
        async with consumer:
            await eventually(lambda: len(attempts) == 2)
            assert consumer.offset_store.memory(queue) == 0
            await eventually(lambda: consumer.offset_store.memory(queue) == 3)
        assert [times for times, _ in attempts] == [0, 1, 2]
        assert attempts[1][1] - attempts[0][1] >= quick.resubmit_ms / 1000


@pytest.mark.scenario(47)
@pytest.mark.behaviour("CON-8", "REB-3")
async def test_a_queue_given_up_under_a_running_listener_neither_commits_nor_sends_back(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    hold = asyncio.Event()
    entered = asyncio.Event()

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        entered.set()
        await hold.wait()
        return ConsumeStatus.RECONSUME_LATER

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0]})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            subscribe={topic: "*"},
            consume_from=FIRST,
            timings=quick,
        )
        queue = MessageQueue(topic, "b1", 0)
        async with consumer:
            await entered.wait()
            process_queue = consumer.rebalancer.queues[queue]
            cluster.ids.insert(0, "0.0.0.0@first")  # takes the only queue
            consumer.instance.rebalance_service.wake()
            await eventually(lambda: queue not in consumer.rebalancer.queues)
            hold.set()
            await asyncio.sleep(0.1)
            assert process_queue.dropped
            assert not cluster.sent(SEND_BACK)
            assert queue not in cluster.offsets
            assert consumer.offset_store.memory(queue) is None


@pytest.mark.scenario(45)
@pytest.mark.behaviour("CON-9")
async def test_a_message_held_for_too_long_is_sent_back_once_and_its_late_failure_is_ignored(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    release = threading.Event()

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        if messages[0].queue_offset == 0:
            release.wait(10)
            return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1], 2: [2]})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            subscribe={topic: "*"},
            consume_from=FIRST,
            consume_timeout_ms=200,
            timings=quick,
        )
        queue = MessageQueue(topic, "b1", 0)
        async with consumer:
            await eventually(lambda: cluster.sent(SEND_BACK))
            assert cluster.sent(SEND_BACK)[0].ext["delayLevel"] == "3"
            await eventually(lambda: consumer.offset_store.memory(queue) == 3)  # the listener still hangs
            release.set()
            await eventually(lambda: consumer.consume_service.pool.outstanding == 0)
            await asyncio.sleep(0.1)
            assert len(cluster.sent(SEND_BACK)) == 1
            assert consumer.rebalancer.queues[queue].count == 0


@pytest.mark.behaviour("CON-9")
def test_messages_expire_after_15_minutes_unless_set_otherwise() -> None:
    assert PushConsumer("h:1", group="g").settings.consume_timeout_ms == 15 * 60_000


@pytest.mark.behaviour("CON-3")
async def test_hooks_learn_how_each_listener_call_ended(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    ends: dict[int, tuple[ReturnType | None, bool]] = {}
    begun: list[int] = []

    class Hook:
        def before(self, context: Any) -> None:
            begun.append(context.messages[0].queue_offset)
            context.props["seen"] = True

        def after(self, context: Any) -> None:
            assert context.props["seen"]
            ends[context.messages[0].queue_offset] = (context.return_type, context.success)
            raise RuntimeError("hooks must not disturb consumption")

    def listener(messages: Any, context: Any) -> Any:
        match messages[0].queue_offset:
            case 0:
                return ConsumeStatus.SUCCESS
            case 1:
                time.sleep(0.6)
                return ConsumeStatus.SUCCESS
            case 2:
                raise ValueError("broken")
            case 3:
                return None
            case _:
                return ConsumeStatus.RECONSUME_LATER

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1, 2, 3, 4]})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            subscribe={topic: "*"},
            consume_from=FIRST,
            consume_timeout_ms=500,
            timings=quick,
        )
        consumer.consume_hooks.append(Hook())
        async with consumer:
            await eventually(lambda: len(ends) == 5)
            await eventually(lambda: consumer.offset_store.memory(MessageQueue(topic, "b1", 0)) == 5)
    assert ends == {
        0: (ReturnType.SUCCESS, True),
        1: (ReturnType.TIME_OUT, True),
        2: (ReturnType.EXCEPTION, False),
        3: (ReturnType.RETURNNULL, False),
        4: (ReturnType.FAILED, False),
    }
    assert sorted(begun) == [0, 1, 2, 3, 4]


@pytest.mark.behaviour("CON-1")
async def test_what_a_full_pool_does_not_take_is_submitted_again_later(
    cluster: Any, topic: str, quick: Timings, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[int] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        time.sleep(0.01)
        got.append(messages[0].queue_offset)
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"):
        cluster.feed(topic, {0: list(range(10))})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            subscribe={topic: "*"},
            consume_from=FIRST,
            consume_threads=1,
            consume_backlog=4,
            timings=quick,
        )
        with caplog.at_level("INFO", "penstock.client"):
            async with consumer:
                await eventually(lambda: sorted(got) == list(range(10)))
        assert "6 message(s) of" in caplog.text


@pytest.mark.behaviour("CON-1")
async def test_a_listener_that_tries_to_end_its_thread_only_fails_its_message(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    got: list[int] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        if messages[0].queue_offset == 0:
            raise SystemExit
        got.append(messages[0].queue_offset)
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1, 2]})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            subscribe={topic: "*"},
            consume_from=FIRST,
            consume_threads=1,
            timings=quick,
        )
        async with consumer:
            await eventually(lambda: got == [1, 2])
            await eventually(lambda: len(cluster.sent(SEND_BACK)) == 1)


async def test_a_filter_hook_may_take_messages_out_before_they_are_cached(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    got: list[int] = []

    class OnlyEven:
        def filter(self, group: str, queue: Any, messages: list[Any]) -> None:
            messages[:] = [message for message in messages if message.queue_offset % 2 == 0]

    class Broken:
        def filter(self, group: str, queue: Any, messages: list[Any]) -> None:
            raise RuntimeError("ignored")

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.append(messages[0].queue_offset)
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1, 2, 3]})
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            subscribe={topic: "*"},
            consume_from=FIRST,
            timings=quick,
        )
        consumer.filter_hooks += [Broken(), OnlyEven()]
        async with consumer:
            await eventually(lambda: sorted(got) == [0, 2])


async def test_a_stop_waits_for_running_listeners_and_leaves_the_rest_for_the_next_owner(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    finished: list[bytes] = []
    entered = threading.Event()

    def slow(messages: Any, context: Any) -> ConsumeStatus:
        entered.set()
        time.sleep(0.2)
        finished.append(messages[0].body)
        return ConsumeStatus.SUCCESS

    async with Producer(server.name_server) as producer:
        queue = (await producer.queues(topic))[0]
        for number in range(5):
            await producer.send(Message(topic, b"%d" % number), queue=queue)
    options: dict[str, Any] = {"consume_from": FIRST, "timings": quick}
    first = PushConsumer(
        server.name_server, group=group, listener=slow, subscribe={topic: "*"}, consume_threads=1, **options
    )
    async with first:
        await eventually(entered.is_set)
    done = len(finished)
    assert 1 <= done < 5
    rest: list[bytes] = []
    second = PushConsumer(server.name_server, group=group, **options)

    @second.on(topic)
    def note(message: Any) -> None:
        rest.append(message.body)

    async with second:
        await eventually(lambda: len(rest) == 5 - done)
        await asyncio.sleep(0.05)
    assert sorted(finished + rest) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_stop_does_not_wait_longer_than_its_deadline_for_a_stuck_listener(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    release = threading.Event()
    entered = threading.Event()

    def stuck(messages: Any, context: Any) -> ConsumeStatus:
        entered.set()
        release.wait(20)
        return ConsumeStatus.SUCCESS

    await put(server, topic, b"x")
    consumer = PushConsumer(
        server.name_server,
        group=group,
        listener=stuck,
        subscribe={topic: "*"},
        consume_from=FIRST,
        stop_timeout_ms=200,
        timings=quick,
    )
    await consumer.start()
    await eventually(entered.is_set)
    began = time.monotonic()
    await consumer.stop()
    assert time.monotonic() - began < 2.0
    release.set()


async def test_a_listener_cannot_wait_for_the_end_of_its_own_consumer_but_may_start_it(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    errors: list[str] = []
    stops: list[asyncio.Task[None]] = []
    consumer = PushConsumer(server.name_server, group=group, consume_from=FIRST, timings=quick)

    @consumer.on(topic)
    async def handle(message: Any) -> None:
        try:
            await consumer.stop()
        except WrongState as error:
            errors.append(str(error))
        stops.append(asyncio.create_task(consumer.stop()))

    await put(server, topic, b"x")
    await consumer.start()
    await eventually(lambda: not consumer.running)
    await stops[0]
    assert "create_task" in errors[0]
