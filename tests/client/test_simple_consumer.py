"""The simple consumer: receive under a lease, then ack, extend or nack."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from penstock import ConsumeFrom, LeaseLost, Message, Producer, SimpleConsumer, sync
from penstock.admin import AdminClient, TopicSettings
from penstock.errors import InvalidArgument, RemotingError, WrongState
from penstock.testing import RunningBroker, broker
from penstock.wire.codes import RequestCode

FIRST = ConsumeFrom.FIRST_OFFSET


class Wiretap:
    def __init__(self) -> None:
        self.codes: list[int] = []

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
        self.codes.append(code)

    def after_response(self, address: str, code: int, ext: dict[str, str], response: Any) -> None:
        return


async def put(server: RunningBroker, topic: str, *bodies: bytes, **options: Any) -> None:
    async with Producer(server.name_server) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **options))


@pytest.fixture
def simple(server: RunningBroker, topic: str, group: str) -> Any:
    def make(**options: Any) -> SimpleConsumer:
        return SimpleConsumer(
            server.name_server,
            **{"group": group, "subscribe": {topic: "*"}, "consume_from": FIRST, **options},
        )

    return make


async def test_what_is_acked_is_gone_and_what_is_not_comes_again(
    server: RunningBroker, topic: str, simple: Any
) -> None:
    await put(server, topic, b"1", b"2", b"3")
    async with simple() as consumer:
        got: dict[bytes, Any] = {}
        while len(got) < 3:
            got.update({message.body: message for message in await consumer.receive(invisible_ms=1_500)})
        assert {message.topic for message in got.values()} == {topic}
        assert {message.reconsume_times for message in got.values()} == {0}
        await consumer.ack(got[b"1"])
        await consumer.ack(got[b"3"])
        began = time.monotonic()
        (again,) = await consumer.receive(wait_ms=5_000)
        assert time.monotonic() - began > 0.1
        assert (again.body, again.reconsume_times, again.topic) == (b"2", 1, topic)
        await consumer.ack(again)
        assert await consumer.receive(wait_ms=300) == []


async def test_many_are_acked_with_one_request(
    server: RunningBroker, topic: str, simple: Any, nothing_left: Any
) -> None:
    await put(server, topic, *(b"%d" % number for number in range(40)))
    tap = Wiretap()
    async with simple(rpc_hooks=[tap]) as consumer:
        received: list[Any] = []
        while len(received) < 40:
            received += await consumer.receive(max_messages=40)
        await consumer.ack_many(received)
        await nothing_left()
    assert tap.codes.count(RequestCode.BATCH_ACK_MESSAGE) == 1
    assert tap.codes.count(RequestCode.ACK_MESSAGE) == 0


async def test_a_receive_waits_for_the_first_message(server: RunningBroker, topic: str, simple: Any) -> None:
    await put(server, topic, b"first")
    async with simple() as consumer:
        (first,) = await consumer.receive()
        await consumer.ack(first)
        waiting = asyncio.create_task(consumer.receive(wait_ms=10_000))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await put(server, topic, b"second")
        sent = time.monotonic()
        (second,) = await waiting
        assert time.monotonic() - sent < 1.0
        assert second.body == b"second"
        began = time.monotonic()
        assert await consumer.receive(wait_ms=400) == []
        assert 0.3 < time.monotonic() - began < 2.0


async def test_a_receive_that_is_given_up_holds_no_message_back(
    server: RunningBroker, topic: str, simple: Any
) -> None:
    await put(server, topic, b"first")
    async with simple() as consumer, simple(instance_name="other") as other:
        (first,) = await consumer.receive()
        await consumer.ack(first)
        waiting = asyncio.create_task(consumer.receive(wait_ms=10_000))
        await asyncio.sleep(0.2)
        waiting.cancel()
        await put(server, topic, b"second")
        (second,) = await other.receive(wait_ms=2_000)
        assert (second.body, second.reconsume_times) == (b"second", 0)


async def test_extend_keeps_a_message_and_nack_gives_it_back(
    server: RunningBroker, topic: str, simple: Any
) -> None:
    await put(server, topic, b"x")
    async with simple() as consumer:
        (message,) = await consumer.receive(invisible_ms=1_500)
        handle = message.receipt_handle
        await consumer.extend(message, 60_000)
        assert message.receipt_handle != handle
        assert message.properties["POP_CK"] == message.receipt_handle
        assert await consumer.receive(wait_ms=1_900) == []
        await consumer.nack(message, delay_ms=200)
        (again,) = await consumer.receive(wait_ms=5_000)
        assert again.reconsume_times == 1
        await consumer.nack(again)
        (third,) = await consumer.receive(wait_ms=5_000)
        assert third.reconsume_times == 2
        await consumer.ack(third)


async def test_a_lost_lease_is_an_error_that_says_so(server: RunningBroker, topic: str, simple: Any) -> None:
    await put(server, topic, b"1", b"2")
    async with simple() as consumer:
        received: list[Any] = []
        while len(received) < 2:
            received += await consumer.receive(max_messages=1, invisible_ms=300 if not received else 60_000)
        short, long = received
        await asyncio.sleep(0.4)
        for attempt in (consumer.ack(short), consumer.extend(short, 1_000), consumer.nack(short)):
            with pytest.raises(LeaseLost, match=r"the lease of message .* is lost"):
                await attempt
        with pytest.raises(LeaseLost) as caught:
            await consumer.ack_many([short, long])
        assert caught.value.messages == [short]
        with pytest.raises(LeaseLost):  # acked by the call before
            await consumer.extend(long, 1_000)
        (again,) = await consumer.receive(wait_ms=5_000)
        assert again.body == short.body


async def test_a_lease_that_only_the_broker_knows_to_be_over_is_lost_as_well(topic: str, group: str) -> None:
    async with broker(flush="async") as server:
        await put(server, topic, b"x")
        consumer = SimpleConsumer(server.name_server, group=group, subscribe={topic: "*"}, consume_from=FIRST)
        async with consumer:
            (message,) = await consumer.receive(invisible_ms=60_000)
            async with AdminClient(server.name_server) as admin:
                await admin.reset_offset(group, topic, 0)
            with pytest.raises(LeaseLost):
                await consumer.extend(message, 1_000)


async def test_tags_choose_and_several_topics_are_received_together(
    server: RunningBroker, topic: str, group: str
) -> None:
    other = f"{topic}-other"
    await put(server, topic, b"1", tag="paid")
    await put(server, topic, b"2", tag="lost")
    await put(server, other, b"3")
    consumer = SimpleConsumer(
        server.name_server, group=group, subscribe={topic: "paid", other: "*"}, consume_from=FIRST
    )
    async with consumer:
        got: dict[bytes, str] = {}
        while len(got) < 2:
            for message in await consumer.receive():
                got[message.body] = message.topic
                await consumer.ack(message)
        assert got == {b"1": topic, b"3": other}
        assert await consumer.receive(wait_ms=200) == []


async def test_all_brokers_are_received_from_at_once(topic: str, group: str, start: Any) -> None:
    running = start("serve", "--shards", "2")
    async with AdminClient(running.name_server) as admin:
        await admin.create_topic(topic, TopicSettings(read_queues=1, write_queues=1))
    async with Producer(running.name_server) as producer:
        queues = await producer.queues(topic)
        assert len({queue.broker_name for queue in queues}) == 2
        for queue in queues:
            await producer.send(Message(topic, queue.broker_name.encode()), queue=queue)
        consumer = SimpleConsumer(
            running.name_server, group=group, subscribe={topic: "*"}, consume_from=FIRST
        )
        async with consumer:
            (first, second) = await consumer.receive(max_messages=2)
            assert {first.body, second.body} == {queue.broker_name.encode() for queue in queues}
            await consumer.ack_many([first, second])
            for queue in queues:  # whichever broker it comes from, a waiting receive gets it at once
                waiting = asyncio.create_task(consumer.receive(wait_ms=10_000))
                await asyncio.sleep(0.2)
                await producer.send(Message(topic, b"late"), queue=queue)
                sent = time.monotonic()
                (late,) = await waiting
                assert time.monotonic() - sent < 1.0
                assert late.broker_name == queue.broker_name
                await consumer.ack(late)


async def test_bad_arguments_and_wrong_states_are_refused(
    server: RunningBroker, topic: str, group: str, simple: Any
) -> None:
    with pytest.raises(InvalidArgument, match="nothing to receive"):
        await SimpleConsumer(server.name_server, group=group).start()
    with pytest.raises(InvalidArgument, match="invisible_ms"):
        simple(invisible_ms=0)
    consumer = simple()
    with pytest.raises(WrongState, match="not running"):
        await consumer.receive()
    await put(server, topic, b"x")
    async with consumer:
        for bad in (0, 1_025, "all"):
            with pytest.raises(InvalidArgument, match="max_messages"):
                await consumer.receive(max_messages=bad)
        with pytest.raises(InvalidArgument, match="from 1 to 259200000"):
            await consumer.receive(invisible_ms=0)
        with pytest.raises(InvalidArgument, match=r"only what receive\(\) gave"):
            await consumer.ack(Message(topic, b"mine"))


async def test_a_broker_that_is_gone_is_an_error_and_one_that_comes_back_is_used_again(
    topic: str, group: str
) -> None:
    async with broker() as server:
        await put(server, topic, b"1")
        consumer = SimpleConsumer(server.name_server, group=group, subscribe={topic: "*"}, consume_from=FIRST)
        async with consumer:
            (message,) = await consumer.receive(invisible_ms=60_000)
            await asyncio.to_thread(server.kill)
            with pytest.raises(RemotingError):
                await consumer.receive(wait_ms=300)
            with pytest.raises(RemotingError):
                await consumer.ack(message)
            await asyncio.to_thread(server.start)
            await asyncio.sleep(0.3)  # the pause after a refused connection
            await consumer.ack(message)
            await put(server, topic, b"2")
            (second,) = await consumer.receive()
            assert second.body == b"2"


def test_the_same_without_await(server: RunningBroker, topic: str, group: str) -> None:
    with sync.Producer(server.name_server) as producer:
        for body in (b"1", b"2", b"3"):
            producer.send(Message(topic, body))
    with sync.SimpleConsumer(
        server.name_server, group=group, subscribe={topic: "*"}, consume_from=FIRST
    ) as consumer:
        received: list[Any] = []
        while len(received) < 3:
            received += consumer.receive(invisible_ms=60_000)
        consumer.ack(received[0])
        consumer.extend(received[1], 30_000)
        consumer.ack_many(received[1:2])
        consumer.nack(received[2])
        (again,) = consumer.receive(wait_ms=5_000)
        assert again.body == received[2].body
        consumer.ack(again)
        with pytest.raises(LeaseLost):
            consumer.ack(again)
