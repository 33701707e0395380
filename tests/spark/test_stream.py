"""A topic as a stream, and its restart."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.behaviour("PIPE-1")]
Start = Callable[..., "StreamingQuery"]


@pytest.fixture
def start(spark: SparkSession, topics: Any, tmp_path: Path) -> Start:
    """A query from a topic to Parquet files, always with the same checkpoint."""

    def begin(topic: str, trigger: dict[str, Any], **options: str) -> StreamingQuery:
        given = {"startingOffsets": "earliest"} | options
        stream = spark.readStream.format("rocketmq").options(**topics.options(topic, **given)).load()
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(**trigger).start()

    return begin


def run(start: Start, topic: str, trigger: dict[str, Any], **options: str) -> list[int]:
    """Rows of each batch of a run to its end."""
    query = start(topic, trigger, **options)
    assert query.awaitTermination(60)
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def places(spark: SparkSession, tmp_path: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(tmp_path / "out")).select("queueId", "queueOffset").collect()
    return sorted((row.queueId, row.queueOffset) for row in rows)


AVAILABLE = {"availableNow": True}


@pytest.mark.behaviour("PIPE-2")
@pytest.mark.scenario(4, 23)
def test_a_restarted_stream_goes_on_where_it_ended_with_no_gap_and_no_repeat(
    start: Start, spark: SparkSession, topics: Any, tmp_path: Path
) -> None:
    topic = topics.new(2)
    topics.send(topic, 0, [b"x"] * 50)
    topics.send(topic, 1, [b"y"] * 30)
    assert run(start, topic, AVAILABLE, maxOffsetsPerTrigger="40") == [40, 40]
    topics.send(topic, 1, [b"y"] * 25)
    assert run(start, topic, AVAILABLE, maxOffsetsPerTrigger="40") == [25]
    assert run(start, topic, AVAILABLE) == []
    assert places(spark, tmp_path) == [*((0, i) for i in range(50)), *((1, i) for i in range(55))]


@pytest.mark.behaviour("PIPE-2")
@pytest.mark.scenario(6)
def test_a_batch_that_was_not_marked_done_is_read_again_with_the_same_range(
    start: Start, spark: SparkSession, topics: Any, tmp_path: Path
) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 20)
    assert run(start, topic, AVAILABLE) == [20]
    # As after a crash between the sink's commit and Spark's own.
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "out")
    topics.send(topic, 0, [b"new"] * 5)
    assert run(start, topic, AVAILABLE) == [20, 5]
    assert places(spark, tmp_path) == [(0, i) for i in range(25)]


@pytest.mark.scenario(24)
def test_a_single_trigger_reads_everything_whatever_the_limit(start: Start, topics: Any) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 30)
    assert run(start, topic, {"once": True}, maxOffsetsPerTrigger="7") == [30]


@pytest.mark.scenario(2, 26)
def test_a_running_stream_follows_the_topic_and_its_group_has_no_lag(
    start: Start, spark: SparkSession, topics: Any, tmp_path: Path
) -> None:
    topic = topics.new(1)
    query = start(topic, {"processingTime": "100 milliseconds"}, consumerGroup="follow")
    try:
        query.processAllAvailable()
        topics.send(topic, 0, [b"x"] * 12)
        query.processAllAvailable()
        assert places(spark, tmp_path) == [(0, i) for i in range(12)]
        assert topics.group_offset(topic, "follow", 0) == 12
        batches = query.lastProgress.batchId if query.lastProgress else None
        query.processAllAvailable()
        assert batches == (query.lastProgress.batchId if query.lastProgress else None)
    finally:
        query.stop()
