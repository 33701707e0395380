"""DataFrames and streams into topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.behaviour("PIPE-3")]
Read = Callable[..., Any]
FAILURES = (PySparkException, Py4JError)


def save(frame: DataFrame, topics: Any, topic: str, **options: str) -> None:
    given = {"nameServer": topics.name_server, "topic": topic} | options
    frame.write.format("rocketmq").options(**given).mode("append").save()


def test_a_frame_is_written_and_read_back_with_everything_it_says(
    spark: SparkSession, read: Read, topics: Any
) -> None:
    topic = topics.new(3)
    frame = spark.range(2000).selectExpr(
        "concat('order-', id) AS value",
        "if(id % 2 = 0, 'paid', 'shipped') AS tags",
        "cast(id AS string) AS key",
        "cast(id AS int) AS flag",
        "map('region', 'eu', 'id', cast(id AS string)) AS properties",
    )
    save(frame, topics, topic, batchMessages="100")
    rows = read(topic).collect()
    assert len(rows) == 2000
    by_key = {int(row["keys"]): row for row in rows}
    assert sorted(by_key) == list(range(2000))
    assert all(bytes(row.body) == b"order-%d" % number for number, row in by_key.items())
    assert all(row.tags == ("paid", "shipped")[number % 2] for number, row in by_key.items())
    assert all(row.flag == number for number, row in by_key.items())
    assert all(row.properties["region"] == "eu" and row.properties["id"] == row["keys"] for row in rows)
    assert len({row.msgId for row in rows}) == 2000


@pytest.mark.scenario(32)
def test_messages_of_a_sharding_key_keep_their_order(spark: SparkSession, read: Read, topics: Any) -> None:
    topic = topics.new(4)
    for part in range(2):
        frame = spark.range(part * 500, part * 500 + 500, 1, 1)
        frame = frame.selectExpr("cast(id AS string) AS body", "concat('c', id % 9) AS shardingKey")
        save(frame, topics, topic, batchMessages="20")
    rows = (
        read(topic, columns="queueId,queueOffset,body,properties").orderBy("queueId", "queueOffset").collect()
    )
    seen: dict[str, list[int]] = {}
    for row in rows:
        seen.setdefault(row.properties["__SHARDINGKEY"], []).append(int(row.body))
    assert seen == {f"c{key}": list(range(key, 1000, 9)) for key in range(9)}


@pytest.mark.scenario(31)
def test_a_task_that_runs_again_sends_again_under_the_same_unique_keys(
    spark: SparkSession, read: Read, topics: Any, tmp_path: Path
) -> None:
    topic = topics.new(2)
    marker = tmp_path / "failed once"

    def fail_once(batches: Any) -> Any:
        yield from batches
        if not marker.exists():
            marker.touch()
            raise RuntimeError("the task dies after some of its rows were sent")

    # Rows large enough that Spark does not keep them all back until the end.
    frame = spark.range(0, 300, 1, 1).selectExpr("concat(id, repeat('x', 20000)) AS body")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        save(frame.mapInArrow(fail_once, "body string"), topics, topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    rows = read(topic, columns="msgId,body").collect()
    assert {int(bytes(row.body).rstrip(b"x")) for row in rows} == set(range(300))
    assert len(rows) > 300
    assert len({(row.msgId, bytes(row.body)) for row in rows}) == len({row.msgId for row in rows}) == 300


def test_rows_may_name_their_topic(spark: SparkSession, read: Read, topics: Any) -> None:
    first, second = topics.new(1), topics.new(1)
    frame = spark.createDataFrame([(first, "a"), (second, "b"), (first, "c")], "topic string, body string")
    frame.coalesce(1).write.format("rocketmq").option("nameServer", topics.name_server).mode("append").save()
    assert [bytes(row.body) for row in read(first).collect()] == [b"a", b"c"]
    assert [bytes(row.body) for row in read(second).collect()] == [b"b"]


def test_a_stream_is_routed_from_topic_to_topic(
    spark: SparkSession, read: Read, topics: Any, tmp_path: Path
) -> None:
    source, target = topics.new(2), topics.new(2)
    topics.send(source, 0, [b"x%d" % i for i in range(40)], b"TAGS\x01paid\x02KEYS\x01k1\x02")
    topics.send(source, 1, [b"y%d" % i for i in range(40)])
    options = topics.options(source, startingOffsets="earliest", maxOffsetsPerTrigger="50")
    stream = spark.readStream.format("rocketmq").options(**options).load()
    writer = stream.drop("topic", "queueId", "brokerName").writeStream.format("rocketmq")
    writer = writer.option("nameServer", topics.name_server).option("topic", target)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    rows = read(target).collect()
    assert len(rows) == len({row.msgId for row in rows}) == 80
    assert {bytes(row.body) for row in rows} == {b"%c%d" % (c, i) for c in b"xy" for i in range(40)}
    assert {(row.tags, row["keys"]) for row in rows} == {("paid", "k1"), (None, None)}


@pytest.mark.scenario(43)
def test_what_is_wrong_with_a_sink_is_said_before_any_task(spark: SparkSession, topics: Any) -> None:
    frame = spark.createDataFrame([(1, "x")], "id int, body string")
    with pytest.raises(FAILURES, match="column body is int"):
        save(frame.selectExpr("id AS body"), topics, topics.new(1))
    with pytest.raises(FAILURES, match="topic nowhere does not exist"):
        save(frame, topics, "nowhere")
    overwrite = (
        frame.write.format("rocketmq").options(nameServer=topics.name_server, topic="t").mode("overwrite")
    )
    with pytest.raises(FAILURES, match="cannot be overwritten"):
        overwrite.save()


@pytest.mark.scenario(35)
def test_a_row_that_is_too_large_fails_the_write_with_its_place(spark: SparkSession, topics: Any) -> None:
    frame = spark.range(1).selectExpr("repeat('x', 4194305) AS body")
    with pytest.raises(FAILURES, match="row 0 of this partition has a body of 4194305 bytes"):
        save(frame, topics, topics.new(1))
