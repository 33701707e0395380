"""Interop tests start real JVMs, so they run only when asked for: make interop.

The tests of clients and tools run against `penstock serve`. With --server=apache the same tests run against
the real broker instead, which shows that they ask for nothing that Apache itself does not give.
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConsumeContext,
    ConsumeFrom,
    ConsumeStatus,
    OrderlyContext,
    OrderlyStatus,
    PushConsumer,
    ReceivedMessage,
    sync,
)

sys.path.insert(0, str(Path(__file__).parent))
import apache


@dataclass
class Target:
    """The servers under test."""

    name_server: str
    broker: str
    broker_name: str
    cluster: str = "DefaultCluster"


@pytest.fixture(scope="session")
def java() -> Iterator[apache.JavaClient]:
    client = apache.JavaClient()
    yield client
    client.close()


class Serve:
    """`penstock serve` as a child process, as a user starts it."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data, self.options = data, options
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        ready = self.data.parent / f"{self.data.name}.ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "penstock.cli", "serve", "--data", self.data, "--ready-file", ready]
        ports = ["--host", "127.0.0.1", "--namesrv-port", "0", "--broker-port", "0"]
        self.process = subprocess.Popen([*map(str, command), *ports, *self.options])
        deadline = time.monotonic() + 20
        while not ready.exists():
            assert self.process.poll() is None, "penstock serve ended"
            assert time.monotonic() < deadline, "penstock serve is not ready after 20 s"
            time.sleep(0.02)
        facts = json.loads(ready.read_text())
        self.name_server: str = facts["name_server"]
        self.broker: str = facts["brokers"][0]["address"]
        self.broker_name: str = facts["brokers"][0]["name"]

    @property
    def store_dir(self) -> Path:
        return self.data

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def apache_server() -> Iterator[Target]:
    name = "room1@theirs"  # where one strategy of allocation looks for the machine room
    with apache.cluster(broker_name=name) as cluster:
        yield Target(cluster.name_server, cluster.brokers[0].address, name)


@pytest.fixture(scope="session")
def penstock_server() -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix="penstock-") as place:
        serve = Serve(Path(place) / "data", "--set", "brokerName=room1@ours")
        yield Target(serve.name_server, serve.broker, serve.broker_name)
        assert serve.stop() == 0


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Target:
    target: Target = request.getfixturevalue(f"{request.config.getoption('--server')}_server")
    return target


@pytest.fixture
def start_serve() -> Iterator[Callable[..., Serve]]:
    """Start `penstock serve` on a directory; whatever still runs at the end of the test is killed."""
    started: list[Serve] = []

    def start(data: Path, *options: str) -> Serve:
        started.append(Serve(data, *options))
        return started[-1]

    yield start
    for serve in started:
        serve.kill()


@pytest.fixture
def topic(request: pytest.FixtureRequest, java: apache.JavaClient, server: Target) -> str:
    """A topic of its own for the test, with four queues."""
    name = request.node.name.replace("[", "-").replace("]", "")[:100]
    java.mqadmin("updateTopic", "-n", server.name_server, "-c", server.cluster, "-t", name, "-r", 4, "-w", 4)
    return str(name)


