"""What a send and a pull cost with few and with many topics, with an empty and with a large log; and how long
a large log takes to recover after kill -9. Each figure is taken from two brokers in turn, so that whatever
else the machine does meets both; CPU time of the broker is what counts.

python bench/flat.py                                       1,000 topics and 5 GB, a few minutes
python bench/flat.py --topics 100 --gigabytes 0.5 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import frames
import load
import servers

RESULTS = Path(__file__).resolve().parent / "results" / "flat.txt"
BODY_BYTES = 128
LARGE_BYTES = 256 * 1024
PULL = 32
PULLS = 4_000
"""Different pulls of one round; each finds PULL messages."""
SENDS = 200_000
"""Of one round: about what the broker writes between two checkpoints, so that each round pays for one."""
FRAMES = 20_000
MOST = 1.2
"""Flat means: no more than a fifth above."""


@dataclass
class Side:
    """One of two brokers with what is sent to it and read from it."""

    broker: servers.Running
    sends: list[bytes]
    pulls: list[bytes]

    def fill(self) -> None:
        """The messages that the pulls find, and enough for a checkpoint: that makes the files of all queues,
        once, and is not what is measured here."""
        load.run(self.broker.host_port, self.sends, in_flight=256, limit=PULLS * PULL * 7 // 4)
        self.broker.settle()

    def cpu_us(self, requests: list[bytes], count: int, messages: int) -> float:
        """CPU time of the broker a message."""
        before = self.broker.cpu_seconds()
        outcome = load.run(self.broker.host_port, requests, in_flight=64, limit=count)
        time.sleep(1)  # what is left to be done for them counts
        if outcome.refused:
            raise RuntimeError(f"{outcome.refused} of {outcome.requests} requests were refused")
        return (self.broker.cpu_seconds() - before) / (count * messages) * 1e6


def compare(name: str, plain: Side, large: Side, rounds: int) -> list[str]:
    """One line for pulls and one for sends: both costs and their ratio."""
    lines = []
    for what, messages in (("pull", PULL), ("send", 1)):
        costs: tuple[list[float], list[float]] = ([], [])
        turns = rounds if what == "send" else 2 * rounds
        for number in range(turns + 1):
            for side, found in zip((plain, large), costs, strict=True):
                requests, count = (side.sends, SENDS) if what == "send" else (side.pulls, PULLS)
                cost = side.cpu_us(requests, count, messages)
                if number:  # the first is the warm-up
                    found.append(cost)
        before, after = map(statistics.median, costs)
        ratio = after / before
        lines.append(f"  {what}, {name:30} {before:9.2f} {after:9.2f} {ratio:7.2f}" + "  *" * (ratio > MOST))
        print(lines[-1], file=sys.stderr)
    return lines


def topics(count: int, rounds: int) -> list[str]:
    names = [f"BenchTopic{number}" for number in range(count)]
    depth = PULLS * PULL // frames.QUEUES
    with servers.penstock("async") as one, servers.penstock("async") as many:
        plain = Side(
            one, frames.sends("BenchTopic", FRAMES, BODY_BYTES), frames.pulls("BenchTopic", depth, PULL)
        )
        spread = Side(
            many,
            frames.sends(names, 4 * count * frames.QUEUES, BODY_BYTES),  # each connection sends to all
            frames.pulls(names, max(PULL, depth // count // PULL * PULL), PULL)[:PULLS],
        )
        for side in (plain, spread):
            side.fill()
        return compare(f"1 and {count:,} topics", plain, spread, rounds)


def backlog(gigabytes: float, rounds: int, place: Path) -> list[str]:
    """The pulls read what was sent first: with a backlog that is its far end."""
    depth = PULLS * PULL // frames.QUEUES
    requests = frames.sends("BenchTopic", FRAMES, BODY_BYTES), frames.pulls("BenchTopic", depth, PULL)
    count = int(gigabytes * 1e9 / LARGE_BYTES)
    data = place / "data"
    with servers.penstock("async") as empty, servers.penstock("async", data) as full:
        plain, large = Side(empty, *requests), Side(full, *requests)
        for side in (plain, large):
            side.fill()
        fillers = frames.sends("BenchBacklog", 64, LARGE_BYTES)
        outcome = load.run(full.host_port, fillers, in_flight=16, limit=count)
        written = f"  {gigabytes:g} GB written at {count * LARGE_BYTES / outcome.seconds / 1e6:,.0f} MB/s"
        lines = compare(f"0 and {gigabytes:g} GB of backlog", plain, large, rounds)
        ends = [full.max_offset("BenchBacklog", queue) for queue in range(frames.QUEUES)]
        os.kill(full.pids[0], signal.SIGKILL)
    size = sum(path.stat().st_blocks * 512 for path in (data / "commitlog").iterdir())
    with servers.penstock("async", data) as again:
        found = [again.max_offset("BenchBacklog", queue) for queue in range(frames.QUEUES)]
        if found != ends:
            raise RuntimeError(f"the queues ended at {ends} before the kill and at {found} after it")
        seconds = again.start_seconds
    return [
        *lines,
        written,
        f"  ready {seconds:.2f} s after the start on a log of {size / 1e9:.1f} GB that kill -9 left",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-flat-") as place:
        free = shutil.disk_usage(place).free
        if free < options.gigabytes * 1.5e9 + 2e9:
            sys.exit(
                f"{place} has {free / 1e9:.1f} GB free, too little for a log of {options.gigabytes:g} GB"
            )
        lines = [
            "CPU time of the broker, µs a message" + " " * 12 + "few      many   ratio (a star: above 1.2)",
            *topics(options.topics, options.rounds),
            *backlog(options.gigabytes, options.rounds, Path(place)),
        ]
    text = "\n".join(lines)
    print(text)
    if (options.topics, options.gigabytes) == (1_000, 5.0):
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text + "\n")


if __name__ == "__main__":
    main()
