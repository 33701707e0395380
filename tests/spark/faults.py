"""Faults on command: a broker that answers as told, and processes that are killed while they work."""

from __future__ import annotations

import asyncio
import collections
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.testing import RunningBroker
from penstock.wire.command import Command
from penstock.wire.peer import Peer

Handler = Callable[[Peer, Command, int], None]


class Faults:
    """Handlers of a running broker, exchanged for others on its own loop. Sockets and store stay real."""

    def __init__(self, running: RunningBroker) -> None:
        self._running = running
        self.refused = 0
        self.counted: collections.Counter[int] = collections.Counter()

    def _exchange(self, code: int, make: Callable[[Handler], Handler]) -> None:
        broker = self._running.node.broker.broker

        async def exchange() -> None:
            broker.handlers[code] = make(broker.handlers[code])

        asyncio.run_coroutine_threadsafe(exchange(), self._running._loop).result()

    def refuse(
        self, code: int, answer: int, remark: str, *, times: int = 1 << 30, seconds: float = 3600
    ) -> None:
        """Answers requests of a code with an error, for a number of times or some seconds after the first."""
        until: list[float] = []

        def make(real: Handler) -> Handler:
            def refuse(peer: Peer, command: Command, now_ms: int) -> None:
                until[:] = until or [time.monotonic() + seconds]
                if self.refused < times and time.monotonic() < until[0]:
                    self.refused += 1
                    self._running.node.broker.broker.reply(peer, command, answer, remark)
                else:
                    real(peer, command, now_ms)

            return refuse

        self._exchange(code, make)

    def count(self, *codes: int) -> None:
        """Counts requests of some codes from now on."""

        def make(real: Handler) -> Handler:
            def count(peer: Peer, command: Command, now_ms: int) -> None:
                self.counted[command.code] += 1
                real(peer, command, now_ms)

            return count

        for code in codes:
            self._exchange(code, make)

    def ignore_first(self, code: int) -> Callable[[float], tuple[int, int]]:
        """Leaves the first request of a code without an answer; the result waits for it and gives the ports
        of the client that sent it and of the broker."""
        seen = threading.Event()
        ports: list[int] = []
        own_port = int(self._running.address.rpartition(":")[2])

        def make(real: Handler) -> Handler:
            def ignore(peer: Peer, command: Command, now_ms: int) -> None:
                if ports and peer.remote[1] != ports[0]:
                    real(peer, command, now_ms)
                    return
                ports.append(peer.remote[1])
                seen.set()

            return ignore

        self._exchange(code, make)

        def wait(timeout_s: float) -> tuple[int, int]:
            assert seen.wait(timeout_s), f"no request {code} came"
            return ports[0], own_port

        return wait


def pid_of_connection(local: int, remote: int) -> int:
    """The process on this machine with a TCP connection between these ports, seen from its end.

    Both are asked for: connections to other servers, of other processes, may come from the same local port.
    """
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if [int(field.split(":")[1], 16) for field in fields[1:3]] == [local, remote]:
            inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if any(os.readlink(entry) in inodes for entry in (process / "fd").iterdir()):
                    return int(process.name)
            except OSError:
                continue  # it ended, or this entry was closed
    raise AssertionError(f"no process has a connection from port {local} to {remote}")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def children(pid: int) -> dict[int, str]:
    """All processes below one, with their command lines."""
    parents: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                stat = (process / "stat").read_text()
            except OSError:
                continue
            parents[int(process.name)] = int(stat.rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        for child in level:
            try:
                text = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            found[child] = text
    return found


def failed_tasks(spark: Any, group: str) -> int:
    """Tasks of a job group that failed and were run again."""
    tracker = spark.sparkContext.statusTracker()
    failed = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            details = tracker.getStageInfo(stage)
            failed += details.numFailedTasks if details is not None else 0
    return failed
