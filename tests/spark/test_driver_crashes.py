"""Crashes at every step of a micro-batch, by the hundred: Spark's order of calls without Spark.

Source, sink and broker are real; the engine is a small model of Spark's, with its two logs, that dies and
begins again wherever the seed says. `make chaos` does the same to Spark itself, which takes hours.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.spark.batch import BatchReader
from penstock.spark.options import read_options
from penstock.spark.sink import _write
from penstock.spark.stream import StreamReader
from penstock.spark.write_options import write_options
from penstock.testing import RunningBroker, broker

CRASHES = 34
"""For each of three seeds: a hundred and two in all."""
STEPS = ("plan", "logged", "reading", "task", "writing", "task", "written", "committed", "broker")


class Killed(Exception):
    """The driver is gone; only its logs and what was sent remain."""


class Engine:
    """Micro-batches with an offset log and a commit log. Logs, table and topic survive; the rest does not."""

    def __init__(
        self, topics: Any, running: RunningBroker, source: str, target: str, dice: random.Random
    ) -> None:
        self._topics, self._running, self._source, self._target = topics, running, source, target
        self._dice = dice
        self.offset_log: list[str] = []
        self.commit_log: set[int] = set()
        self.table: dict[int, list[tuple[int, int, bytes]]] = {}
        self.crashes: Counter[str] = Counter()
        self.armed = False

    def _crash(self, step: str) -> None:
        if self.armed and self._next == step:
            self.crashes[step] += 1
            self._arm()
            raise Killed(step)

    def _arm(self) -> None:
        self._next = self._dice.choice(STEPS)

    def run(self, crashes: int) -> None:
        """Drivers, one after the other, until so many things were killed."""
        self.armed = True
        self._arm()
        number = 0
        while sum(self.crashes.values()) < crashes:
            self._topics.send(self._source, number % 3, [b"%d-%d" % (number, i) for i in range(60)])
            number += 1
            try:
                self._drive(batches=3)
            except Killed:
                continue
        self.armed = False
        self._drive(batches=1000)

    def _drive(self, batches: int) -> None:
        """One driver's life. A new reader each time, as after a restart."""
        options = self._topics.options(
            self._source,
            startingOffsets="earliest",
            maxOffsetsPerTrigger="70",
            maxPartitions="2",
            arrowBatchBytes="1000",
            pullBatchSize="16",
            routeCacheTtlMs="0",
            columns="queueId,queueOffset,body",
            **{"fetchOffset.retryIntervalMs": "50"},
        )
        reader = StreamReader(read_options(options))
        start: dict[str, Any] = reader.initialOffset()
        done = (
            len(self.offset_log) if len(self.offset_log) - 1 in self.commit_log else len(self.offset_log) - 1
        )
        if done > 0:
            start = json.loads(self.offset_log[done - 1])
        for batch in range(max(0, done), max(0, done) + batches):
            if batch == len(self.offset_log):
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                self._crash("plan")
                if json.dumps(end) == json.dumps(start):
                    return
                self.offset_log.append(json.dumps(end))
                self._crash("logged")
                if batch:
                    reader.commit(start)
            end = json.loads(self.offset_log[batch])
            self._run_batch(reader, batch, start, end)
            self.commit_log.add(batch)
            self._crash("committed")
            start = end

    def _run_batch(
        self, reader: StreamReader, batch: int, start: dict[str, Any], end: dict[str, Any]
    ) -> None:
        rows: list[tuple[int, int, bytes]] = []
        for number, partition in enumerate(reader.partitions(start, end)):
            if self.armed and self._next == "broker":
                self.crashes["broker"] += 1
                self._arm()
                self._running.kill()
                self._running.start()
            read = self._attempts(lambda p=partition: list(self._dying(reader.read(p), "reading")))
            rows += [tuple(row.values()) for part in read for row in part.to_pylist()]
            self._attempts(lambda r=read, n=number: self._write(r, batch, n))
        self._crash("written")
        self.table.setdefault(batch, rows)  # as the log of Spark's file sink: a batch is there once

    def _attempts(self, work: Any) -> Any:
        """A task that dies runs again; with its driver it does not."""
        while True:
            try:
                return work()
            except RuntimeError:
                continue

    def _dying(self, batches: Iterator[pa.RecordBatch], step: str) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 0:
                self._crash(step)
                if self.armed and self._next == "task":
                    self.crashes["task"] += 1
                    self._arm()
                    raise RuntimeError("the task dies in the middle")

    def _write(self, read: list[pa.RecordBatch], batch: int, partition: int) -> None:
        schema = StructType([StructField("body", BinaryType())])
        given = {"nameServer": self._topics.name_server, "topic": self._target, "batchMessages": "10"}
        options = write_options(given | {"retries": "8"}, schema, overwrite=False)

        def bodies() -> Iterator[pa.RecordBatch]:
            for part in read:
                texts = [
                    b"%d/%d/%b" % (row["queueId"], row["queueOffset"], row["body"])
                    for row in part.to_pylist()
                ]
                yield pa.record_batch({"body": pa.array(texts, pa.binary())})

        _write(self._dying(bodies(), "writing"), options, f"query/{batch}/{partition}")


@pytest.fixture
def own(topics_of: Any) -> Iterator[tuple[RunningBroker, Any]]:
    with broker() as running:
        yield running, topics_of(running.name_server)


def rows_of(topics: Any, topic: str) -> list[dict[str, Any]]:
    reader = BatchReader(read_options(topics.options(topic, columns="queueId,queueOffset,body,msgId")))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.scenario(4, 5, 6, 7, 31)
@pytest.mark.behaviour("PIPE-2", "PIPE-3")
@pytest.mark.parametrize("seed", range(3))
def test_crashes_at_any_step_lose_nothing_and_repeat_only_under_the_same_unique_key(
    own: tuple[RunningBroker, Any], seed: int
) -> None:
    running, topics = own
    source, target = topics.new(3), topics.new(2)
    engine = Engine(topics, running, source, target, random.Random(seed))
    engine.run(CRASHES)
    assert engine.crashes.keys() == set(STEPS)
    sent = {(row["queueId"], row["queueOffset"]): row["body"] for row in rows_of(topics, source)}
    table = [row for rows in engine.table.values() for row in rows]
    assert sorted(table) == sorted((*place, body) for place, body in sent.items())
    keys: dict[bytes, set[str]] = {}
    copies = rows_of(topics, target)
    for row in copies:
        keys.setdefault(row["body"], set()).add(row["msgId"])
    assert keys.keys() == {b"%d/%d/%b" % (*place, body) for place, body in sent.items()}
    assert {len(ids) for ids in keys.values()} == {1}
    assert len({row["msgId"] for row in copies}) == len(sent) < len(copies)
