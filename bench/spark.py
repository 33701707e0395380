"""Our Spark source and sink against what Spark itself can do and against Spark's own Kafka source.

python bench/spark.py                 everything, about half an hour
python bench/spark.py --scale 0.1     quick and rough
python bench/spark.py --no-kafka      without the Kafka side (which needs Java, Maven and a virtualenv)

Rates are rows a second, the median of some runs. CPU is what the whole Spark session used for a row, which
other work on the machine disturbs less than it disturbs a rate. A floor is about 60 % of what a quiet
machine of this kind measured once; exit code 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import frames
import load
import servers
import spark_sources as sources
from spark_versions import python_with

from penstock.spark import session

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "spark"))
from faults import children

HERE = Path(__file__).resolve().parent
SIZES = (100, 1024)
NAMES = {100: "100 B", 1024: "1 KiB"}
SESSION = {"spark.log.level": "ERROR"}


@dataclass
class Report:
    """Figures by name, the floors they are held against, and the text so far."""

    lines: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def say(self, line: str = "") -> None:
        self.lines.append(line)
        print(line, flush=True)

    def rate(self, name: str, rate: float, cpu_us: float | None, floor: float | None = None) -> None:
        self.figures[name] = rate
        cpu = f"{cpu_us:7.2f}" if cpu_us is not None else "      -"
        self.say(f"  {name:58}{rate / 1e6:8.3f} M rows/s {cpu} us CPU{self._verdict(name, rate, floor)}")

    def time(self, name: str, milliseconds: float, ceiling: float | None = None) -> None:
        self.figures[name] = milliseconds
        verdict = self._verdict(name, -milliseconds, None if ceiling is None else -ceiling)
        self.say(f"  {name:58}{milliseconds:8.0f} ms{verdict}")

    def ratio(self, name: str, value: float, floor: float) -> None:
        self.say(f"  {name:58}{value:8.2f}{self._verdict(name, value, floor)}")

    def _verdict(self, name: str, value: float, floor: float | None) -> str:
        if floor is None:
            return ""
        if value < floor:
            self.missed.append(name)
        wanted = abs(floor) if abs(floor) < 1000 else abs(floor) / 1e6
        sign = "<=" if floor < 0 else ">="
        return f"   {'held' if value >= floor else 'MISSED'} ({sign} {wanted:g})"


def cpu_seconds() -> float:
    """Of this process and everything below it."""
    total = 0.0
    for pid in (os.getpid(), *children(os.getpid())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(fields[i]) for i in (11, 12, 13, 14)) / servers.TICKS
    return total


class Bench:
    def __init__(self, spark: Any, scale: float, runs: int, report: Report) -> None:
        self.spark, self.scale, self.runs, self.report = spark, scale, runs, report

    def rows(self, count: int) -> int:
        return max(sources.ROWS * 8, int(count * self.scale) // 32_000 * 32_000)

    def measure(self, name: str, rows: int, job: Callable[[], None], floor: float | None = None) -> float:
        job()  # starts workers and compiles
        seconds, cpu = [], []
        for _ in range(self.runs):
            before, began = cpu_seconds(), time.perf_counter()
            job()
            seconds.append(time.perf_counter() - began)
            cpu.append(cpu_seconds() - before)
        rate = rows / statistics.median(seconds)
        self.report.rate(name, rate, statistics.median(cpu) / rows * 1e6, floor)
        return rate

    def frame(self, name: str, **options: object) -> Any:
        return self.spark.read.format(name).options(**{k: str(v) for k, v in options.items()}).load()


def noop(frame: Any) -> Callable[[], None]:
    return lambda: frame.write.format("noop").mode("overwrite").save()


# ---- without a broker ---------------------------------------------------------------------------------


def decoder_alone(report: Report) -> None:
    """One core, no Spark."""
    import numpy as np
    import pyarrow as pa

    from penstock.spark.columns import Decoder
    from penstock.spark.outgoing import batch_elements

    report.say("\ndecoder and encoder alone, one core")
    floors = {("map", 100): 0.6e6, ("map", 1024): 0.4e6, ("raw", 100): 1.6e6, ("raw", 1024): 0.7e6}
    for form in ("map", "raw"):
        for size in SIZES:
            # Raw means: the property text as it is, and none of the columns that come from it.
            options = sources.decoder_options(form)
            if form == "raw":
                from dataclasses import replace

                taken = {"msgId", "tags", "keys"}
                options = replace(options, columns=tuple(c for c in options.columns if c not in taken))
            segments = sources.pull_bodies(size, sources.answers_for(size))
            decoder = Decoder(options)
            rate = _repeat(lambda d=decoder, s=segments: d.decode(s).num_rows)
            report.rate(f"decode, {form} properties, {NAMES[size]}", rate, 1e6 / rate, floors[form, size])
    for size, floor in ((100, 3e6), (1024, 1.5e6)):
        bodies = pa.array([b"x" * size] * sources.ROWS, pa.binary())
        texts = pa.array([b"UNIQ_KEY\x01" + b"A" * 32 + b"\x02WAIT\x01true\x02"] * sources.ROWS, pa.binary())
        flags = np.zeros(sources.ROWS, np.int32)
        rate = _repeat(lambda b=bodies, t=texts, f=flags: len(batch_elements(b, f, t)))
        report.rate(f"encode, {NAMES[size]}", rate, 1e6 / rate, floor)


def _repeat(work: Callable[[], int]) -> float:
    """Rows a second of CPU time, so that other work on the machine does not count."""
    work()
    rows, began = 0, time.process_time()
    while time.process_time() - began < 1.0:
        rows += work()
    return rows / (time.process_time() - began)


def ceilings(bench: Bench, folder: Path) -> None:
    bench.report.say("\nceilings: what Spark does with columns that cost nothing")
    for size, rows, floor in ((100, 4_000_000, 1.0e6), (1024, 2_000_000, 0.45e6)):
        n = bench.rows(rows)
        frame = bench.frame("bench_prebuilt", bodyBytes=size, rows=n)
        bench.measure(f"prebuilt batches -> noop, {NAMES[size]}", n, noop(frame), floor)
    one = bench.frame("bench_prebuilt", bodyBytes=1024, rows=bench.rows(1_000_000), partitions=1)
    bench.measure("prebuilt batches -> noop, 1 KiB, one partition", bench.rows(1_000_000), noop(one), 0.35e6)
    for size, floor in ((100, 0.5e6), (1024, 0.3e6)):
        n = bench.rows(1_000_000)
        frame = bench.frame("bench_prebuilt", bodyBytes=size, rows=n, map="true")
        bench.measure(f"prebuilt batches with a map -> noop, {NAMES[size]}", n, noop(frame), floor)
    for size in SIZES:
        n = bench.rows(1_000_000 if size == 100 else 500_000)
        path = str(folder / f"prebuilt-{size}")
        frame = bench.frame("bench_prebuilt", bodyBytes=size, rows=n)
        frame.write.option("compression", "lz4").mode("overwrite").parquet(path)
        bench.measure(f"Parquet (lz4) -> noop, {NAMES[size]}", n, noop(bench.spark.read.parquet(path)))
    for size, floor in ((100, 0.35e6), (1024, 0.25e6)):
        n = bench.rows(1_600_000 if size == 100 else 800_000)
        for form in ("map", "raw"):
            frame = bench.frame("bench_decoded", bodyBytes=size, rows=n, properties=form)
            counted = sources.answers_for(size) * sources.PULL
            n_real = n // counted // 4 * 4 * counted
            name = f"answers from memory, decoded, {form} properties -> noop, {NAMES[size]}"
            bench.measure(name, n_real, noop(frame), floor)
    for size, jvm_floor, python_floor in ((100, 0.55e6, 0.4e6), (1024, 0.3e6, 0.2e6)):
        n = bench.rows(1_000_000)
        text = sources.COLUMNS.replace(" binary", "").split(", ")
        names = [column.split()[0] for column in text]
        made = {"queueId": "cast(0 AS int)", "queueOffset": "id", "flag": "cast(0 AS int)"}
        made["body"] = f"cast(repeat('x', {size}) AS binary)"
        made |= dict.fromkeys(("bornTimestamp", "storeTimestamp"), "timestamp_micros(id)")
        jvm = bench.spark.range(n).selectExpr(*(f"{made.get(c, repr('some text'))} AS {c}" for c in names))
        writer = lambda f: lambda: f.write.format("bench_prebuilt").mode("append").save()  # noqa: E731  # a job of a job
        bench.measure(f"rows of the JVM -> writer of nothing, {NAMES[size]}", n, writer(jvm), jvm_floor)
        frame = bench.frame("bench_prebuilt", bodyBytes=size, rows=n)
        name = f"prebuilt batches -> writer of nothing, {NAMES[size]}"
        bench.measure(name, n, writer(frame), python_floor)


def micro_batches(bench: Bench, folder: Path) -> None:
    bench.report.say("\nmicro-batches of prebuilt columns")
    cases = (
        (1024, 100_000, "noop", 0.12e6),
        (1024, 500_000, "noop", 0.4e6),
        (1024, 100_000, "bench_prebuilt", 0.08e6),
        (1024, 500_000, "bench_prebuilt", 0.15e6),
        (100, 1_000_000, "noop", 0.8e6),
        (100, 1_000_000, "bench_prebuilt", 0.3e6),
    )
    for number, (size, rows, sink, floor) in enumerate(cases):
        per_trigger = rows // 16_000 * 16_000
        options = {"bodyBytes": str(size), "rowsPerTrigger": str(per_trigger), "triggers": "6"}
        stream = bench.spark.readStream.format("bench_prebuilt").options(**options).load()
        writer = stream.writeStream.format(sink).option("checkpointLocation", str(folder / f"micro-{number}"))
        before = cpu_seconds()
        query = writer.start()
        query.processAllAvailable()
        cpu = (cpu_seconds() - before) / (6 * per_trigger) * 1e6
        query.stop()
        took = [p.batchDuration / 1000 for p in query.recentProgress if p.numInputRows][1:]
        to = "noop" if sink == "noop" else "writer of nothing"
        name = f"stream, {rows // 1000} k rows of {NAMES[size]} a trigger -> {to}"
        bench.report.rate(name, per_trigger / statistics.median(took), cpu, floor)


# ---- with a broker ------------------------------------------------------------------------------------


def make_topic(name_server: str, topic: str, queues: int) -> None:
    command = [sys.executable, "-m", "penstock.cli", "topic", "create", topic]
    command += ["-q", str(queues), "-n", name_server]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def source_and_sink(bench: Bench, folder: Path) -> None:
    bench.report.say("\nour source and sink, a broker on the same two cores")
    for size, rows, noop_floor, parquet_floor in (
        (100, 1_600_000, 0.4e6, 0.3e6),
        (1024, 640_000, 0.2e6, 0.08e6),
    ):
        n = bench.rows(rows)
        with servers.penstock("async") as broker:
            make_topic(broker.name_server, "bench", frames.QUEUES)
            make_topic(broker.name_server, "copy", frames.QUEUES)
            batch = 1000 if size == 100 else 500
            load.run(broker.host_port, frames.batches("bench", n // batch, batch, size), in_flight=8)
            given = {"nameServer": broker.name_server, "subscribe": "bench"}
            bare = {"columns": "topic,brokerName,queueId,queueOffset,body,bornTimestamp,storeTimestamp"}
            for what, more in (
                ("all columns", {}),
                ("properties off", {"includeProperties": "none"}),
                ("columns without properties", bare),
            ):
                frame = bench.frame("rocketmq", **given, **more)
                assert frame.count() == n
                bench.measure(f"source -> noop, {what}, {NAMES[size]}", n, noop(frame), noop_floor)
            plain = bench.frame("rocketmq", **given, includeProperties="none")
            path = str(folder / f"parquet-{size}")
            bench.measure(
                f"source -> Parquet, {NAMES[size]}",
                n,
                lambda f=plain, p=path: f.write.mode("overwrite").parquet(p),
                parquet_floor,
            )
            copied = plain.select("body", "tags", "keys")
            to = {"nameServer": broker.name_server, "topic": "copy"}
            bench.measure(
                f"source -> sink, {NAMES[size]}",
                n,
                lambda f=copied, t=to: f.write.format("rocketmq").options(**t).mode("append").save(),
            )


def triggers(bench: Bench, folder: Path) -> None:
    bench.report.say("\nnear-empty triggers: a few messages in a topic of so many queues")
    from penstock.spark.brokers import brokers

    times: dict[int, float] = {}
    for queues in (2, 1000, 5000):
        with servers.penstock("async") as broker:
            make_topic(broker.name_server, "quiet", queues)
            make_topic(broker.name_server, "copy", 2)
            for sink, floor in (("noop", 250), ("rocketmq", 300)):
                if sink == "rocketmq" and queues != 2:
                    continue
                took = _near_empty(bench, folder, broker, brokers(broker.name_server), queues, sink)
                to = "noop" if sink == "noop" else "our sink"
                ceiling = 300 if queues > 2 else floor
                bench.report.time(f"trigger, {queues} queues -> {to}", took, ceiling)
                if sink == "noop":
                    times[queues] = took
    bench.report.time("near-empty trigger as promised", times[2], 200)
    bench.report.ratio("cost of 2 queues to that of 5,000", times[2] / times[5000], 0.6)


def _near_empty(bench: Bench, folder: Path, broker: Any, connection: Any, queues: int, sink: str) -> float:
    options = {"nameServer": broker.name_server, "subscribe": "quiet", "startingOffsets": "latest"}
    stream = bench.spark.readStream.format("rocketmq").options(**options).load()
    writer = stream.select("body").writeStream.format(sink)
    if sink == "rocketmq":
        writer = writer.options(nameServer=broker.name_server, topic="copy")
    query = writer.option("checkpointLocation", str(folder / f"quiet-{queues}-{sink}")).start()
    send = load.run
    try:
        query.processAllAvailable()
        for _ in range(25):
            send(broker.host_port, frames.sends("quiet", 4, 100), in_flight=1, connections=1)
            query.processAllAvailable()
    finally:
        query.stop()
    took = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]
    return statistics.median(took[5:])


# ---- Kafka --------------------------------------------------------------------------------------------


def kafka(report: Report, scale: float, runs: int) -> dict[int, float]:
    sys.path.insert(0, str(HERE / "kafka"))
    import broker

    report.say("\nSpark's own Kafka source (PySpark 4.2.0, its newest), a broker on the same two cores")
    python = python_with("4.2.0")
    environment = os.environ | {"KAFKA_SOURCE_JARS": str(broker.jars("source"))}
    rates = {}
    with broker.running() as address:
        for size, rows in ((100, 1_600_000), (1024, 640_000)):
            n = int(rows * scale)
            side = [python, HERE / "kafka" / "side.py"]
            subprocess.run(
                [*side, "fill", address, f"t{size}", str(size), str(n)], check=True, env=environment
            )
            done = subprocess.run(
                [*side, "read", address, f"t{size}", str(n), str(runs)],
                check=True,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            line = next(line for line in done.stdout.splitlines() if line.startswith("seconds "))
            rates[size] = n / statistics.median(json.loads(line.removeprefix("seconds ")))
            report.rate(f"Kafka source -> noop, {NAMES[size]}", rates[size], None)
    return rates


# ---- all of it ----------------------------------------------------------------------------------------


def calibration() -> float:
    def count() -> int:
        number = 0
        for _ in range(10_000_000):
            number += 1
        return number

    began = time.perf_counter()
    count()
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-kafka", action="store_true")
    options = parser.parse_args()
    report = Report()
    load_average = os.getloadavg()[0]
    report.say(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    report.say(f"10-million-step loop: {calibration():.2f} s (0.40 s on the machine of the floors)")
    report.say(f"load average before: {load_average:.1f}")
    decoder_alone(report)
    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        # Spark's Python workers import the data sources by name.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        spark = session("bench", master="local[2,4]", memory="2g", config=SESSION)
        for source in (sources.Prebuilt, sources.Decoded):
            spark.dataSource.register(source)
        bench = Bench(spark, options.scale, options.runs, report)
        for part in (ceilings, source_and_sink, micro_batches, triggers):
            part(bench, folder)
        spark.stop()
    rates = {} if options.no_kafka else kafka(report, options.scale, options.runs)
    report.say("\nratios")
    figures = report.figures
    for size in SIZES:
        ours = figures[f"source -> noop, properties off, {NAMES[size]}"]
        ceiling = figures[f"prebuilt batches -> noop, {NAMES[size]}"]
        report.ratio(f"source with properties off to prebuilt batches, {NAMES[size]}", ours / ceiling, 0.6)
        if size in rates:
            report.ratio(f"source with properties off to Kafka's, {NAMES[size]}", ours / rates[size], 0.8)
    report.say(f"\nload average after {os.getloadavg()[0]:.1f}")
    report.say("every floor is held" if not report.missed else f"missed: {'; '.join(report.missed)}")
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "spark.txt").write_text("\n".join(report.lines) + "\n")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
