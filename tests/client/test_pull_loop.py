"""The pull loop, row by row, against a broker whose answers the test writes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

import pytest

from penstock import ConsumeFrom, ConsumeStatus, MessageModel, MessageQueue, PushConsumer
from penstock.client.api import PullFlag
from penstock.client.config import Timings
from penstock.client.pull_service import PullRequest
from penstock.message.record import MAGIC_V1
from penstock.wire.bodies import SubscriptionData
from penstock.wire.codes import RequestCode, ResponseCode

PULL = RequestCode.PULL_MESSAGE


def success(messages: Any, context: Any) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


def consumer_of(cluster: Any, topic: str, quick: Timings, **options: Any) -> PushConsumer:
    options.setdefault("listener", success)
    options.setdefault("consume_from", ConsumeFrom.FIRST_OFFSET)
    return PushConsumer(cluster.name_server, group="g", subscribe={topic: "*"}, timings=quick, **options)


def pulls(cluster: Any, topic: str) -> list[Any]:
    return [request for request in cluster.sent(PULL) if request.ext["topic"] == topic]


def request_of(consumer: PushConsumer, topic: str) -> PullRequest:
    """The pull request of the topic's only queue, as the service would take it."""
    queue = MessageQueue(topic, "b1", 0)
    return PullRequest("g", queue, consumer.rebalancer.queues[queue], 0)