class PythonSubscriber:
    """Our push consumer, without await so that Java can be asked meanwhile, and what its listener saw."""

    def __init__(
        self,
        server: Target,
        topic: str,
        *,
        tags: str = "*",
        failures: int = 0,
        delay_level: int = 0,
        hang_ms: int = 0,
        orderly: bool = False,
        **options: Any,
    ) -> None:
        self.topic, self.seen = topic, list[ReceivedMessage]()
        self._failures, self._delay_level, self._attempts = failures, delay_level, collections.Counter[str]()
        self._hang_s = hang_ms / 1000
        self._lock = threading.Lock()
        self._core = PushConsumer(
            server.name_server,
            listener=self._orderly if orderly else self._concurrent,
            subscribe={topic: tags},
            orderly=orderly,
            **{
                "consume_from": ConsumeFrom.FIRST_OFFSET,
                "route_interval_ms": 1_000,
                "persist_interval_ms": 1_000,
                "suspend_ms": 100,
                **options,
            },
        )
        self._background = sync.background()
        self._background.run(self._core.start())

    def _accept(self, messages: Sequence[ReceivedMessage]) -> bool:
        with self._lock:
            self.seen += messages
            self._attempts.update(message.message_id for message in messages)
            accepted = all(self._attempts[message.message_id] > self._failures for message in messages)
        time.sleep(self._hang_s)
        return accepted

    def _concurrent(self, messages: Sequence[ReceivedMessage], context: ConsumeContext) -> ConsumeStatus:
        if self._accept(messages):
            return ConsumeStatus.SUCCESS
        context.delay_level = self._delay_level
        return ConsumeStatus.RECONSUME_LATER

    def _orderly(self, messages: Sequence[ReceivedMessage], context: OrderlyContext) -> OrderlyStatus:
        return OrderlyStatus.SUCCESS if self._accept(messages) else OrderlyStatus.SUSPEND

    @property
    def client_id(self) -> str:
        return self._core.client_id

    def assigned(self) -> list[int]:
        """Ids of the topic's queues that this consumer holds now."""
        held = list(self._core.rebalancer.queues)
        return sorted(queue.queue_id for queue in held if queue.topic == self.topic)

    def popping(self) -> list[int]:
        """Ids of the topic's queues that this consumer pops now."""
        popped = list(self._core.pop_service.queues)
        return sorted(queue.queue_id for queue in popped if queue.topic == self.topic)

    def received(self, count: int, timeout_s: float = 30.0) -> list[ReceivedMessage]:
        """What the listener saw, once it saw at least `count` messages."""
        wait_until(
            lambda: len(self.seen) >= count, timeout_s, lambda: f"{len(self.seen)} of {count} messages"
        )
        return list(self.seen)

    def suspend(self) -> None:
        self._core.suspend()

    def resume(self) -> None:
        self._background.run(self._core.resume())

    def stop(self) -> None:
        self._background.run(self._core.stop())


def wait_until(
    condition: Callable[[], object], timeout_s: float = 30.0, saw: Callable[[], object] = lambda: ""
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so after {timeout_s} s: {saw()}"
        time.sleep(0.05)


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def group(topic: str) -> str:
    return f"G-{topic}"[:100]


@pytest.fixture
def python_subscriber(server: Target, topic: str, group: str) -> Iterator[Callable[..., PythonSubscriber]]:
    """Start our push consumers; those that still run are stopped when the test ends."""
    started: list[PythonSubscriber] = []

    def start(**options: Any) -> PythonSubscriber:
        started.append(PythonSubscriber(server, **{"topic": topic, "group": group, **options}))
        return started[-1]

    yield start
    for subscriber in started:
        subscriber.stop()


class JavaSubscriber:
    """Apache's push consumer and what its listener saw."""

    def __init__(self, java: apache.JavaClient, server: Target, **options: Any) -> None:
        self._java, self.topic = java, options["topic"]
        self._name = f"python-{id(self)}"
        self.client_id: str = java.call(
            "subscribe", id=self._name, nameServer=server.name_server, **{"mode": "concurrent", **options}
        )

    @property
    def seen(self) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = self._java.call("received", id=self._name)
        return seen

    def assigned(self) -> list[int]:
        """Ids of the topic's queues that this consumer holds now."""
        held: list[int] = self._java.call("assigned", id=self._name, topic=self.topic)
        return held

    def popping(self) -> list[int]:
        """Ids of the topic's queues that this consumer pops now."""
        popped: list[int] = self._java.call("popping", id=self._name, topic=self.topic)
        return popped

    def received(self, count: int, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        return self._java.received(self._name, count, timeout_s)

    def stop(self) -> None:
        self._java.call("unsubscribe", id=self._name)


@pytest.fixture
def java_subscriber(
    java: apache.JavaClient, server: Target, topic: str, group: str
) -> Iterator[Callable[..., JavaSubscriber]]:
    """Start Java push consumers; those that still run are stopped when the test ends."""
    started: list[JavaSubscriber] = []

    def start(**options: Any) -> JavaSubscriber:
        started.append(JavaSubscriber(java, server, **{"topic": topic, "group": group, **options}))
        return started[-1]

    yield start
    for subscriber in started:
        subscriber.stop()


@pytest.fixture
def producer(server: Target) -> Iterator[sync.Producer]:
    with sync.Producer(server.name_server, send_timeout_ms=10_000) as producer:
        yield producer
