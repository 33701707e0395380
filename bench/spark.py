"""Our Spark source and sink against what Spark itself can do and against Spark's own Kafka source.

python bench/spark.py                             everything
python bench/spark.py --scale 0.1 --runs 1        quick and rough
python bench/spark.py --parts source triggers     some parts; the others stay as they were
python bench/spark.py --results /tmp/spark        elsewhere than bench/results

Rates are rows a second, the median of some runs. CPU is what the whole Spark session and the broker used for
a row, which other work on the machine disturbs less than it disturbs a rate. A bound is about 60 % of what a
quiet machine of this kind measured once. Each part runs in a process of its own, and what it measured is
kept when a later one fails. Exit code 1 if a bound is missed or a part failed. The Kafka part needs Maven.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from spark_report import Figure, PartResult, keep_results, load_results, read_figures

HERE = Path(__file__).resolve().parent
SIZES = {100: "100 B", 1024: "1 KiB"}
LONGEST_PART_S = 3_600
PARTS = {
    "codec": "decoder and encoder alone, one core",
    "start": "start of a session",
    "ceilings": "ceilings: what Spark does with columns that cost nothing",
    "source": "our source and sink, a broker on the same two cores",
    "stream": "micro-batches of prebuilt columns",
    "triggers": "near-empty triggers of our source",
    "defaults": "near-empty triggers with Spark's own settings: TCP to Python, collector not frozen",
    "kafka": "Spark's own Kafka source (PySpark 4.2.0, its newest), a broker on the same two cores",
}


def loop_seconds() -> float:
    """0.40 s on the machine that the bounds come from."""

    def count() -> int:
        number = 0
        for _ in range(10_000_000):
            number += 1
        return number

    began = time.perf_counter()
    count()
    return time.perf_counter() - began


def run_part(part: str, scale: float, runs: int) -> PartResult:
    print(f"\n{PARTS[part]}", flush=True)
    before, load_average, began = loop_seconds(), os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        command = [sys.executable, HERE / "spark_parts.py", part, "--folder", folder]
        command += ["--scale", str(scale), "--runs", str(runs)]
        # Spark's Python workers import the data sources by name.
        path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}) as process:
            try:
                complete = process.wait(LONGEST_PART_S) == 0
            except subprocess.TimeoutExpired:
                complete = False
            finally:
                process.terminate()  # its session and its broker end with it
        figures = read_figures(folder / "figures")
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    took = time.monotonic() - began
    return PartResult(PARTS[part], when, scale, runs, before, load_average, took, complete, figures)


def ratios(results: dict[str, PartResult]) -> list[Figure]:
    """Of what has been measured so far."""
    values = {figure.name: figure.value for part in results.values() for figure in part.figures}
    found = []
    for size in SIZES.values():
        ours = values.get(f"source -> noop, properties off, {size}")
        for other, name, bound in (
            (f"prebuilt batches -> noop, {size}", "prebuilt batches", 0.6),
            (
                f"prebuilt batches with the source's columns -> noop, {size}",
                "prebuilt batches with its columns",
                0.6,
            ),
            (f"Kafka source -> noop, {size}", "Kafka's source", 0.8),
        ):
            if ours is not None and other in values:
                text = f"source with properties off to {name}, {size}"
                found.append(Figure(text, "", ours / values[other], bound))
    return found


def text_of(results: dict[str, PartResult]) -> str:
    head = f"{os.cpu_count()} x {platform.machine()}, Linux {platform.release()}"
    lines = [f"{head}, Python {platform.python_version()}"]
    for name in PARTS:
        if name in results:
            lines += results[name].lines()
    compared = ratios(results)
    lines += ["\nratios", *(figure.line() for figure in compared)]
    figures = [figure for part in results.values() for figure in part.figures] + compared
    missed = [figure.name for figure in figures if figure.missed]
    missing = [name for name in PARTS if name not in results or not results[name].complete]
    lines += ["", f"missed: {'; '.join(missed)}" if missed else "every bound that was measured is held"]
    if missing:
        lines.append(f"not measured, or not to the end: {', '.join(missing)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of rows")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS), help="default: all")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "spark")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the part that runs is ended, too
    kept, table = options.results.with_suffix(".json"), options.results.with_suffix(".txt")
    results = load_results(kept)
    for part in options.parts:
        results[part] = run_part(part, options.scale, options.runs)
        keep_results(kept, results)
        table.write_text(text_of(results))
    print(f"\n{'-' * 40}\n{text_of(results)}")
    measured = [results[part] for part in options.parts]
    figures = [figure for part in measured for figure in part.figures]
    if {"source", "ceilings", "kafka"} & set(options.parts):
        figures += ratios(results)
    failed = any(figure.missed for figure in figures) or not all(part.complete for part in measured)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
