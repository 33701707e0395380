"""Apache's broker and ours, one after the other, under the same load; prints the ratios.

python bench/broker.py                                     everything, about ten minutes
python bench/broker.py --flush async --parts sends reads --seconds 2 --only penstock
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import frames
import java_client
import load
import servers

RESULTS = Path(__file__).resolve().parent / "results"
BODY_BYTES = 128
BATCH = 16
PULL = 32
DEPTH = 51_200
"""Messages in each queue that is read: many times what a cache next to the processor holds."""
SPARE = 1_600
"""More than is read: the connections that write the queues are not done at the same moment."""
JAVA_BACKLOG = 800_000
SETTLE_SECONDS = 1.0
"""Both brokers build indexes behind the sends; that work counts as well."""

Figures = dict[str, float]

PARTS = ("sends", "batches", "reads", "java")
LOWER_IS_BETTER = ("p50", "p99", "cpu")
SHARE = ("memory", "start-up")
NO_RATIO = ("generator",)


class Measurement:
    """Fills `figures` with what one broker does."""

    def __init__(self, broker: servers.Running, seconds: float, warm_up: float, native: bool) -> None:
        self.broker = broker
        self.seconds = seconds
        self.warm_up = warm_up
        self.native = native
        self.figures: Figures = {
            "start-up s": broker.start_seconds,
            "memory at start MB": broker.memory_mb()[0],
        }

    def run(self, parts: list[str]) -> Figures:
        for part in parts:
            getattr(self, part)()
        resident, own = self.broker.memory_mb()
        self.figures["memory after load MB"] = resident
        self.figures["memory after load, no mapped files MB"] = own
        return self.figures

    def sends(self) -> None:
        requests = frames.sends("BenchSingle", 20_000, BODY_BYTES)
        for in_flight in (1, 64, 256):
            self._rate(f"send, {in_flight} in flight", requests, in_flight, 1)

    def batches(self) -> None:
        requests = frames.batches("BenchBatch", 4_000, BATCH, BODY_BYTES)
        self._rate(f"send, batches of {BATCH}", requests, 64, BATCH)

    def reads(self) -> None:
        """A backlog that single sends wrote, queues side by side in the log, and one that batches wrote."""
        requests = frames.sends("BenchMixed", 20_000, BODY_BYTES)
        self._fill("BenchMixed", requests, frames.QUEUES * (DEPTH + SPARE))
        self._rate("catch-up read", frames.pulls("BenchMixed", DEPTH, PULL), 16, PULL)
        requests = frames.batches("BenchRuns", 2_000, PULL, BODY_BYTES)
        self._fill("BenchRuns", requests, frames.QUEUES * (DEPTH + SPARE) // PULL)
        self._rate("catch-up read of batches", frames.pulls("BenchRuns", DEPTH, PULL), 16, PULL)

    def java(self) -> None:
        """Apache's benchmark Producer with as many threads as requests in flight, and its Consumer."""
        name_server = self.broker.name_server
        for threads in (1, 64, 256):
            rate = java_client.producer(
                name_server, "BenchJava", threads, BODY_BYTES, self.warm_up, self.seconds
            )
            self._note(f"Java Producer, {threads} threads msgs/s", rate)
        requests = frames.batches("BenchJavaBacklog", 2_000, 50, BODY_BYTES)
        self._load(requests, 64, limit=JAVA_BACKLOG // 50)
        self._note(
            "Java Consumer msgs/s",
            java_client.consumer(name_server, "BenchJavaBacklog", "bench_java", JAVA_BACKLOG),
        )

    def _fill(self, topic: str, requests: list[bytes], count: int) -> None:
        """Apache shows messages a while after it has confirmed them."""
        self._load(requests, 64, limit=count)
        for queue in range(frames.QUEUES):
            while self.broker.max_offset(topic, queue) < DEPTH:
                time.sleep(0.1)

    def _load(
        self, requests: list[bytes], in_flight: int, *, seconds: float = 1e9, limit: int = 0
    ) -> load.Outcome:
        return load.run(
            self.broker.host_port,
            requests,
            in_flight=in_flight,
            seconds=seconds,
            limit=limit,
            native=self.native,
        )

    def _rate(self, name: str, requests: list[bytes], in_flight: int, messages: int) -> None:
        self._load(requests, in_flight, seconds=self.warm_up)
        time.sleep(SETTLE_SECONDS)
        before = self.broker.cpu_seconds()
        outcome = self._load(requests, in_flight, seconds=self.seconds)
        time.sleep(SETTLE_SECONDS)
        cpu_seconds = self.broker.cpu_seconds() - before
        if outcome.refused:
            print(f"   {outcome.refused} of {outcome.requests} requests were refused", file=sys.stderr)
        self._note(f"{name} msgs/s", outcome.rate * messages)
        if name.startswith("catch-up"):
            self.figures[f"{name} pulls/s"] = outcome.rate
            self.figures[f"{name} MB/s"] = outcome.bytes_received / outcome.seconds / 1e6
        self.figures[f"{name} p50 ms"] = outcome.p50_ms
        self.figures[f"{name} p99 ms"] = outcome.p99_ms
        self.figures[f"{name} p99.9 ms"] = outcome.p999_ms
        self.figures[f"{name} cpu µs/msg"] = cpu_seconds / (outcome.requests * messages) * 1e6
        self.figures[f"{name} generator cpu µs/msg"] = outcome.cpu_us / messages

    def _note(self, name: str, rate: float) -> None:
        self.figures[name] = rate
        print(f"   {name}: {rate:,.0f}", file=sys.stderr)


def generator_limits(native: bool) -> list[str]:
    """What the generator reaches against a server that does nothing."""
    if not native or load.compiled() is None:
        return ["load generator: the one in Python, no C compiler was used"]
    requests = frames.sends("Nothing", 20_000, BODY_BYTES)
    with load.sink() as address:
        rates = [load.run(address, requests, in_flight=n, seconds=1).rate for n in (1, 64, 256)]
    return [
        "load generator (C), against a server that only counts frames: "
        + ", ".join(
            f"{rate:,.0f} requests/s with {n} in flight" for n, rate in zip((1, 64, 256), rates, strict=True)
        )
    ]


def ratio(name: str, ours: float, theirs: float) -> float:
    """Above 1 is better for us, except for memory and start-up where the plain share is shown."""
    lower_is_better = any(word in name for word in LOWER_IS_BETTER)
    return theirs / ours if lower_is_better else ours / theirs


def table(flush: str, figures: dict[str, Figures]) -> list[str]:
    both = len(figures) == 2
    lines = [f"{flush + ' flush':44}" + "".join(f"{kind:>14}" for kind in figures) + "   ratio" * both]
    for name in next(iter(figures.values())):
        row = f"  {name:42}" + "".join(f"{figures[kind][name]:14,.2f}" for kind in figures)
        if both and not any(word in name for word in NO_RATIO):
            value = ratio(name, figures["penstock"][name], figures["apache"][name])
            good = value <= 0.2 if name.startswith(SHARE) else value >= 1
            row += f"{value:8.2f}" + ("" if good else "  *")
        lines.append(row)
    return lines


def report(head: list[str], results: dict[str, dict[str, Figures]]) -> str:
    lines = [
        *head,
        "ratio: above 1 is better for penstock (throughput ours/theirs, latency and CPU theirs/ours);",
        "of memory and start-up the share ours/theirs, target 0.2. A star marks what misses its target.",
    ]
    for flush, figures in results.items():
        lines += ["", *table(flush, figures)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flush", choices=("async", "sync"), action="append", help="default: both")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    parser.add_argument("--warm-up", type=float, default=3.0, help="the same load before each, for the JIT")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS), help="default: all")
    parser.add_argument("--python-generator", action="store_true", help="even where there is a C compiler")
    parser.add_argument(
        "--only", choices=tuple(servers.BROKERS), action="append", help="default: both brokers; saves nothing"
    )
    options = parser.parse_args()
    native = not options.python_generator
    kept = RESULTS / "broker.json"
    whole = options.only is None and options.parts == list(PARTS)
    results: dict[str, dict[str, Figures]] = json.loads(kept.read_text()) if whole and kept.exists() else {}
    head = [
        f"{os.cpu_count()} x {processor()}, Linux {platform.release()}, Python {platform.python_version()}; "
        f"{BODY_BYTES} B bodies, {options.warm_up:g} s warm-up and {options.seconds:g} s for each figure",
        *generator_limits(native),
    ]
    measured = options.flush or ["async", "sync"]
    for flush in measured:
        results[flush] = {}
        for kind in options.only or list(servers.BROKERS):
            print(f"-- {kind}, {flush} flush", file=sys.stderr)
            with servers.BROKERS[kind](flush) as broker:
                measurement = Measurement(broker, options.seconds, options.warm_up, native)
                results[flush][kind] = measurement.run(options.parts)
    text = report(head, results)
    print(text)
    if whole:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "broker.txt").write_text(text + "\n")
        kept.write_text(json.dumps(results, indent=1) + "\n")


def processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.machine())


if __name__ == "__main__":
    main()
