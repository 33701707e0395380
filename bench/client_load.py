"""Our client under the load of bench/client.py, in a process of its own; prints its figures as JSON.

python bench/client_load.py NAME_SERVER FILLED_TOPIC MESSAGES SECONDS
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from penstock import ConsumeFrom, ConsumeStatus, Message, Producer, PushConsumer
from penstock.client.stats import Counter
from penstock.transport.loop import loop_factory

BODY = b"x" * 128
IN_FLIGHT = 256
MANY = 20_000
ONEWAY = 2_000
LATENCY_RATE = 200

_groups = itertools.count()
figures: dict[str, float] = {}


@contextlib.asynccontextmanager
async def measured(name: str) -> AsyncIterator[Callable[[int], None]]:
    """Notes the rate and this process's CPU time of what is done inside."""
    count = 0

    def add(messages: int) -> None:
        nonlocal count
        count += messages

    cpu, began = time.process_time(), time.perf_counter()
    yield add
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    figures[f"{name} msgs/s"] = count / seconds
    figures[f"{name} cpu µs/msg"] = spent / count * 1e6
    print(f"   {name}: {count / seconds:,.0f} msgs/s, {spent / count * 1e6:.1f} µs", file=sys.stderr)


async def until(condition: Callable[[], bool], seconds: float) -> None:
    while not condition():  # noqa: ASYNC110, the client's counters tell nobody of a change
        await asyncio.sleep(seconds)


async def counted(counter: Counter, value: float) -> None:
    await until(lambda: counter.value >= value, 0.002)


def message() -> Message:
    return Message("ClientBench", BODY, tag="TagA")


async def for_seconds(seconds: float, step: Callable[[], Awaitable[int]], add: Callable[[int], None]) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        add(await step())


async def sends(name_server: str, seconds: float) -> None:
    async with Producer(name_server, group="ours", send_timeout_ms=30_000) as producer:

        async def one() -> int:
            await producer.send(message())
            return 1

        async def many() -> int:
            return len(await producer.send_many([message() for _ in range(MANY)]))

        async def oneway() -> int:
            for _ in range(ONEWAY):
                await producer.send_oneway(message())
            return ONEWAY + await one()  # the broker has read what was sent before

        async def pipelined(duration: float, add: Callable[[int], None]) -> None:
            await asyncio.gather(*(for_seconds(duration, one, add) for _ in range(IN_FLIGHT)))

        await for_seconds(seconds / 4, one, lambda _: None)
        async with measured("send one by one") as add:
            await for_seconds(seconds, one, add)
        await pipelined(seconds / 4, lambda _: None)
        async with measured(f"send, {IN_FLIGHT} in flight") as add:
            await pipelined(seconds, add)
        await many()
        async with measured("send many") as add:
            await for_seconds(seconds, many, add)
        async with measured("send oneway") as add:
            await for_seconds(seconds, oneway, add)


def no_op(messages: Sequence[Message], context: object) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


async def async_no_op(messages: Sequence[Message], context: object) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


async def consume(
    name_server: str, topic: str, count: int, batch: int, listener: Callable[..., object]
) -> None:
    """A new group from the first offset on, until all is consumed; once to warm up, once to measure."""
    for name in ("warm-up", f"consume, batch {batch}{', coroutine' if listener is async_no_op else ''}"):
        consumer = PushConsumer(
            name_server,
            group=f"ours-{time.time_ns()}-{next(_groups)}",
            listener=listener,  # type: ignore[arg-type]
            subscribe={topic: "*"},
            consume_batch=batch,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        )
        async with consumer:
            consumed = consumer.stats.topic(topic).consume_ok
            await counted(consumed, 1)
            async with measured(name) as add:
                before = consumed.value
                await counted(consumed, count)
                add(int(consumed.value - before))
    figures.pop("warm-up msgs/s")
    figures.pop("warm-up cpu µs/msg")


async def latency(name_server: str, seconds: float) -> None:
    """From just before the send to the listener, at a rate that leaves everybody time."""
    seen: list[float] = []
    topic = "ClientLatency"
    consumer = PushConsumer(name_server, group=f"latency-{time.time_ns()}")

    @consumer.on(topic)
    def note(received: Message) -> None:
        seen.append(time.perf_counter() - float(received.body))

    async with Producer(name_server, group="ours") as producer:
        await producer.send(Message(topic, b"0"))
        async with consumer:
            await until(lambda: bool(consumer.rebalancer.queues), 0.01)
            await asyncio.sleep(1.5)
            seen.clear()
            count = int(seconds * LATENCY_RATE)
            for _ in range(count):
                await producer.send(Message(topic, repr(time.perf_counter()).encode()))
                await asyncio.sleep(1 / LATENCY_RATE)
            await until(lambda: len(seen) >= count, 0.01)
    seen.sort()
    figures["end to end p50 ms"] = seen[len(seen) // 2] * 1000
    figures["end to end p99 ms"] = seen[int(len(seen) * 0.99)] * 1000


async def main(name_server: str, topic: str, count: int, seconds: float) -> None:
    await latency(name_server, seconds)
    await sends(name_server, seconds)
    for batch in (1, 32):
        for listener in (no_op, async_no_op):
            await consume(name_server, topic, count, batch, listener)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
    print(json.dumps(figures))
