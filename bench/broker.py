"""Our broker and Apache's, one after the other, under the same load; prints the ratios.

python bench/broker.py                    both flush modes, a few minutes
python bench/broker.py --flush async --seconds 3 --only penstock
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import frames
import load
import servers

HERE = Path(__file__).resolve().parent
BODY_BYTES = 128
BATCH = 16
PULL = 32

LOWER_IS_BETTER = ("p50", "p99", "p99.9", "cpu", "memory", "start")


def measure(broker: servers.Running, seconds: float, note: Callable[[str], None]) -> dict[str, float]:
    """Every figure of one broker. Each rate is taken over a number of requests that lasts about `seconds`."""
    figures: dict[str, float] = {
        "start-up s": broker.start_seconds,
        "memory at start MB": broker.memory_mb()[0],
    }
    address = broker.host_port

    def rate(
        name: str, topic: str, prepared: Callable[[int], list[bytes]], in_flight: int, weight: int = 1
    ) -> None:
        load.run(address, prepared(2000), in_flight=in_flight)  # creates the topic, warms the compiler
        probe = load.run(address, prepared(1000), in_flight=in_flight)
        count = max(1000, min(400_000, int(probe.rate * seconds)))
        requests = prepared(count)
        before = broker.cpu_seconds()
        outcome = load.run(address, requests, in_flight=in_flight)
        figures[f"{name} msgs/s"] = outcome.rate * weight
        for p in (50, 99, 99.9):
            figures[f"{name} p{p:g} ms"] = outcome.percentile(p)
        figures[f"{name} cpu µs/msg"] = (broker.cpu_seconds() - before) / (outcome.requests * weight) * 1e6
        note(f"{name}: {outcome.rate * weight:,.0f} msgs/s")

    for in_flight in (1, 64, 256):
        rate(
            f"send, {in_flight} in flight",
            "BenchSingle",
            lambda n: frames.sends("BenchSingle", n, BODY_BYTES),
            in_flight,
        )
    rate("batch send", "BenchBatch", lambda n: frames.batches("BenchBatch", n, BATCH, BODY_BYTES), 64, BATCH)

    depth = 50_000
    load.run(address, frames.batches("BenchPull", frames.QUEUES * depth // 50, 50, BODY_BYTES), in_flight=64)
    requests = frames.pulls("BenchPull", depth, PULL)
    load.run(address, requests[:2000], in_flight=16)
    before = broker.cpu_seconds()
    outcome = load.run(address, requests, in_flight=16)
    messages = frames.QUEUES * depth
    figures["catch-up read msgs/s"] = messages / outcome.seconds
    figures["catch-up read MB/s"] = outcome.bytes_received / outcome.seconds / 1e6
    figures["catch-up read cpu µs/msg"] = (broker.cpu_seconds() - before) / messages * 1e6
    note(f"catch-up read: {messages / outcome.seconds:,.0f} msgs/s")
    resident, own = broker.memory_mb()
    figures["memory after load MB"] = resident
    figures["memory after load, no mapped files MB"] = own
    return figures


def ratio(name: str, ours: float, theirs: float) -> float:
    """Above 1 is better for us, except for memory and start-up where the plain share is shown."""
    if name.startswith(("memory", "start-up")):
        return ours / theirs
    return theirs / ours if any(word in name for word in LOWER_IS_BETTER) else ours / theirs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flush", choices=("async", "sync"), action="append", help="default: both")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each rate measurement")
    parser.add_argument(
        "--only", choices=tuple(servers.BROKERS), action="append", help="default: both brokers"
    )
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    lines = [
        f"{platform.processor() or platform.machine()}, {BODY_BYTES} B bodies, {options.seconds:g} s each"
    ]
    for flush in options.flush or ["async", "sync"]:
        results[flush] = {}
        for kind in options.only or list(servers.BROKERS):
            print(f"-- {kind}, {flush} flush", file=sys.stderr)
            with servers.BROKERS[kind](flush) as broker:
                results[flush][kind] = measure(
                    broker, options.seconds, lambda text: print("  ", text, file=sys.stderr)
                )
        figures = results[flush]
        lines.append(
            f"\n{flush} flush"
            + " " * 28
            + "".join(f"{kind:>14}" for kind in figures)
            + ("   ratio" if len(figures) == 2 else "")
        )
        for name in next(iter(figures.values())):
            row = f"  {name:38}" + "".join(f"{figures[kind][name]:14,.2f}" for kind in figures)
            if len(figures) == 2:
                row += f"{ratio(name, figures['penstock'][name], figures['apache'][name]):8.2f}"
            lines.append(row)
    text = "\n".join(lines)
    print(text)
    if options.only is None and options.flush is None:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "broker.txt").write_text(text + "\n")
        (HERE / "results" / "broker.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
