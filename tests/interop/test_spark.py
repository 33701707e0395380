"""The Spark source and sink against the real Apache RocketMQ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apache
import pytest

from penstock import Message, sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
SUITE = ("test_batch_read.py", "test_stream.py", "test_stream_offsets.py", "test_sink.py")
LARGE = {"maxMessageSize": 5 << 20, "mappedFileSizeCommitLog": 16 << 20, "enablePropertyFilter": "true"}


@pytest.mark.behaviour("PIPE-1", "PIPE-2", "PIPE-3", "PIPE-5")
def test_the_scenarios_of_source_and_sink_hold_on_apache_too(tmp_path: Path) -> None:
    with apache.cluster(brokers=2, settings=LARGE) as cluster:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            + [str(ROOT / "tests" / "spark" / name) for name in SUITE],
            env=os.environ | {"PENSTOCK_TEST_NAME_SERVER": cluster.name_server},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
    print(done.stdout[-2000:])
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    from penstock.spark import session

    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    config = {"spark.driver.extraJavaOptions": java, "spark.log.level": "ERROR"}
    started = session("interop", master="local[2,4]", memory="700m", config=config)
    yield started
    started.stop()


class Feed(threading.Thread):
    """Sends numbered messages one by one; those of a broker that is down go to the other one."""

    def __init__(self, name_server: str, first: int = 0) -> None:
        super().__init__(daemon=True)
        self._name_server, self._first = name_server, first
        self._stopped = threading.Event()
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        number = self._first
        with sync.Producer(self._name_server, group="feed") as producer:
            while not self._stopped.wait(0.005):
                body = b"%d" % number
                try:
                    producer.send(Message("orders", body))
                    self.acknowledged.append(body)
                except Exception:  # whatever it was, this message may or may not be there
                    time.sleep(0.1)
                number += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


@pytest.mark.scenario(4, 10, 11)
@pytest.mark.behaviour("PIPE-2", "PIPE-3", "PIPE-5")
def test_a_broker_of_two_killed_and_restarted_under_a_stream_costs_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with apache.cluster(brokers=2) as cluster:
        for topic in ("orders", "copies"):
            _make_topic(cluster, topic)
        feed = Feed(cluster.name_server)
        feed.start()
        feeds = [feed]
        options = {
            "nameServer": cluster.name_server,
            "subscribe": "orders",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "300",
            "pullTimeoutMs": "120000",
            "fetchOffset.numRetries": "120",
            "routeCacheTtlMs": "1000",
            "consumerGroup": "spark",
        }
        stream = spark.readStream.format("rocketmq").options(**options).load()
        archive = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        copies = (
            stream.selectExpr("concat(brokerName, '/', queueId, '/', queueOffset) AS body")
            .writeStream.format("rocketmq")
            .options(nameServer=cluster.name_server, topic="copies", retries="20")
        )
        queries = [
            writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{number}")).start()
            for number, writer in enumerate((archive, copies))
        ]
        try:
            _wait_for(lambda: all(q.lastProgress and q.lastProgress.batchId > 2 for q in queries), queries)
            # In the middle of batches: what they planned to read there, they wait for.
            victim = cluster.brokers[0]
            victim.kill()
            sent = len(feed.acknowledged)
            _wait_for(lambda: len(feed.acknowledged) > sent + 100, queries)
            cluster.start_broker(victim)
            _wait_for(lambda: len(feed.acknowledged) > sent + 500, queries)
            feed.stop()
            _catch_up(queries)
            # Between batches: the other broker's queues go on while this one is down.
            victim.kill()
            seen = [q.lastProgress.batchId for q in queries]
            later = Feed(cluster.name_server, first=1_000_000)
            later.start()
            feeds.append(later)
            for query, batch in zip(queries, seen, strict=True):
                _wait_for(lambda q=query, b=batch: q.lastProgress.batchId > b + 1, queries)
            cluster.start_broker(victim)
            sent = len(later.acknowledged)
            _wait_for(lambda: len(later.acknowledged) > sent + 300, queries)
            later.stop()
            _catch_up(queries)
        finally:
            for running in feeds:
                running.stop()
            for query in queries:
                query.stop()
        reader = spark.read.format("rocketmq").option("nameServer", cluster.name_server)
        whole = reader.option("subscribe", "orders").load().collect()
        there = {(r.brokerName, r.queueId, r.queueOffset): bytes(r.body) for r in whole}
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        assert {name for name, _, _ in there} == {"broker-a", "broker-b"}
        assert Counter((r.brokerName, r.queueId, r.queueOffset) for r in rows) == Counter(there.keys())
        assert {body for running in feeds for body in running.acknowledged} <= set(there.values())
        keys: dict[bytes, set[str]] = {}
        for row in reader.option("subscribe", "copies").load().collect():
            keys.setdefault(bytes(row.body), set()).add(row.msgId)
        assert keys.keys() == {f"{name}/{queue}/{offset}".encode() for name, queue, offset in there}
        assert all(len(ids) == 1 for ids in keys.values())


def _catch_up(queries: list[Any]) -> None:
    for query in queries:
        query.processAllAvailable()
        _wait_for(lambda q=query: _lag(q) == 0, queries)


def _lag(query: Any) -> int:
    """Messages between where the query stands and the end of its topic, by its own report."""
    progress = query.lastProgress
    if progress is None:
        return 1
    source = progress.sources[0]
    end, latest = json.loads(source.endOffset)["q"], json.loads(source.latestOffset)["q"]
    return sum(max(0, latest[queue] - end.get(queue, 0)) for queue in latest)


def _make_topic(cluster: apache.Cluster, topic: str) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    for broker in cluster.brokers:
        header, _ = apache.call(broker.address, 17, fields)
        assert header["code"] == 0, header
    deadline = time.monotonic() + 60
    while True:
        header, body = apache.call(cluster.name_server, 105, {"topic": topic})
        if header["code"] == 0 and all(broker.address.encode() in body for broker in cluster.brokers):
            return
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _wait_for(condition: Any, queries: list[Any], timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        for query in queries:
            assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.2)
