"""Interop tests start real JVMs, so they run only when asked for: make interop.

The tests of clients and tools run against `penstock serve`. With --server=apache the same tests run against
the real broker instead, which shows that they ask for nothing that Apache itself does not give.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

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
def server(request: pytest.FixtureRequest) -> Iterator[Target]:
    if request.config.getoption("--server") == "apache":
        with apache.cluster() as cluster:
            yield Target(cluster.name_server, cluster.brokers[0].address, "broker-a")
        return
    with tempfile.TemporaryDirectory(prefix="penstock-") as place:
        serve = Serve(Path(place) / "data")
        yield Target(serve.name_server, serve.broker, serve.broker_name)
        assert serve.stop() == 0


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
