"""Brokers that restart and die, name servers that cannot be reached: nothing is lost."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import pytest

from penstock import ConsumeFrom, ConsumeStatus, Message, MessageQueue, Producer, PushConsumer, SendError
from penstock.client.config import Timings
from penstock.errors import NoNameServer
from penstock.testing import RunningBroker, broker
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


async def test_a_stuck_listener_keeps_the_cache_within_its_bounds_and_loses_nothing(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    release = threading.Event()
    seen: set[bytes] = set()

    def stuck(messages: Any, context: Any) -> ConsumeStatus:
        release.wait(60)
        seen.update(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    consumer = PushConsumer(
        server.name_server,
        group=group,
        listener=stuck,
        subscribe={topic: "*"},
        consume_from=ConsumeFrom.FIRST_OFFSET,
        consume_threads=2,
        timings=quick,
    )
    bodies = {b"%d" % number for number in range(6_000)}
    async with Producer(server.name_server, send_timeout_ms=30_000) as producer:
        await producer.send_many(Message(topic, body) for body in sorted(bodies))
    bound = consumer.settings.pull_threshold_messages + consumer.settings.pull_batch
    async with consumer:

        def cached() -> list[int]:
            return [
                process_queue.count
                for queue, process_queue in consumer.rebalancer.queues.items()
                if queue.topic == topic
            ]

        await eventually(lambda: len(cached()) == 4 and min(cached()) > 1_000, 30.0)
        for _ in range(20):  # many times the pause of flow control
            await asyncio.sleep(quick.flow_control_ms / 1000)
            assert max(cached()) <= bound
        assert consumer.consume_service.pool.outstanding <= 4 * bound
        release.set()
        await eventually(lambda: seen == bodies, 30.0)


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
async def test_a_jump_of_the_wall_clock_disturbs_nobody(
    server: RunningBroker,
    topic: str,
    group: str,
    quick: Timings,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
    jump_s: int,
) -> None:
    seen: list[int] = []
    ids: set[str] = set()
    consumer = PushConsumer(
        server.name_server, group=group, consume_from=ConsumeFrom.FIRST_OFFSET, timings=quick
    )

    @consumer.on(topic)
    async def note(message: Any) -> None:
        seen.append(int(message.body))

    true_time, true_ns = time.time, time.time_ns
    async with Producer(server.name_server) as producer, consumer:
        for number in range(40):
            if number == 20:
                monkeypatch.setattr(time, "time", lambda: true_time() + jump_s)
                monkeypatch.setattr(time, "time_ns", lambda: true_ns() + jump_s * 10**9)
            ids.add((await producer.send(Message(topic, b"%d" % number))).message_id)
        await eventually(lambda: len(seen) >= 40)
    assert sorted(seen) == list(range(40))
    assert len(ids) == 40


SECOND_PROCESS = """
import os, sys
from penstock import ConsumeFrom, sync
name_server, topic, group = sys.argv[1:]
first = ConsumeFrom.FIRST_OFFSET
consumer = sync.PushConsumer(
    name_server, group=group, instance_name="twin", client_ip="10.9.8.7", consume_from=first
)
@consumer.on(topic)
def note(message):
    os.write(1, message.body + b"\\n")  # one call: lines of several threads must not mix
with consumer:
    print("ready", flush=True)
    sys.stdin.read()
"""


async def test_two_processes_with_one_client_id_both_consume_and_nothing_is_lost(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    """The broker takes them for one consumer, so each takes all queues: twice, not never."""
    here: set[int] = set()
    consumer = PushConsumer(
        server.name_server,
        group=group,
        instance_name="twin",
        client_ip="10.9.8.7",
        consume_from=ConsumeFrom.FIRST_OFFSET,
        timings=quick,
    )

    @consumer.on(topic)
    async def note(message: Any) -> None:
        here.add(int(message.body))

    async with Producer(server.name_server) as producer, consumer:
        await producer.send(Message(topic, b"0"))
        twin = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            SECOND_PROCESS,
            server.name_server,
            topic,
            group,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        stdout = twin.stdout
        assert stdout is not None
        assert await stdout.readline() == b"ready\n"
        there: set[int] = set()

        async def read() -> None:
            async for line in stdout:
                there.add(int(line))

        reading = asyncio.create_task(read())
        for number in range(1, 101):
            await producer.send(Message(topic, b"%d" % number))
        await eventually(lambda: here | there == set(range(101)), 60.0)
        assert twin.stdin is not None
        twin.stdin.close()
        await reading
        await twin.wait()
    assert twin.returncode == 0


async def test_different_subscriptions_in_one_group_never_show_a_listener_what_it_did_not_ask_for(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    """The broker keeps the last subscription of a group, so what a member gets is not all that it wants; but
    nothing else, no error, and the members go on."""
    seen: dict[str, list[str]] = {"a": [], "b": []}
    members = []
    for tag in seen:
        member = PushConsumer(
            server.name_server, group=group, consume_from=ConsumeFrom.FIRST_OFFSET, timings=quick
        )

        async def note(message: Any, tag: str = tag) -> None:
            seen[tag].append(message.tag)

        member.on(topic, tags=tag)(note)
        members.append(member)
    async with Producer(server.name_server) as producer, members[0], members[1]:
        for number in range(80):
            await producer.send(Message(topic, b"%d" % number, tag="ab"[number % 2]))
        await eventually(lambda: seen["a"] or seen["b"])
        await asyncio.sleep(0.5)
        assert all(member.running for member in members)
    assert set(seen["a"]) <= {"a"}
    assert set(seen["b"]) <= {"b"}