@pytest.mark.behaviour("PULL-12", "PULL-13", "START-1")
async def test_a_pull_asks_for_32_messages_and_lets_the_broker_hold_it_for_15_seconds(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"), consumer_of(cluster, topic, quick) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        ext = pulls(cluster, topic)[0].ext
        assert ext["maxMsgNums"] == "32"
        assert ext["suspendTimeoutMillis"] == "15000"
        assert consumer.settings.pull_timeout_ms == 30_000
        assert ext["sysFlag"] == str(PullFlag.SUSPEND)
        assert "subscription" not in ext
        assert ext["queueOffset"] == "0"
        assert ext["bname"] == "b1"
        assert int(ext["subVersion"]) > 0


@pytest.mark.behaviour("PULL-12")
async def test_the_expression_travels_with_the_pull_only_when_it_is_to_be_posted(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"):
        consumer = PushConsumer(
            cluster.name_server, group="g", listener=success, timings=quick, post_subscription=True
        )
        consumer.subscribe(topic, "a || b")
        async with consumer:
            await eventually(lambda: pulls(cluster, topic))
            ext = pulls(cluster, topic)[0].ext
            assert int(ext["sysFlag"]) == PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
            assert ext["subscription"] == "a || b"


@pytest.mark.scenario(33)
@pytest.mark.behaviour("PULL-11", "PULL-15")
async def test_a_known_offset_is_committed_with_the_pull_but_not_at_a_slave(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1", replicas={"b1": [1]}):
        cluster.offsets[MessageQueue(topic, "b1", 0)] = 100

        def answer(request: Any) -> Any:
            if request.ext["topic"] == topic and request.broker == "b1":
                return cluster.pulled(request, ResponseCode.PULL_NOT_FOUND, next_offset=101, suggest=1)
            return None

        cluster.on(PULL, answer)
        async with consumer_of(cluster, topic, quick):
            await eventually(lambda: len(pulls(cluster, topic)) > 1)
            master, slave = pulls(cluster, topic)[:2]
            assert master.broker == "b1"
            assert int(master.ext["sysFlag"]) & PullFlag.COMMIT_OFFSET
            assert master.ext["commitOffset"] == "100"
            assert slave.broker == "b1-1"
            assert not int(slave.ext["sysFlag"]) & PullFlag.COMMIT_OFFSET


@pytest.mark.scenario(34)
@pytest.mark.behaviour("PULL-14")
async def test_the_next_pull_goes_to_the_suggested_replica_or_the_one_after_it(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1", replicas={"b1": [2]}):
        cluster.on(
            PULL,
            lambda request: (
                cluster.pulled(request, ResponseCode.PULL_NOT_FOUND, suggest=1)
                if request.broker == "b1" and request.ext["topic"] == topic
                else None
            ),
        )
        async with consumer_of(cluster, topic, quick):
            await eventually(lambda: len(pulls(cluster, topic)) > 1)
            assert [request.broker for request in pulls(cluster, topic)[:2]] == ["b1", "b1-2"]


@pytest.mark.behaviour("PULL-14")
async def test_a_broker_that_is_not_known_is_looked_up_in_a_fresh_route(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"), consumer_of(cluster, topic, quick) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        before = len(pulls(cluster, topic))
        consumer.instance.routes.addresses.clear()
        consumer.instance.routes.routes.clear()
        consumer.pull(request_of(consumer, topic))
        await eventually(lambda: len(pulls(cluster, topic)) > before)
        assert consumer.instance.route(topic) is not None  # asked for, or one that was under way


@pytest.mark.behaviour("PULL-12", "PULL-14")
async def test_class_filter_mode_pulls_from_a_filter_server_or_fails(
    cluster: Any, topic: str, quick: Timings, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.running("b1", replicas={"b1": [9]}):
        filter_server = cluster.broker_addrs["b1"].pop(9)
        async with consumer_of(cluster, topic, quick, class_filter=True, route_interval_ms=50):
            await eventually(lambda: "no filter server" in caplog.text)
            assert not pulls(cluster, topic)
            cluster.filter_servers[cluster.broker_addrs["b1"][0]] = [filter_server]
            await eventually(lambda: pulls(cluster, topic))
            request = pulls(cluster, topic)[0]
            assert request.broker == "b1-9"
            assert int(request.ext["sysFlag"]) & PullFlag.CLASS_FILTER


@pytest.mark.behaviour("PULL-18")
async def test_found_messages_are_consumed_and_the_next_pull_follows_at_once(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    got: list[bytes] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.extend(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1, 2], 3: [3]})
        async with consumer_of(cluster, topic, quick, listener=listener) as consumer:
            await eventually(lambda: len(pulls(cluster, topic)) == 3)
            await eventually(lambda: len(got) == 4)
            assert [request.ext["queueOffset"] for request in pulls(cluster, topic)] == ["0", "3", "4"]
            assert sorted(got) == [b"0", b"1", b"2", b"3"]
            stats = consumer.stats.topic(topic)
            assert stats.pull_messages.value == 4
            assert stats.pull_rt.times == 2
            await eventually(lambda: stats.consume_ok.value == 4)


@pytest.mark.behaviour("PULL-18")
async def test_the_pull_interval_delays_the_next_pull(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0]})
        async with consumer_of(cluster, topic, quick, pull_interval_ms=300):
            await eventually(lambda: len(pulls(cluster, topic)) == 2)
            first, second = pulls(cluster, topic)
            assert 0.28 < second.at - first.at < 1.0


@pytest.mark.scenario(35)
@pytest.mark.behaviour("PULL-17")
async def test_a_tag_that_only_has_the_same_hash_is_not_delivered(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    got: list[Any] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.extend(messages)
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"):
        # "Aa" and "BB" have one hash.
        def answer(request: Any) -> Any:
            if request.ext["topic"] != topic:
                return None
            match request.ext["queueOffset"]:
                case "0":
                    return cluster.pulled(request, offsets=[0, 1], properties={"TAGS": "BB"})
                case "2":
                    return cluster.pulled(request, offsets=[2], properties={"TAGS": "Aa"}, max_offset=9)
            return None

        cluster.on(PULL, answer)
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            timings=quick,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        )
        consumer.subscribe(topic, "Aa")
        async with consumer:
            await eventually(lambda: got)
            assert [message.queue_offset for message in got] == [2]
            message = got[0]
            assert (message.min_offset, message.max_offset) == (0, 9)
            assert message.properties["MAX_OFFSET"] == "9"
            assert message.queue == MessageQueue(topic, "b1", 0)
            assert consumer.rebalancer.queues[message.queue].backlog == 7


@pytest.mark.scenario(36)
@pytest.mark.behaviour("PULL-16", "PULL-20")
@pytest.mark.parametrize("code", [ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND])
async def test_nothing_found_moves_the_offset_on_while_nothing_is_cached(
    cluster: Any, topic: str, quick: Timings, eventually: Any, code: int
) -> None:
    async with cluster.running("b1"):

        def answer(request: Any) -> Any:
            if request.ext["topic"] == topic and request.ext["queueOffset"] == "0":
                return cluster.pulled(request, code, next_offset=500)
            return None

        cluster.on(PULL, answer)
        async with consumer_of(cluster, topic, quick) as consumer:
            await eventually(lambda: len(pulls(cluster, topic)) == 2)
            first, second = pulls(cluster, topic)
            assert second.ext["queueOffset"] == "500"
            assert second.at - first.at < 0.05
            assert consumer.offset_store.memory(MessageQueue(topic, "b1", 0)) == 500


@pytest.mark.behaviour("PULL-20")
async def test_nothing_found_does_not_move_the_offset_past_cached_messages(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    hold = asyncio.Event()

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        await hold.wait()
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"):

        def answer(request: Any) -> Any:
            if request.ext["topic"] != topic:
                return None
            match request.ext["queueOffset"]:
                case "0":
                    return cluster.pulled(request, offsets=[0])
                case "1":
                    return cluster.pulled(request, ResponseCode.PULL_RETRY_IMMEDIATELY, next_offset=50)
            return None

        cluster.on(PULL, answer)
        async with consumer_of(cluster, topic, quick, listener=listener) as consumer:
            await eventually(lambda: len(pulls(cluster, topic)) == 3)
            assert consumer.offset_store.memory(MessageQueue(topic, "b1", 0)) is None
            hold.set()


@pytest.mark.scenario(37)
@pytest.mark.behaviour("PULL-21")
async def test_an_illegal_offset_is_repaired_and_the_queue_starts_anew_there(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    queue = MessageQueue(topic, "b1", 0)
    async with cluster.running("b1"):
        cluster.offsets[queue] = 9_000

        def answer(request: Any) -> Any:
            if request.ext["topic"] == topic and request.ext["queueOffset"] == "9000":
                return cluster.pulled(request, ResponseCode.PULL_OFFSET_MOVED, next_offset=50)
            return None

        cluster.on(PULL, answer)
        async with consumer_of(cluster, topic, quick) as consumer:
            await eventually(lambda: queue in consumer.rebalancer.queues)
            first = consumer.rebalancer.queues[queue]
            await eventually(lambda: first.dropped)
            assert cluster.offsets[queue] == 9_000
            await eventually(lambda: cluster.offsets[queue] == 50)
            await eventually(lambda: consumer.rebalancer.queues.get(queue) not in (first, None))
            await eventually(lambda: pulls(cluster, topic)[-1].ext["queueOffset"] == "50")
            waited = pulls(cluster, topic)[-1].at - pulls(cluster, topic)[0].at
            assert waited >= quick.offset_illegal_ms / 1000


@pytest.mark.behaviour("PULL-21", "PULL-22", "PULL-5", "PULL-6")
def test_the_default_times_are_those_of_the_protocol() -> None:
    timings = Timings()
    assert timings.offset_illegal_ms == 10_000
    assert timings.pull_error_ms == 3_000
    assert timings.pull_paused_ms == 1_000
    assert timings.flow_control_ms == 50
    assert timings.rebalance_interval_ms == 20_000
    assert timings.lock_interval_ms == 20_000


@pytest.mark.scenario(37)
async def test_a_listener_that_ends_late_does_not_move_a_repaired_offset(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    queue = MessageQueue(topic, "b1", 0)
    hold = asyncio.Event()

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        await hold.wait()
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"):

        def answer(request: Any) -> Any:
            if request.ext["topic"] != topic:
                return None
            match request.ext["queueOffset"]:
                case "0":
                    return cluster.pulled(request, offsets=[70])
                case "71":
                    return cluster.pulled(request, ResponseCode.PULL_OFFSET_MOVED, next_offset=20)
            return None

        cluster.on(PULL, answer)
        async with consumer_of(cluster, topic, quick, listener=listener) as consumer:
            await eventually(lambda: len(pulls(cluster, topic)) == 2)
            await eventually(lambda: consumer.offset_store.memory(queue) == 20)
            hold.set()
            await asyncio.sleep(0.05)
            assert cluster.offsets[queue] == 20


@pytest.mark.scenario(38)
@pytest.mark.behaviour("PULL-16", "PULL-22")
async def test_a_failed_pull_is_made_again_after_the_error_delay_and_a_busy_broker_sooner(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    answers = [ResponseCode.SYSTEM_ERROR, ResponseCode.FLOW_CONTROL]
    async with cluster.running("b1"):

        def answer(request: Any) -> Any:
            if request.ext["topic"] == topic and answers:
                return request.reply(answers.pop(0))
            return None

        cluster.on(PULL, answer)
        async with consumer_of(cluster, topic, quick):
            await eventually(lambda: len(pulls(cluster, topic)) == 3)
            first, second, third = pulls(cluster, topic)
            assert second.at - first.at >= quick.pull_error_ms / 1000
            assert 0.015 < third.at - second.at < quick.pull_error_ms / 1000


@pytest.mark.behaviour("PULL-22")
async def test_errors_of_retry_topics_are_quiet(
    cluster: Any, topic: str, quick: Timings, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.running("b1"):
        cluster.on(PULL, lambda request: request.reply(ResponseCode.SYSTEM_ERROR, remark="broken"))
        with caplog.at_level(logging.WARNING, "penstock.client"):
            async with consumer_of(cluster, topic, quick):
                await eventually(lambda: len(pulls(cluster, "%RETRY%g")) > 1)
                await eventually(lambda: len(pulls(cluster, topic)) > 1)
        assert f"pull of MessageQueue(topic='{topic}'" in caplog.text
        assert "pull of MessageQueue(topic='%RETRY%g'" not in caplog.text


@pytest.mark.scenario(39)
@pytest.mark.behaviour("PULL-3")
async def test_an_answer_that_comes_after_the_queue_was_given_up_is_not_consumed(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    got: list[Any] = []
    held: list[Any] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.extend(messages)
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"):
        cluster.on(PULL, lambda request: held.append(request) if request.ext["topic"] == topic else None)
        async with consumer_of(cluster, topic, quick, listener=listener) as consumer:
            await eventually(lambda: held)
            process_queue = consumer.rebalancer.queues[MessageQueue(topic, "b1", 0)]
            process_queue.dropped = True
            held[0].peer.send(cluster.pulled(held[0], offsets=[0]))
            await eventually(lambda: process_queue.stats.pull_rt.times)
            consumer.pull(PullRequest("g", MessageQueue(topic, "b1", 0), process_queue, 1))
            await asyncio.sleep(0.05)
            assert not process_queue.count
            assert "1" not in [request.ext["queueOffset"] for request in held]
            assert not got


async def test_messages_of_a_damaged_answer_come_again(
    cluster: Any, topic: str, quick: Timings, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The next pull has left before the damage is seen; its answer counts no more."""
    got: list[int] = []
    damaged: list[bytes] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.extend(message.queue_offset for message in messages)
        return ConsumeStatus.SUCCESS

    def answer(request: Any) -> bytes | None:
        offset = int(request.ext["queueOffset"])
        if request.ext["topic"] != topic or offset >= 6:
            return None
        frame: bytes = cluster.pulled(request, offsets=list(range(offset, min(offset + 3, 6))))
        if offset == 3 and not damaged:
            damaged.append(frame)
            return frame.replace(MAGIC_V1.to_bytes(4, "big"), bytes(4), 1)
        return frame

    async with cluster.running("b1"):
        cluster.on(PULL, answer)
        async with consumer_of(cluster, topic, quick, listener=listener) as consumer:
            await eventually(lambda: "started anew" in caplog.text)
            queue = MessageQueue(topic, "b1", 0)
            assert (consumer.offset_store.memory(queue) or 0) <= 3
            await eventually(lambda: consumer.offset_store.memory(queue) == 6)
    assert set(got) == set(range(6))
    assert "no message record" in caplog.text


@pytest.mark.behaviour("PULL-19")
async def test_offsets_that_go_backwards_are_warned_about(
    cluster: Any, topic: str, quick: Timings, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.running("b1"):
        cluster.offsets[MessageQueue(topic, "b1", 0)] = 10
        cluster.feed(topic, {10: [3, 4]})
        async with consumer_of(cluster, topic, quick):
            await eventually(lambda: "goes backwards" in caplog.text)
            assert "asked for offset 10, got 3, next is 5" in caplog.text


# ---- states and flow control --------------------------------------------------------------------------


@pytest.mark.behaviour("PULL-4", "PULL-5")
async def test_a_paused_consumer_looks_again_every_second_and_notes_the_time(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"), consumer_of(cluster, topic, quick) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        consumer.suspend()
        request = request_of(consumer, topic)
        request.process_queue.last_pull_ms = 0.0
        before = len(pulls(cluster, topic))
        consumer.pull(request)
        assert request.process_queue.last_pull_ms == pytest.approx(consumer.instance.now_ms(), abs=1_000)
        await asyncio.sleep(2.5 * quick.pull_paused_ms / 1000)
        assert len(pulls(cluster, topic)) == before
        await consumer.resume()
        await eventually(lambda: len(pulls(cluster, topic)) == before + 1, 1.0)


@pytest.mark.behaviour("PULL-5")
async def test_a_consumer_that_does_not_run_yet_pulls_again_after_the_error_delay(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"), consumer_of(cluster, topic, quick) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        delays: list[int] = []
        consumer._puller._service.put_later = lambda request, delay_ms: delays.append(delay_ms)  # type: ignore[method-assign]
        state, consumer._state = consumer._state, consumer._state.START_FAILED
        consumer.pull(request_of(consumer, topic))
        consumer._state = state
        assert delays == [quick.pull_error_ms]


def fill(request: PullRequest, make_message: Any, offsets: list[int]) -> None:
    request.process_queue.put([make_message(offset) for offset in offsets])


@pytest.mark.scenario(31)
@pytest.mark.behaviour("PULL-6")
async def test_more_than_1000_cached_messages_postpone_the_pull_and_warn_every_1000_times(
    cluster: Any,
    topic: str,
    quick: Timings,
    eventually: Any,
    make_message: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster.running("b1"), consumer_of(cluster, topic, quick) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        delays: list[int] = []
        consumer._puller._service.put_later = lambda request, delay_ms, **_: delays.append(delay_ms)  # type: ignore[method-assign]
        request, before = request_of(consumer, topic), len(pulls(cluster, topic))
        fill(request, make_message, list(range(1_000)))
        consumer.pull(request)
        assert not delays
        fill(request, make_message, [1_000])
        for _ in range(1_001):
            consumer.pull(request)
        assert delays == [quick.flow_control_ms] * 1_001
        assert caplog.text.count("messages cached") == 2
        await asyncio.sleep(0.02)
        assert len(pulls(cluster, topic)) == before + 1
        request.process_queue.clear()


async def test_a_pull_that_was_held_back_goes_on_once_half_of_the_cache_is_consumed(
    cluster: Any, topic: str, quick: Timings, eventually: Any, make_message: Any
) -> None:
    slow = dataclasses.replace(quick, flow_control_ms=60_000)
    async with cluster.running("b1"), consumer_of(cluster, topic, slow) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        request, before = request_of(consumer, topic), len(pulls(cluster, topic))
        messages = [make_message(offset) for offset in range(1_001)]
        request.process_queue.put(messages)
        consumer.pull(request)
        request.process_queue.remove(messages[:500], 0)
        await asyncio.sleep(0.02)
        assert len(pulls(cluster, topic)) == before
        request.process_queue.remove(messages[500:502], 0)
        request.process_queue.remove(messages[502:], 0)
        await eventually(lambda: len(pulls(cluster, topic)) == before + 1)
        await asyncio.sleep(0.02)
        assert len(pulls(cluster, topic)) == before + 1  # once, also after the timer's time


@pytest.mark.behaviour("PULL-7")
async def test_more_than_100_mib_cached_postpone_the_pull(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"), consumer_of(cluster, topic, quick) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        request, before = request_of(consumer, topic), len(pulls(cluster, topic))
        request.process_queue.cached_bytes = 101 << 20
        consumer.pull(request)
        await asyncio.sleep(0.03)
        assert len(pulls(cluster, topic)) == before
        request.process_queue.cached_bytes = 100 << 20
        await eventually(lambda: len(pulls(cluster, topic)) == before + 1)


@pytest.mark.scenario(32)
@pytest.mark.behaviour("PULL-8")
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_span_over_2000_offsets_postpones_the_pull_unless_consumption_is_orderly(
    cluster: Any, topic: str, quick: Timings, eventually: Any, make_message: Any, orderly: bool
) -> None:
    async with cluster.running("b1"), consumer_of(cluster, topic, quick, orderly=orderly) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        request, before = request_of(consumer, topic), len(pulls(cluster, topic))
        request.previously_locked = True
        fill(request, make_message, [10, 2_011])
        consumer.pull(request)
        await asyncio.sleep(0.03)
        assert len(pulls(cluster, topic)) == before + (1 if orderly else 0)
        request.process_queue.clear()


@pytest.mark.scenario(28)
async def test_a_threshold_for_the_topic_is_shared_by_the_queues(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    cluster.queues = 3
    async with (
        cluster.running("b1"),
        consumer_of(
            cluster, topic, quick, pull_threshold_messages_topic=1_000, pull_threshold_mib_topic=8
        ) as consumer,
    ):
        await eventually(lambda: len(consumer.rebalancer.queues) == 4)  # with the retry topic's
        await eventually(lambda: consumer._puller.threshold_messages == 250)
        assert consumer._puller.threshold_mib == 2


@pytest.mark.behaviour("PULL-10")
async def test_without_a_subscription_the_pull_waits(
    cluster: Any, topic: str, quick: Timings, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.running("b1"), consumer_of(cluster, topic, quick) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        request, before = request_of(consumer, topic), len(pulls(cluster, topic))
        data = consumer.subscription(topic)
        assert isinstance(data, SubscriptionData)
        consumer._subscriptions.discard(topic)
        consumer.pull(request)
        assert "no subscription for topic" in caplog.text
        consumer._subscriptions.put(data)
        await asyncio.sleep(0.5 * quick.pull_error_ms / 1000)
        assert len(pulls(cluster, topic)) == before
        await eventually(lambda: len(pulls(cluster, topic)) == before + 1)


# ---- the pull service ---------------------------------------------------------------------------------


@pytest.mark.behaviour("PULL-1")
async def test_the_pull_service_survives_an_error_and_puts_the_request_back(
    cluster: Any, topic: str, quick: Timings, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.running("b1"), consumer_of(cluster, topic, quick) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        before = len(pulls(cluster, topic))
        real, broken = consumer._puller.pull, [True]

        def pull(request: PullRequest) -> None:
            if broken:
                broken.clear()
                raise RuntimeError("a bug")
            real(request)

        consumer._puller.pull = pull  # type: ignore[method-assign]
        consumer.instance.pull_service.put(request_of(consumer, topic))
        await eventually(lambda: len(pulls(cluster, topic)) > before)
        assert "a bug" in caplog.text


@pytest.mark.behaviour("PULL-1")
async def test_after_the_stop_no_pull_request_is_taken_any_more(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"):
        async with consumer_of(cluster, topic, quick) as consumer:
            await eventually(lambda: pulls(cluster, topic))
            request = request_of(consumer, topic)
        before = len(pulls(cluster, topic))
        consumer.instance.pull_service.put(request)
        consumer.instance.pull_service.put_later(request, 1)
        await asyncio.sleep(0.05)
        assert len(pulls(cluster, topic)) == before


@pytest.mark.behaviour("PULL-2")
async def test_a_request_of_a_group_that_is_not_here_is_dropped_with_a_warning(
    cluster: Any, topic: str, quick: Timings, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.running("b1"), consumer_of(cluster, topic, quick) as consumer:
        await eventually(lambda: pulls(cluster, topic))
        request = request_of(consumer, topic)
        request.group = "stranger"
        consumer.instance.pull_service.put(request)
        await eventually(lambda: "no consumer for group stranger" in caplog.text)


@pytest.mark.behaviour("PULL-11")
async def test_broadcasting_commits_nothing_with_its_pulls(
    cluster: Any, topic: str, quick: Timings, eventually: Any, tmp_path: Any
) -> None:
    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0]})
        async with consumer_of(
            cluster, topic, quick, message_model=MessageModel.BROADCASTING, local_offset_dir=str(tmp_path)
        ) as consumer:
            await eventually(lambda: consumer.offset_store.memory(MessageQueue(topic, "b1", 0)) == 1)
            consumer.pull(request_of(consumer, topic))
            await eventually(lambda: len(pulls(cluster, topic)) > 2)
            assert {request.ext["commitOffset"] for request in pulls(cluster, topic)} == {"0"}
            assert not int(pulls(cluster, topic)[-1].ext["sysFlag"]) & PullFlag.COMMIT_OFFSET
