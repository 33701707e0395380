"""Apache's own benchmark programs, run against either broker."""

from __future__ import annotations

import contextlib
import itertools
import re
import statistics
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import servers

_PACKAGE = "org.apache.rocketmq.example.benchmark"


def _reports(main: str, arguments: list[object], pattern: str) -> Generator[int, None, None]:
    """The rates that a program prints, until the caller has enough of them."""
    with tempfile.TemporaryDirectory(prefix="bench-java-", ignore_cleanup_errors=True) as place:
        command = servers.apache.java_command(
            f"{_PACKAGE}.{main}", arguments, home=Path(place), flags=[], heap="2g"
        )
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=place
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                found = re.search(pattern, line)
                if found:
                    yield int(found[1])
        finally:
            process.kill()
            process.communicate()


def producer(
    name_server: str, topic: str, threads: int, body_bytes: int, warm_up: float, seconds: float
) -> float:
    """Sends a second of so many threads that each wait for the answer: the median after a warm-up.

    A new JVM takes many seconds to come to its speed: with a short warm-up this measures its compiler.
    """
    interval_ms = 500
    arguments = ["-n", name_server, "-t", topic, "-w", threads, "-s", body_bytes, "-ri", interval_ms]
    skip, take = (max(1, round(span * 1000 / interval_ms)) for span in (warm_up, seconds))
    reports = _reports("Producer", arguments, r"Send TPS: (\d+)")
    with contextlib.closing(reports):
        return statistics.median(itertools.islice((rate for rate in reports if rate), skip, skip + take))


def consumer(name_server: str, topic: str, group: str, messages: int) -> float:
    """Messages a second of a push consumer that reads a backlog.

    Only the second half of the reports counts, when the JVM is warm, without the last: there the backlog
    ends.
    """
    interval_ms = 250
    arguments = ["-n", name_server, "-t", topic, "-g", group, "-ri", interval_ms]
    rates: list[int] = []
    reports = _reports("Consumer", arguments, r"Consume TPS: (\d+)")
    with contextlib.closing(reports):
        for rate in reports:
            rates += [rate] if rate or rates else []
            if sum(rates) * interval_ms / 1000 >= messages * 0.98 or rates[-40:] == [0] * 40:
                break
    return statistics.mean(rates[len(rates) // 2 : -1])
