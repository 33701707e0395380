"""Fixtures for all tests: `penstock` as people run it, in a process of its own.

What runs by default is quick; the long suites are asked for by the Makefile's targets.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("penstock", deadline=None)  # a busy machine is no failure
settings.load_profile("penstock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-interop", action="store_true", help="run the tests against the real Apache RocketMQ"
    )
    parser.addoption(
        "--spark-full",
        action="store_true",
        help="also the long Spark tests: cluster, kills, pressure, versions",
    )
    parser.addoption(
        "--server", choices=("penstock", "apache"), default="penstock", help="the broker of the interop tests"
    )

    parser.addoption(
        "--behaviours", metavar="IDS", help="only the tests that show one of these rows, by comma"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests go to whichever process is free, but those of Spark to one: each would need a session."""
    from xdist.scheduler import LoadScopeScheduling

    class OneForSpark(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

        def remove_node(self, node: Any) -> str | None:
            # Of a process that died the base class hands on every unit, also the finished ones. Each of
            # those counts as work that the next process has but says nothing of: the run would never end.
            units = self.assigned_work[node]
            self.assigned_work[node] = {name: unit for name, unit in units.items() if not all(unit.values())}
            return super().remove_node(node)

    return OneForSpark(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        shown = [row for mark in item.iter_markers("behaviour") for row in mark.args]
        item.user_properties.append(("behaviours", shown))
    if config.getoption("--behaviours"):
        wanted = set(config.getoption("--behaviours").split(","))
        others = [item for item in items if wanted.isdisjoint(dict(item.user_properties)["behaviours"])]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    interop = Path(__file__).parent / "interop"
    if interop in (collection_path, *collection_path.parents) and not config.getoption("--run-interop"):
        return True
    return None


class Running:
    """A `penstock` command that stays, with the facts of its ready file."""

    def __init__(self, ready_file: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *arguments, "--ready-file", str(ready_file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while not ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f"not ready: {self.process.communicate()}")
            time.sleep(0.01)
        self.facts: dict[str, Any] = json.loads(ready_file.read_text())
        self.name_server: str = self.facts["name_server"]
        self.addresses: list[str] = [broker["address"] for broker in self.facts["brokers"]]

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit code, output, error output."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> tuple[int, str, str]:
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output, errors


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """`start("serve", ...)` gives a running command on free ports; it is ended with the test."""
    running: list[Running] = []

    def start(command: str, *arguments: str) -> Running:
        data = str(tmp_path / "data")
        ports = {"serve": ("--namesrv-port", "0", "--broker-port", "0"), "namesrv": ("--namesrv-port", "0")}
        chosen = ("--data", data) if "--data" not in arguments else ()
        running.append(
            Running(
                tmp_path / f"ready-{len(running)}",
                command,
                *chosen,
                *ports.get(command, ("--broker-port", "0")),
                *arguments,
            )
        )
        return running[-1]

    yield start
    for command in running:
        if command.process.poll() is None:
            command.stop(signal.SIGKILL)


@pytest.fixture
def penstock() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command to its end."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **environment},
        )

    return run
