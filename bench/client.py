"""Our client, Apache's Java client and the PyPI client on one broker, one after the other.

python bench/client.py                     all clients on our broker, a few minutes
python bench/client.py --seconds 2 --only penstock
python bench/client.py --broker apache     the same on Apache's broker

Rates are wall time, so on a machine with few cores the broker takes its share; CPU time is the client
process's own. How long a fixed Python loop took just before each client tells how fast the machine was then.
The figures of a full run are kept in bench/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import frames
import load
import pypi
import servers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "interop"))
import apache

HERE = Path(__file__).resolve().parent
TOPIC = "ClientFilled"
BODY_BYTES = 128

Figures = dict[str, float]

TARGETS: dict[str, float] = {
    "consume, batch 1 msgs/s": 100_000,
    "consume, batch 32 msgs/s": 200_000,
    "send, 256 in flight msgs/s": 25_000,
    "send many msgs/s": 150_000,
}
ONE_BY_ONE = "send one by one msgs/s"
TIMES_JAVA = 2.0
TIMES_PYPI = 10.0
PATIENCE_S = 150


def fill(broker: servers.Running, count: int) -> None:
    load.run(broker.host_port, frames.batches(TOPIC, count // 50, 50, BODY_BYTES), in_flight=64)


def loop_ms() -> float:
    """CPU time of a fixed loop, the best of five: how fast the machine is now."""
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        total = 0
        for number in range(300_000):
            total += number & 7
        best = min(best, time.process_time() - began)
    return best * 1000


def figures_of(command: list[str], arguments: list[str]) -> Figures:
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, check=True, timeout=PATIENCE_S)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def penstock_client(arguments: list[str]) -> Figures:
    return figures_of([sys.executable, str(HERE / "client_load.py")], arguments)


def java_client(arguments: list[str]) -> Figures:
    with tempfile.TemporaryDirectory(prefix="bench-java-", ignore_cleanup_errors=True) as place:
        source = HERE / "java" / "ClientLoad.java"
        subprocess.run(["javac", "-d", place, "-cp", f"{apache.jars()}/*", source], check=True)
        command = ["java", *apache.JVM, "-Xmx2g", f"-Duser.home={place}"]
        command += ["-cp", f"{apache.jars()}/*{os.pathsep}{place}", "ClientLoad"]
        return figures_of(command, arguments)


CLIENTS: dict[str, Callable[[list[str]], Figures]] = {
    "penstock": penstock_client,
    "java": java_client,
    "pypi": pypi.client,
}


def ratio(name: str, ours: float, theirs: float) -> float:
    """Above 1 is better for us."""
    return ours / theirs if name.endswith("msgs/s") else theirs / ours


def verdicts(results: dict[str, Figures]) -> list[str]:
    ours = results.get("penstock")
    if ours is None:
        return []
    lines = []

    def judge(text: str, value: float, target: float) -> None:
        lines.append(
            f"  {'held    ' if value >= target else 'NOT HELD'}  {text}: {value:,.1f}, target {target:,.0f}"
        )

    for name, target in TARGETS.items():
        judge(name, ours[name], target)
    if "java" in results:
        judge(
            f"{ONE_BY_ONE}, times the Java client's",
            ours[ONE_BY_ONE] / results["java"][ONE_BY_ONE],
            TIMES_JAVA,
        )
    for name, theirs in results.get("pypi", {}).items():
        judge(f"{name}, times the PyPI client's", ratio(name, ours[name], theirs), TIMES_PYPI)
    return lines


def table(results: dict[str, Figures]) -> list[str]:
    ours = results.get("penstock", {})
    others = [kind for kind in results if kind != "penstock"]
    lines = [
        " " * 44 + "".join(f"{kind:>14}" for kind in results) + "".join(f"{f'/ {k}':>12}" for k in others)
    ]
    for name in dict.fromkeys(name for figures in results.values() for name in figures):
        row = f"  {name:42}"
        for figures in results.values():
            row += f"{figures[name]:14,.1f}" if name in figures else f"{'-':>14}"
        for kind in others:
            both = name in ours and name in results[kind]
            row += f"{ratio(name, ours[name], results[kind][name]):12.2f}" if both else f"{'-':>12}"
        lines.append(row)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", choices=tuple(servers.BROKERS), default="penstock")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each rate measurement")
    parser.add_argument("--messages", type=int, default=400_000, help="messages to consume")
    parser.add_argument("--only", choices=tuple(CLIENTS), action="append", help="default: all clients")
    options = parser.parse_args()
    results: dict[str, Figures] = {}
    notes = [pypi.HOW]
    with servers.BROKERS[options.broker]("async") as broker:
        fill(broker, options.messages)
        arguments = [broker.name_server, TOPIC, str(options.messages), str(options.seconds)]
        for kind in options.only or CLIENTS:
            load_before, loop_before = os.getloadavg()[0], loop_ms()
            print(f"-- {kind}", file=sys.stderr)
            try:
                results[kind] = CLIENTS[kind](arguments)
            except subprocess.SubprocessError as error:
                notes.append(f"the {kind} client gave no figures: {type(error).__name__}")
                continue
            notes.append(
                f"before {kind}: load {load_before:.1f} on {os.cpu_count()} cores, "
                f"a fixed Python loop took {loop_before:.1f} ms"
            )
    lines = [
        f"{platform.processor() or platform.machine()}, {options.broker} broker, async flush, "
        f"{BODY_BYTES} B bodies, {options.seconds:g} s each",
        f"{sys.implementation.name} {platform.python_version()} ({platform.python_compiler()})",
        *notes,
        "",
        *table(results),
        "",
        *verdicts(results),
    ]
    text = "\n".join(lines)
    print(text)
    if options.only is None:
        (HERE / "results").mkdir(exist_ok=True)
        suffix = "" if options.broker == "penstock" else f"-{options.broker}-broker"
        (HERE / "results" / f"client{suffix}.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
