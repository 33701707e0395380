"""Apache's broker and ours, one after the other, under the same load; prints the ratios.

All of them run, and each figure is taken from one after the other, several times: on a machine whose speed
changes from minute to minute they are compared at the same moment, and a figure is the median of its rounds.

Ours runs twice: as one process, which uses one core, and with a shard for each core of the machine, which is
how it uses as many as Apache's threads do.

python bench/broker.py                                     everything, about 25 minutes
python bench/broker.py --flush async --parts sends reads --seconds 2 --only penstock
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
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
"""Messages in each queue that is read, over all shards: many times what a processor's cache holds."""
SPARE = 1_600
"""More than is read: where the frames do not divide evenly, some queues get a little less than others."""
JAVA_BACKLOG = 800_000
JAVA_TIMES = 4
"""As long as other measurements are those of the Java clients: they have one round."""
SETTLE_SECONDS = 1.0
"""Both brokers build indexes behind the sends; that work counts as well."""

Figures = dict[str, float]

PARTS = ("sends", "batches", "reads", "java")
KINDS = {
    "penstock": servers.penstock,
    "shards": servers.penstock_shards,
    "apache": servers.apache_broker,
}
HEADS = {"shards": f"{servers.SHARDS} shards"}
LOWER_IS_BETTER = ("p50", "p99", "cpu")
SHARE = ("memory", "start-up")
NO_RATIO = ("generator",)


