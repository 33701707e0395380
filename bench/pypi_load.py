"""The PyPI client rocketmq-python-client under the load of bench/client.py; prints its figures as JSON.

Run by bench/pypi.py in a virtualenv of its own: PROXY FILLED_TOPIC GROUP SECONDS
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)

BODY = b"x" * 128
IN_FLIGHT = 256
TOPIC = "ClientBench"

figures: dict[str, float] = {}


@contextlib.contextmanager
def measured(name: str) -> Iterator[Callable[[int], None]]:
    """Notes the rate and this process's CPU time of what is done inside."""
    count = 0

    def add(messages: int) -> None:
        nonlocal count
        count += messages

    cpu, began = time.process_time(), time.perf_counter()
    yield add
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    if not count:
        raise RuntimeError(f"{name}: nothing came through")
    figures[f"{name} msgs/s"] = count / seconds
    figures[f"{name} cpu µs/msg"] = spent / count * 1e6
    print(f"   {name}: {count / seconds:,.0f} msgs/s, {spent / count * 1e6:.1f} µs", file=sys.stderr)


def message() -> Message:
    made = Message()
    made.topic, made.body, made.tag = TOPIC, BODY, "TagA"
    return made


def sends(configuration: ClientConfiguration, seconds: float) -> None:
    producer = Producer(configuration, (TOPIC,))
    producer.startup()

    def one_by_one(duration: float, add: Callable[[int], None]) -> None:
        end = time.perf_counter() + duration
        while time.perf_counter() < end:
            producer.send(message())
            add(1)

    def pipelined(duration: float, add: Callable[[int], None]) -> None:
        places = threading.Semaphore(IN_FLIGHT)
        failed: list[BaseException] = []

        def answered(future: Future[object]) -> None:
            if error := future.exception():
                failed.append(error)
            places.release()

        end = time.perf_counter() + duration
        while time.perf_counter() < end:
            places.acquire()
            producer.send_async(message()).add_done_callback(answered)
            add(1)
        for _ in range(IN_FLIGHT):
            places.acquire()
        if failed:
            raise failed[0]

    pipelined(2 * seconds, lambda _: None)  # the proxy's JVM is new, and slow for a while
    with measured("send one by one") as add:
        one_by_one(seconds, add)
    with measured(f"send, {IN_FLIGHT} in flight") as add:
        pipelined(seconds, add)
    producer.shutdown()


class Count(MessageListener):  # type: ignore[misc]
    """Its listeners get one message each, whatever is received at once."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        with self._lock:
            self.count += 1
        return ConsumeResult.SUCCESS


def consume(configuration: ClientConfiguration, topic: str, group: str, seconds: float) -> None:
    """For a time, not until everything is consumed: that would take too long."""
    listener = Count()
    consumer = PushConsumer(configuration, group, listener, {topic: FilterExpression("*")})
    consumer.startup()
    deadline = time.monotonic() + 60
    while not listener.count:
        if time.monotonic() > deadline:
            raise RuntimeError("nothing consumed in 60 s")
        time.sleep(0.01)
    time.sleep(seconds)
    with measured("consume, batch 1") as add:
        before = listener.count
        time.sleep(seconds)
        add(listener.count - before)
    consumer.shutdown()


if __name__ == "__main__":
    chosen = ClientConfiguration(sys.argv[1], Credentials(), "", 30)
    sends(chosen, float(sys.argv[4]))
    consume(chosen, sys.argv[2], sys.argv[3], float(sys.argv[4]))
    print(json.dumps(figures), flush=True)
