"""The parts of the Spark benchmark, each run by spark.py in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import frames
import load
import numpy as np
import pyarrow as pa
import servers
import spark_sources as sources
from spark_report import Report
from spark_versions import python_with

from penstock.spark import session
from penstock.spark.columns import Decoder
from penstock.spark.outgoing import batch_elements
from penstock.spark.spark_session import CHECKPOINT_MANAGER, FILE_SYSTEM_MANAGER

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "spark"))
from faults import children

HERE = Path(__file__).resolve().parent
SIZES = {100: "100 B", 1024: "1 KiB"}
TRIGGERS = 37


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
    def __init__(self, folder: Path, scale: float, runs: int) -> None:
        self.folder, self.scale, self.runs = folder, scale, runs
        self.report = Report(folder / "figures")
        self.spark: Any = None

    @contextmanager
    def session(self, **config: str) -> Iterator[None]:
        settings = {"spark.log.level": "ERROR"} | config
        self.spark = session("bench", master="local[2,4]", memory="2g", config=settings)
        for source in (sources.Prebuilt, sources.Decoded):
            self.spark.dataSource.register(source)
        yield
        self.spark.stop()

    def rows(self, count: int) -> int:
        return max(sources.ROWS * 8, int(count * self.scale) // 32_000 * 32_000)

    def measure(self, name: str, rows: int, job: Callable[[], None], bound: float | None = None) -> None:
        job()  # starts workers and compiles
        seconds, cpu = [], []
        for _ in range(self.runs):
            before, began = cpu_seconds(), time.perf_counter()
            job()
            seconds.append(time.perf_counter() - began)
            cpu.append(cpu_seconds() - before)
        cpu_us = statistics.median(cpu) / rows * 1e6
        self.report.rate(name, rows / statistics.median(seconds), bound, cpu_us)

    def frame(self, name: str, **options: object) -> Any:
        return self.spark.read.format(name).options(**{k: str(v) for k, v in options.items()}).load()


def noop(frame: Any) -> Callable[[], None]:
    return lambda: frame.write.format("noop").mode("overwrite").save()


def to_nothing(frame: Any) -> Callable[[], None]:
    return lambda: frame.write.format("bench_prebuilt").mode("append").save()


# ---- without a broker ---------------------------------------------------------------------------------


def codec(bench: Bench) -> None:
    bounds = {("map", 100): 0.6e6, ("map", 1024): 0.4e6, ("raw", 100): 1.6e6, ("raw", 1024): 0.7e6}
    for (form, size), bound in bounds.items():
        options = sources.decoder_options(form)
        if form == "raw":  # the property text as it is, and none of the columns that come from it
            taken = {"msgId", "tags", "keys"}
            options = replace(options, columns=tuple(c for c in options.columns if c not in taken))
        segments = sources.pull_bodies(size, sources.answers_for(size))
        decoder = Decoder(options)
        rate = _repeat(lambda d=decoder, s=segments: d.decode(s).num_rows)
        bench.report.rate(f"decode, {form} properties, {SIZES[size]}", rate, bound, 1e6 / rate)
    for size, bound in ((100, 3e6), (1024, 1.5e6)):
        bodies = pa.array([b"x" * size] * sources.ROWS, pa.binary())
        texts = pa.array([b"UNIQ_KEY\x01" + b"A" * 32 + b"\x02WAIT\x01true\x02"] * sources.ROWS, pa.binary())
        flags = np.zeros(sources.ROWS, np.int32)
        rate = _repeat(lambda b=bodies, t=texts, f=flags: len(batch_elements(b, f, t)))
        bench.report.rate(f"encode, {SIZES[size]}", rate, bound, 1e6 / rate)


def _repeat(work: Callable[[], int]) -> float:
    """Rows a second of CPU time, so that other work on the machine does not count."""
    work()
    rows, began = 0, time.process_time()
    while time.process_time() - began < 1.0:
        rows += work()
    return rows / (time.process_time() - began)


def start(bench: Bench) -> None:
    """The fast start that tests use: serial collection and the first compiler only."""
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    began = time.monotonic()
    with bench.session(**{"spark.driver.extraJavaOptions": java}):
        times = [time.monotonic()]
        bench.spark.range(10).count()
        times.append(time.monotonic())
        noop(bench.frame("bench_prebuilt", bodyBytes=100, rows=bench.rows(0)))()
        times.append(time.monotonic())
    names = ("session", "session and first job", "session, first job and first Python job")
    for name, at, bound in zip(names, times, (None, None, 15.0), strict=True):
        bench.report.seconds(name, at - began, bound)


def ceilings(bench: Bench) -> None:
    with bench.session():
        _transport(bench)
        _decoding(bench)
        _writing(bench)


def _transport(bench: Bench) -> None:
    for size, rows, bound in ((100, 4_000_000, 1.0e6), (1024, 2_000_000, 0.45e6)):
        n = bench.rows(rows)
        frame = bench.frame("bench_prebuilt", bodyBytes=size, rows=n)
        bench.measure(f"prebuilt batches -> noop, {SIZES[size]}", n, noop(frame), bound)
    n = bench.rows(1_000_000)
    one = bench.frame("bench_prebuilt", bodyBytes=1024, rows=n, partitions=1)
    bench.measure("prebuilt batches -> noop, 1 KiB, one partition", n, noop(one), 0.35e6)
    for size, bound in ((100, 0.5e6), (1024, 0.3e6)):
        frame = bench.frame("bench_prebuilt", bodyBytes=size, rows=n, map="true")
        bench.measure(f"prebuilt batches with a map -> noop, {SIZES[size]}", n, noop(frame), bound)
    for size in SIZES:
        n = bench.rows(1_000_000 if size == 100 else 500_000)
        path = str(bench.folder / f"prebuilt-{size}")
        frame = bench.frame("bench_prebuilt", bodyBytes=size, rows=n)
        frame.write.option("compression", "lz4").mode("overwrite").parquet(path)
        bench.measure(f"Parquet (lz4) -> noop, {SIZES[size]}", n, noop(bench.spark.read.parquet(path)))


def _decoding(bench: Bench) -> None:
    for size, bound in ((100, 0.35e6), (1024, 0.25e6)):
        answer = sources.answers_for(size) * sources.PULL
        n = max(4, bench.rows(1_600_000 if size == 100 else 800_000) // answer // 4 * 4) * answer
        for form in ("map", "raw"):
            frame = bench.frame("bench_decoded", bodyBytes=size, rows=n, properties=form)
            name = f"answers from memory, decoded, {form} properties -> noop, {SIZES[size]}"
            bench.measure(name, n, noop(frame), bound)
        frame = bench.frame("bench_decoded", bodyBytes=size, rows=n, properties="none", once="true")
        bench.measure(f"prebuilt batches with the source's columns -> noop, {SIZES[size]}", n, noop(frame))


def _writing(bench: Bench) -> None:
    n = bench.rows(1_000_000)
    names = [column.split()[0] for column in sources.COLUMNS.split(", ")]
    for size, jvm_bound, python_bound in ((100, 0.55e6, 0.4e6), (1024, 0.3e6, 0.2e6)):
        made = {"queueId": "cast(0 AS int)", "queueOffset": "id", "flag": "cast(0 AS int)"}
        made["body"] = f"cast(repeat('x', {size}) AS binary)"
        made |= dict.fromkeys(("bornTimestamp", "storeTimestamp"), "timestamp_micros(id)")
        jvm = bench.spark.range(n).selectExpr(*(f"{made.get(c, repr('some text'))} AS {c}" for c in names))
        bench.measure(f"rows of the JVM -> writer of nothing, {SIZES[size]}", n, to_nothing(jvm), jvm_bound)
        frame = bench.frame("bench_prebuilt", bodyBytes=size, rows=n)
        name = f"prebuilt batches -> writer of nothing, {SIZES[size]}"
        bench.measure(name, n, to_nothing(frame), python_bound)


def stream(bench: Bench) -> None:
    cases = (
        (1024, 100_000, "noop", 0.12e6),
        (1024, 500_000, "noop", 0.4e6),
        (1024, 100_000, "bench_prebuilt", 0.08e6),
        (1024, 500_000, "bench_prebuilt", 0.15e6),
        (100, 1_000_000, "noop", 0.8e6),
        (100, 1_000_000, "bench_prebuilt", 0.3e6),
    )
    with bench.session():
        for size, rows, sink, bound in cases:
            per_trigger = rows // 16_000 * 16_000
            before = cpu_seconds()
            progress = _prebuilt_triggers(bench, sink, 6, bodyBytes=size, rowsPerTrigger=per_trigger)
            cpu = (cpu_seconds() - before) / (6 * per_trigger) * 1e6
            took = statistics.median(p.batchDuration / 1000 for p in progress[1:])
            to = "noop" if sink == "noop" else "writer of nothing"
            name = f"{rows // 1000} k rows of {SIZES[size]} a trigger -> {to}"
            bench.report.rate(name, per_trigger / took, bound, cpu)


def defaults(bench: Bench) -> None:
    with bench.session(**{"spark.python.unix.domain.socket.enabled": "false"}):
        for sink, bound in (("noop", 400), ("bench_prebuilt", 500)):
            small = {"bodyBytes": 100, "batchRows": 2, "rowsPerTrigger": 4, "partitions": 2}
            progress = _prebuilt_triggers(bench, sink, TRIGGERS, **small, settle="false")
            to = "noop" if sink == "noop" else "writer of nothing"
            took = statistics.median(p.durationMs["triggerExecution"] for p in progress[5:])
            bench.report.time(f"trigger as Spark sets it up, 2 queues -> {to}", took, bound)


def _prebuilt_triggers(bench: Bench, sink: str, triggers: int, **options: object) -> list[Any]:
    """Progress of the batches with rows."""
    texts = {name: str(value) for name, value in (options | {"triggers": triggers}).items()}
    frame = bench.spark.readStream.format("bench_prebuilt").options(**texts).load()
    writer = frame.writeStream.format(sink).option("checkpointLocation", tempfile.mkdtemp(dir=bench.folder))
    if sink == "bench_prebuilt":
        writer = writer.option("settle", texts.get("settle", "true"))
    query = writer.start()
    query.processAllAvailable()
    query.stop()
    return [progress for progress in query.recentProgress if progress.numInputRows]


# ---- with a broker ------------------------------------------------------------------------------------


def make_topic(name_server: str, topic: str, queues: int) -> None:
    command = [sys.executable, "-m", "penstock.cli", "topic", "create", topic]
    command += ["-q", str(queues), "-n", name_server]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def source(bench: Bench) -> None:
    with bench.session():
        for size, rows, noop_bound, parquet_bound in (
            (100, 1_600_000, 0.4e6, 0.3e6),
            (1024, 640_000, 0.2e6, 0.08e6),
        ):
            with servers.penstock("async") as broker:
                n = bench.rows(rows)
                for topic in ("bench", "copy"):
                    make_topic(broker.name_server, topic, frames.QUEUES)
                batch = 1000 if size == 100 else 500
                sent = frames.batches("bench", n // batch, batch, size)
                assert load.run(broker.host_port, sent, in_flight=8).refused == 0
                _source(bench, broker, size, n, noop_bound, parquet_bound)


def _source(
    bench: Bench, broker: servers.Running, size: int, n: int, noop_bound: float, parquet_bound: float
) -> None:
    given = {"nameServer": broker.name_server, "subscribe": "bench"}
    bare = {"columns": "topic,brokerName,queueId,queueOffset,body,bornTimestamp,storeTimestamp"}
    for what, more in (
        ("all columns", {}),
        ("properties off", {"includeProperties": "none"}),
        ("columns without properties", bare),
    ):
        frame = bench.frame("rocketmq", **given, **more)
        assert frame.count() == n
        bench.measure(f"source -> noop, {what}, {SIZES[size]}", n, noop(frame), noop_bound)
    plain = bench.frame("rocketmq", **given, includeProperties="none")
    path = str(bench.folder / f"parquet-{size}")
    bench.measure(
        f"source -> Parquet, {SIZES[size]}",
        n,
        lambda: plain.write.mode("overwrite").parquet(path),
        parquet_bound,
    )
    copied = plain.select("body", "tags", "keys")
    to = {"nameServer": broker.name_server, "topic": "copy"}
    bench.measure(
        f"source -> sink, {SIZES[size]}",
        n,
        lambda: copied.write.format("rocketmq").options(**to).mode("append").save(),
    )


def triggers(bench: Bench) -> None:
    times: dict[int, float] = {}
    with bench.session():
        for queues in (2, 1000, 5000):
            with servers.penstock("async") as broker:
                make_topic(broker.name_server, "quiet", queues)
                took = times[queues] = _near_empty(bench, broker, "noop", bench.folder)
                bench.report.time(f"trigger, {queues} queues -> noop", took, 250 if queues == 2 else 300)
        with servers.penstock("async") as broker:
            for topic in ("quiet", "copy"):
                make_topic(broker.name_server, topic, 2)
            took = _near_empty(bench, broker, "rocketmq", bench.folder)
            bench.report.time("trigger, 2 queues -> our sink", took, 300)
            bench.report.ratio("cost of 2 queues to that of 5,000", times[2] / times[5000], 0.6)
            # From here on as in a session with local_checkpoints, which `penstock pipeline run` asks for.
            bench.spark.conf.set(CHECKPOINT_MANAGER, FILE_SYSTEM_MANAGER)
            for sink, to in (("noop", "noop"), ("rocketmq", "our sink")):
                took = _near_empty(bench, broker, sink, bench.folder)
                bench.report.time(f"trigger, 2 queues -> {to}, local checkpoints", took, 200)
            memory = Path(tempfile.mkdtemp(prefix="bench-spark-", dir="/dev/shm"))
            try:
                for sink, to, bound in (("noop", "noop", 130), ("rocketmq", "our sink", 200)):
                    took = _near_empty(bench, broker, sink, memory)
                    name = f"trigger, 2 queues -> {to}, checkpoint in memory"
                    bench.report.time(name, took, bound)
            finally:
                shutil.rmtree(memory)


def _near_empty(bench: Bench, broker: servers.Running, sink: str, folder: Path) -> float:
    """Milliseconds of a trigger that finds one message in each of two queues."""
    options = {"nameServer": broker.name_server, "subscribe": "quiet", "startingOffsets": "latest"}
    frame = bench.spark.readStream.format("rocketmq").options(**options).load().select("body")
    writer = frame.writeStream.format(sink).option("checkpointLocation", tempfile.mkdtemp(dir=folder))
    if sink == "rocketmq":
        writer = writer.options(nameServer=broker.name_server, topic="copy")
    query = writer.start()
    try:
        query.processAllAvailable()
        for _ in range(TRIGGERS):
            sent = load.run(broker.host_port, frames.sends("quiet", 2, 100), in_flight=1, connections=1)
            assert sent.refused == 0
            query.processAllAvailable()
    finally:
        query.stop()
    took = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]
    return statistics.median(took[5:])


def kafka(bench: Bench) -> None:
    sys.path.insert(0, str(HERE / "kafka"))
    import broker

    side = [python_with("4.2.0"), HERE / "kafka" / "side.py"]
    environment = os.environ | {"KAFKA_SOURCE_JARS": str(broker.jars("source"))}
    with broker.running() as address:
        for size, rows in ((100, 1_600_000), (1024, 640_000)):
            n = bench.rows(rows)
            topic = f"t{size}"
            subprocess.run([*side, "fill", address, topic, str(size), str(n)], check=True, env=environment)
            done = subprocess.run(
                [*side, "read", address, topic, str(n), str(bench.runs)],
                check=True,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            line = next(line for line in done.stdout.splitlines() if line.startswith("seconds "))
            seconds = statistics.median(json.loads(line.removeprefix("seconds ")))
            bench.report.rate(f"Kafka source -> noop, {SIZES[size]}", n / seconds)


PARTS: dict[str, Callable[[Bench], None]] = {
    part.__name__: part for part in (codec, start, ceilings, source, stream, triggers, defaults, kafka)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--runs", type=int, required=True)
    options = parser.parse_args()
    PARTS[options.part](Bench(options.folder, options.scale, options.runs))


if __name__ == "__main__":
    main()
