"""Brokers that restart and die, name servers that cannot be reached: nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import ConsumeFrom, ConsumeStatus, Message, MessageQueue, Producer, PushConsumer, SendError
from penstock.client.config import Timings
from penstock.errors import NoNameServer
from penstock.testing import broker
from penstock.wire.codes import RequestCode


@pytest.mark.behaviour("RPC-1")
async def test_producer_and_consumer_go_on_after_the_broker_was_restarted(
    topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    got: set[int] = set()

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.update(int(message.body) for message in messages)
        return ConsumeStatus.SUCCESS

    async with broker(flush="sync") as running:
        options: dict[str, Any] = {"timings": quick, "route_interval_ms": 200, "heartbeat_interval_ms": 200}
        consumer = PushConsumer(
            running.name_server,
            group=group,
            listener=listener,
            subscribe={topic: "*"},
            consume_from=ConsumeFrom.FIRST_OFFSET,
            **options,
        )
        async with Producer(running.name_server, **options) as producer, consumer:
            sent: set[int] = set()

            async def send(numbers: range) -> None:
                for number in numbers:
                    for _ in range(200):
                        try:
                            await producer.send(Message(topic, b"%d" % number))
                        except (SendError, NoNameServer):
                            await asyncio.sleep(0.05)
                        else:
                            sent.add(number)
                            break

            await send(range(20))
            await eventually(lambda: len(got) >= 10)
            await asyncio.to_thread(running.restart)
            await send(range(20, 40))
            await asyncio.to_thread(running.kill)
            await asyncio.to_thread(running.start)
            await send(range(40, 60))
            assert len(sent) == 60
            await eventually(lambda: got == set(range(60)), 20.0)


async def test_a_consumer_starts_before_its_topic_exists(
    topic: str, group: str, quick: Timings, eventually: Any, server: Any
) -> None:
    got: list[bytes] = []
    consumer = PushConsumer(
        server.name_server,
        group=group,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        timings=quick,
        route_interval_ms=100,
    )

    @consumer.on(topic)
    def note(message: Any) -> None:
        got.append(message.body)

    async with consumer, Producer(server.name_server) as producer:
        await asyncio.sleep(0.1)
        await producer.send(Message(topic, b"first"))
        await eventually(lambda: got == [b"first"])


async def test_reads_go_on_from_the_slave_when_the_master_is_gone(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    got: list[int] = []

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.extend(message.queue_offset for message in messages)
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1", replicas={"b1": [1]}):

        def answer(request: Any) -> Any:
            start = int(request.ext["queueOffset"])
            if request.ext["topic"] != topic or (start, request.broker) not in ((0, "b1"), (2, "b1-1")):
                return None
            return cluster.pulled(request, offsets=[start, start + 1])

        cluster.on(RequestCode.PULL_MESSAGE, answer)
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=listener,
            subscribe={topic: "*"},
            consume_from=ConsumeFrom.FIRST_OFFSET,
            route_interval_ms=50,
            timings=quick,
        )
        async with consumer:
            await eventually(lambda: got == [0, 1])
            del cluster.broker_addrs["b1"][0]
            await cluster.servers["b1"].server.close(0)
            await eventually(lambda: got == [0, 1, 2, 3])
            # Progress goes to the replica while there is no master.
            await consumer.persist_offsets()
            await eventually(lambda: cluster.offsets.get(MessageQueue(topic, "b1", 0)) == 4)


async def test_a_dead_peer_that_accepts_connections_is_given_up_after_a_time_out(
    cluster: Any, topic: str
) -> None:
    async with cluster.running("b1"), Producer(cluster.name_server, topics=[topic]) as producer:
        silent = [True]
        cluster.on(RequestCode.SEND_MESSAGE_V2, lambda r: None if silent else cluster.stored(r))
        address = cluster.servers["b1"].address
        channel = producer.instance.remoting.ready(address)
        with pytest.raises(SendError):
            await producer.send(Message(topic, b"x"), timeout_ms=100)
        assert channel is not None
        assert channel.closed
        silent.clear()
        await producer.send(Message(topic, b"x"))
