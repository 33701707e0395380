"""Kills tasks, workers, drivers and brokers at random moments, and counts rows at the end.

python tests/spark/kill_loop.py --kills 100 --seed 7

The seed decides what is killed and when. Nothing may be lost; Parquet must have every message exactly once;
in the topic a message may be there again only under the same unique key.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from faults import children

from penstock.admin import AdminClient, TopicSettings
from penstock.message.batch import encode_batch
from penstock.spark.batch import BatchReader
from penstock.spark.brokers import Brokers, brokers
from penstock.spark.options import read_options
from penstock.wire.codes import RequestCode
from penstock.wire.headers import SendHeaderV2

HERE = Path(__file__).resolve().parent
KINDS = ("task", "worker", "driver", "broker")
WEIGHTS = (4, 3, 1, 2)
QUEUES = 4
START_ATTEMPTS = 5
CLUSTER = "local-cluster[2,1,512]"
AHEAD = 2_000
"""Messages that wait for the slower query, five batches of them."""


@dataclass
class Outcome:
    """What a loop did and what was there at the end."""

    killed: collections.Counter[str] = field(default_factory=collections.Counter)
    sent: int = 0
    in_parquet: int = 0
    in_topic: int = 0
    repeated_in_topic: int = 0
    driver_starts: int = 0


class Servers:
    """`penstock serve`, killed and started again on the same data and ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = ("0", "0")
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "penstock.cli", "serve", "--data", str(self._folder / "data")]
        command += ["--namesrv-port", self._ports[0], "--broker-port", self._ports[1]]
        command += ["--ready-file", str(ready), "--log-level", "error"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _wait_for(ready.exists, 60, "the broker does not start")
        facts = json.loads(ready.read_text())
        self.name_server: str = facts["name_server"]
        self.address: str = facts["brokers"][0]["address"]
        self._ports = (self.name_server.rpartition(":")[2], self.address.rpartition(":")[2])

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class Driver:
    """The process of pump.py and everything below it."""

    def __init__(self, name_server: str, source: str, target: str, folder: Path, master: str) -> None:
        self.starts = 0
        self._log = folder / "driver.log"
        self._started = folder / "started"
        self._command = [sys.executable, str(HERE / "pump.py"), "--name-server", name_server]
        self._command += ["--source", source, "--target", target, "--folder", str(folder), "--master", master]
        self.start()

    def start(self) -> None:
        """Again and again, as a supervisor does: a driver may find the broker gone, or a machine too slow."""
        for _ in range(START_ATTEMPTS):
            self.starts += 1
            self._started.unlink(missing_ok=True)
            with open(self._log, "ab") as log:
                self.process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
            while not self.ended():
                if self._started.exists():
                    return
                time.sleep(0.1)
        raise AssertionError(f"the driver does not start: {self._log.read_text()[-3000:]}")

    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """The driver itself; its executors see that and end, or are ended here."""
        below = children(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in below:
            _kill(pid)

    def executors(self) -> list[int]:
        return sorted(pid for pid, text in children(self.process.pid).items() if "ExecutorBackend" in text)

    def python_workers(self) -> list[int]:
        """Workers that run tasks: forked by the daemon of an executor, or of the driver of a local master."""
        found = set()
        for daemon, text in children(self.process.pid).items():
            if text.rstrip().endswith("pyspark.daemon pyspark.worker"):
                found |= children(daemon).keys()
        return sorted(found)


class Producer(threading.Thread):
    """Sends numbered messages until it is stopped, over whatever happens to the broker; while `may_send`
    says no, it waits."""

    def __init__(
        self,
        connection: Brokers,
        address: str,
        topic: str,
        pause_s: float,
        may_send: Callable[[int], bool] = lambda acknowledged: True,
    ) -> None:
        super().__init__(daemon=True)
        self._connection, self._address, self._topic, self._pause_s = connection, address, topic, pause_s
        self._may_send = may_send
        self._stopped = threading.Event()
        self.acknowledged: set[bytes] = set()
        self._number = 0

    def run(self) -> None:
        while not self._stopped.is_set():
            if not self._may_send(len(self.acknowledged)):
                self._stopped.wait(0.2)
                continue
            bodies = [b"%d" % (self._number + i) for i in range(40)]
            header = SendHeaderV2(
                producer_group="producer",
                topic=self._topic,
                default_topic="TBW102",
                default_topic_queue_nums=QUEUES,
                queue_id=self._number // 40 % QUEUES,
                sys_flag=0,
                born_timestamp=time.time_ns() // 1_000_000,
                flag=0,
                properties="WAIT\x01true\x02",
                batch=True,
            )
            body = encode_batch((0, body, b"") for body in bodies)
            send = self._connection.api.send(
                self._address, RequestCode.SEND_BATCH_MESSAGE, header, body, 3_000
            )
            try:
                if self._connection.run(send).code == 0:
                    self.acknowledged.update(bodies)
            except Exception:  # whatever it was, these messages may or may not be there
                time.sleep(0.1)
            self._number += 40
            self._stopped.wait(self._pause_s)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def run(
    kills: Sequence[str] | int,
    seed: int,
    *,
    master: str = CLUSTER,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """`kills` says what to kill, or how many times something."""
    dice = random.Random(seed)
    plan = dice.choices(KINDS, WEIGHTS, k=kills) if isinstance(kills, int) else list(kills)
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="kill-loop-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        servers = Servers(folder)
        try:
            asyncio.run(_make_topics(servers.name_server))
            acknowledged = _run(plan, dice, folder, servers, master, outcome, say)
            _judge(outcome, folder, servers.name_server, acknowledged)
        finally:
            servers.kill()
    return outcome


def _run(
    plan: Sequence[str],
    dice: random.Random,
    folder: Path,
    servers: Servers,
    master: str,
    outcome: Outcome,
    say: Callable[[str], None],
) -> set[bytes]:
    """Produces, kills, and waits for both outputs; gives what the broker said it had stored."""
    # Always some batches ahead of the queries, so that a kill hits them at work; not more, or what a slow
    # machine leaves behind takes as long as the kills did.
    producer = Producer(
        brokers(servers.name_server),
        servers.address,
        "source",
        pause_s=0.05,
        may_send=lambda acknowledged: acknowledged - min(_planned(folder, 0), _planned(folder, 1)) < AHEAD,
    )
    producer.start()
    driver = Driver(servers.name_server, "source", "target", folder, master)
    try:
        for number, kind in enumerate(plan):
            time.sleep(dice.uniform(0.2, 3.0))
            if driver.ended():
                say("the driver had given up: started again")
                driver.start()
            _strike(kind, dice, driver, servers)
            outcome.killed[kind] += 1
            say(f"{number + 1}/{len(plan)}: killed a {kind}")
        producer.stop()
        _drain(driver, folder, servers.name_server, say)
    finally:
        producer.stop()
        driver.kill()
        outcome.driver_starts = driver.starts
    return producer.acknowledged


async def _make_topics(name_server: str) -> None:
    async with AdminClient(name_server) as admin:
        for topic in ("source", "target"):
            await admin.create_topic(topic, TopicSettings(read_queues=QUEUES, write_queues=QUEUES))


@dataclass
class Pressure:
    """Samples of a run with more messages than it can take."""

    resident_mb: list[float] = field(default_factory=list)
    lag: list[int] = field(default_factory=list)


def under_pressure(seconds: float) -> Pressure:
    """A producer without pause against a query with a limit: memory of all its processes, and the lag."""
    found = Pressure()
    with tempfile.TemporaryDirectory(prefix="pressure-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        servers = Servers(folder)
        asyncio.run(_make_topics(servers.name_server))
        producer = Producer(brokers(servers.name_server), servers.address, "source", pause_s=0.005)
        producer.start()
        driver = Driver(servers.name_server, "source", "target", folder, "local[2,4]")
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(max(1.0, seconds / 60))
                assert not driver.ended()
                pids = [driver.process.pid, *children(driver.process.pid)]
                found.resident_mb.append(sum(_resident_mb(pid) for pid in pids))
                found.lag.append(len(producer.acknowledged) - _planned(folder, 0))
        finally:
            producer.stop()
            driver.kill()
            servers.kill()
    return found


def _resident_mb(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0.0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _planned(folder: Path, query: int) -> int:
    """Messages up to the end of the newest batch of a query."""
    log = folder / f"checkpoint-{query}" / "offsets"
    batches = [int(entry.name) for entry in log.iterdir() if entry.name.isdecimal()] if log.exists() else []
    if not batches:
        return 0
    return sum(json.loads((log / str(max(batches))).read_text().splitlines()[2])["q"].values())


def _strike(kind: str, dice: random.Random, driver: Driver, servers: Servers) -> None:
    """Kills something of the kind and brings back what does not come back by itself."""
    if kind in ("task", "worker"):
        find = driver.python_workers if kind == "task" else driver.executors
        deadline = time.monotonic() + 600
        while not (victims := find()):  # Spark may be starting them anew just now
            if driver.ended():
                driver.start()
            assert time.monotonic() < deadline, f"there is no {kind} to kill"
            time.sleep(0.1)
        _kill(dice.choice(victims))
    elif kind == "driver":
        driver.kill()
        driver.start()
    else:
        servers.kill()
        time.sleep(dice.uniform(0.0, 2.0))
        servers.start()


def _drain(driver: Driver, folder: Path, name_server: str, say: Callable[[str], None]) -> None:
    """Waits until both outputs have everything that is in the source."""
    wanted = {(row["queueId"], row["queueOffset"]) for row in _rows(name_server, "source")}
    deadline = time.monotonic() + 600
    while True:
        parquet = {(queue, offset) for queue, offset, _ in _parquet_rows(folder)}
        if wanted <= parquet and wanted <= {_origin(row["body"])[:2] for row in _rows(name_server, "target")}:
            return
        assert time.monotonic() < deadline, f"{len(wanted - parquet)} rows are missing in Parquet"
        if driver.ended():
            say("the driver had given up: started again")
            driver.start()
        time.sleep(1)


def _judge(outcome: Outcome, folder: Path, name_server: str, acknowledged: set[bytes]) -> None:
    source = {(row["queueId"], row["queueOffset"]): row["body"] for row in _rows(name_server, "source")}
    outcome.sent = len(source)
    assert acknowledged <= set(source.values()), "the broker lost acknowledged messages"
    parquet = _parquet_rows(folder)
    outcome.in_parquet = len(parquet)
    assert sorted((queue, offset) for queue, offset, _ in parquet) == sorted(source), (
        "Parquet has not every message exactly once"
    )
    assert all(source[queue, offset] == body for queue, offset, body in parquet)
    target = _rows(name_server, "target")
    outcome.in_topic = len(target)
    keys: dict[tuple[int, int], set[str]] = {}
    for row in target:
        queue, offset, body = _origin(row["body"])
        assert source[queue, offset] == body
        keys.setdefault((queue, offset), set()).add(row["msgId"])
    assert keys.keys() == source.keys(), "messages are missing in the topic"
    assert all(len(ids) == 1 for ids in keys.values()), "a repeated message has another unique key"
    assert len({key for ids in keys.values() for key in ids}) == len(source), "two messages share a key"
    outcome.repeated_in_topic = len(target) - len(source)


def _origin(body: bytes) -> tuple[int, int, bytes]:
    queue, offset, rest = body.split(b"/", 2)
    return int(queue), int(offset), rest


def _rows(name_server: str, topic: str) -> list[dict[str, Any]]:
    options = read_options(
        {"nameServer": name_server, "subscribe": topic, "columns": "queueId,queueOffset,body,msgId"}
    )
    reader = BatchReader(options)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def _parquet_rows(folder: Path) -> list[tuple[int, int, bytes]]:
    """What a reader of the table sees: only files that the sink's own log lists."""
    return [row for path in _listed_files(folder / "parquet" / "_spark_metadata") for row in _file_rows(path)]


def _listed_files(log: Path) -> set[str]:
    """The newest entry with everything before it put together, and those after that. Spark removes older
    ones while this runs."""
    while True:
        names = {entry.name for entry in log.iterdir()} if log.exists() else set()
        numbers = {int(name.removesuffix(".compact")): name for name in sorted(names) if name[0] != "."}
        newest = max((n for n, name in numbers.items() if name.endswith(".compact")), default=0)
        try:
            texts = [(log / name).read_text() for n, name in numbers.items() if n >= newest]
        except FileNotFoundError:
            continue
        lines = [line for text in texts for line in text.splitlines()[1:]]
        return {json.loads(line)["path"].removeprefix("file://") for line in lines}


@functools.cache
def _file_rows(path: str) -> list[tuple[int, int, bytes]]:
    columns = ["queueId", "queueOffset", "body"]
    table = pq.read_table(path, columns=columns)  # type: ignore[no-untyped-call]
    return [tuple(row.values()) for row in table.to_pylist()]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it was quicker


def _wait_for(condition: Callable[[], bool], timeout_s: float, problem: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, problem
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--master", default=CLUSTER)
    parser.add_argument("--kinds", default=",".join(KINDS), help="what to kill")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    print(f"seed {seed}", flush=True)
    dice = random.Random(seed)
    weights = [WEIGHTS[KINDS.index(kind)] for kind in options.kinds.split(",")]
    plan = dice.choices(options.kinds.split(","), weights, k=options.kills)
    outcome = run(plan, seed, master=options.master, say=lambda text: print(text, flush=True))
    print(outcome)


if __name__ == "__main__":
    main()