class Measurement:
    """Fills `figures` with what one broker does."""

    def __init__(self, broker: servers.Running, options: argparse.Namespace, native: bool) -> None:
        self.broker = broker
        self.seconds: float = options.seconds
        self.warm_up: float = options.warm_up
        self.java_warm_up: float = options.java_warm_up
        self.native = native
        self.counts = True
        """Not in the first round, when Apache's code is being compiled."""
        self._seen: dict[str, list[float]] = {}
        self._filled: set[str] = set()
        self._note("start-up s", broker.start_seconds)
        self._note("memory at start MB", broker.memory_mb()[0])

    def figures(self) -> Figures:
        resident, own = self.broker.memory_mb()
        self._note("memory after load MB", resident)
        self._note("memory after load, no mapped files MB", own)
        return {name: statistics.median(values) for name, values in self._seen.items()}

    # Each part stops after every figure, so that the next broker has its turn.

    def sends(self) -> Iterator[None]:
        requests = frames.sends("BenchSingle", 20_000, BODY_BYTES)
        for in_flight in (1, 64, 256):
            yield self._rate(f"send, {in_flight} in flight", requests, in_flight, 1)

    def batches(self) -> Iterator[None]:
        requests = frames.batches("BenchBatch", 4_000, BATCH, BODY_BYTES)
        yield self._rate(f"send, batches of {BATCH}", requests, 64, BATCH)

    def reads(self) -> Iterator[None]:
        """A backlog that single sends wrote, queues side by side in the log, and one that batches wrote."""
        brokers = len(self.broker.addresses)
        depth = DEPTH // brokers // PULL * PULL
        count = brokers * frames.QUEUES * (depth + SPARE)
        self._fill("BenchMixed", frames.sends("BenchMixed", 20_000, BODY_BYTES), count, depth)
        yield self._rate("catch-up read", frames.pulls("BenchMixed", depth, PULL), 16, PULL)
        self._fill("BenchRuns", frames.batches("BenchRuns", 2_000, PULL, BODY_BYTES), count // PULL, depth)
        yield self._rate("catch-up read of batches", frames.pulls("BenchRuns", depth, PULL), 16, PULL)

    def java(self) -> Iterator[None]:
        """Apache's benchmark Producer with as many threads as requests in flight, and its Consumer.

        Each is a new JVM, so they run longer than the rest, and in the last round only.
        """
        name_server = self.broker.name_server
        for threads in (1, 64, 256):
            rate = java_client.producer(
                name_server,
                "BenchJava",
                threads,
                BODY_BYTES,
                self.java_warm_up,
                self.seconds * JAVA_TIMES,
            )
            yield self._say(f"Java Producer, {threads} threads msgs/s", rate)
        if "BenchJavaBacklog" not in self._filled:
            self._filled.add("BenchJavaBacklog")
            requests = frames.batches("BenchJavaBacklog", 2_000, 50, BODY_BYTES)
            self._load(requests, 64, limit=JAVA_BACKLOG // 50)
        group = f"bench_java_{time.time_ns()}"
        rate = java_client.consumer(name_server, "BenchJavaBacklog", group, JAVA_BACKLOG)
        yield self._say("Java Consumer msgs/s", rate)

    def _fill(self, topic: str, requests: list[bytes], count: int, depth: int) -> None:
        """Once. Apache shows messages a while after it has confirmed them."""
        if topic in self._filled:
            return
        self._filled.add(topic)
        self._load(requests, 64, limit=count)
        for queue in range(frames.QUEUES):
            while self.broker.max_offset(topic, queue) < depth:
                time.sleep(0.1)

    def _load(
        self, requests: list[bytes], in_flight: int, *, seconds: float = 1e9, limit: int = 0
    ) -> load.Outcome:
        return load.run(
            self.broker.host_ports,
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
        self._say(f"{name} msgs/s", outcome.rate * messages)
        if name.startswith("catch-up"):
            self._note(f"{name} pulls/s", outcome.rate)
            self._note(f"{name} MB/s", outcome.bytes_received / outcome.seconds / 1e6)
        self._note(f"{name} p50 ms", outcome.p50_ms)
        self._note(f"{name} p99 ms", outcome.p99_ms)
        self._note(f"{name} p99.9 ms", outcome.p999_ms)
        self._note(f"{name} cpu µs/msg", cpu_seconds / (outcome.requests * messages) * 1e6)
        self._note(f"{name} generator cpu µs/msg", outcome.cpu_us / messages)

    def _say(self, name: str, rate: float) -> None:
        self._note(name, rate)
        print(f"   {self.broker.kind}, {name}: {rate:,.0f}", file=sys.stderr)

    def _note(self, name: str, value: float) -> None:
        if self.counts:
            self._seen.setdefault(name, []).append(value)


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
    """Every figure of each broker, then the ratio of each of ours to Apache's."""
    ours = [kind for kind in figures if kind != "apache"] if "apache" in figures else []
    head = f"{flush + ' flush':46}" + "".join(f"{HEADS.get(kind, kind):>13}" for kind in figures)
    lines = [head + f"{'ratio':>9} " * len(ours)]
    for name in next(iter(figures.values())):
        row = f"  {name:44}" + "".join(f"{figures[kind][name]:13,.2f}" for kind in figures)
        if not any(word in name for word in NO_RATIO):
            for kind in ours:
                value = ratio(name, figures[kind][name], figures["apache"][name])
                good = value <= 0.2 if name.startswith(SHARE) else value >= 1
                row += f"{value:9.2f}" + " *"[not good]
        lines.append(row.rstrip())
    return lines


def report(head: list[str], results: dict[str, dict[str, Figures]]) -> str:
    lines = [
        *head,
        "penstock is one process on one core, the shards are one for each core: what they take is their sum.",
        "ratio, one for each of ours: above 1 is better (rate ours/theirs, latency and CPU theirs/ours);",
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
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--warm-up", type=float, default=2.0, help="the same load before each, for the JIT")
    parser.add_argument(
        "--java-warm-up", type=float, default=15.0, help="of each Java client: it is a new JVM every time"
    )
    parser.add_argument("--rounds", type=int, default=2, help="a figure is the median of so many")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS), help="default: all")
    parser.add_argument("--python-generator", action="store_true", help="even where there is a C compiler")
    parser.add_argument(
        "--only", choices=tuple(KINDS), action="append", help="default: all brokers; saves nothing"
    )
    options = parser.parse_args()
    native = not options.python_generator
    kept = RESULTS / "broker.json"
    whole = options.only is None and options.parts == list(PARTS)
    results: dict[str, dict[str, Figures]] = json.loads(kept.read_text()) if whole and kept.exists() else {}
    head = [
        f"{os.cpu_count()} x {processor()}, Linux {platform.release()}, Python {platform.python_version()}; "
        f"{BODY_BYTES} B bodies; {options.warm_up:g} s warm-up and {options.seconds:g} s, in turns, "
        f"median of {options.rounds}; Java clients {options.java_warm_up:g} s and "
        f"{options.seconds * JAVA_TIMES:g} s, once",
        *generator_limits(native),
    ]
    measured = options.flush or ["async", "sync"]
    for flush in measured:
        results[flush] = measure(flush, options.only or list(KINDS), options, native)
    text = report(head, results)
    print(text)
    if whole:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "broker.txt").write_text(text + "\n")
        kept.write_text(json.dumps(results, indent=1) + "\n")


def measure(flush: str, kinds: list[str], options: argparse.Namespace, native: bool) -> dict[str, Figures]:
    with contextlib.ExitStack() as running:
        found = {
            kind: Measurement(running.enter_context(KINDS[kind](flush)), options, native) for kind in kinds
        }
        for number in range(options.rounds + 1):
            print(f"-- {flush} flush, {f'round {number}' if number else 'warm-up'}", file=sys.stderr)
            for each in found.values():
                each.counts = number > 0
            for part in options.parts:
                if part == "java" and number < options.rounds:
                    continue
                for _ in zip(*(getattr(each, part)() for each in found.values()), strict=True):
                    pass
        return {kind: each.figures() for kind, each in found.items()}


def processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.machine())


if __name__ == "__main__":
    main()
