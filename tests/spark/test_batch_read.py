"""A topic as a batch DataFrame."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
Read = Callable[..., Any]
FAILURES = (PySparkException, Py4JError)


@pytest.fixture
def filled(topics: Any) -> str:
    """Three queues with 200, 70 and no messages; the second half of the first is tagged."""
    topic: str = topics.new(3)
    topics.send(topic, 0, [b"a%d" % i for i in range(100)], b"TAGS\x01paid\x02KEYS\x01k\x02")
    topics.send(topic, 0, [b"a%d" % i for i in range(100, 200)], b"TAGS\x01shipped\x02")
    topics.send(topic, 1, [b"b%d" % i for i in range(70)])
    return topic


def broker_of(topics: Any, topic: str) -> str:
    return str(next(iter(topics.addresses_of(topic))))


@pytest.mark.behaviour("PIPE-1")
@pytest.mark.scenario(1)
def test_every_message_of_every_queue_appears_once_with_its_body(
    read: Read, filled: str, topics: Any
) -> None:
    rows = (
        read(filled).select("topic", "brokerName", "queueId", "queueOffset", "body", "tags", "keys").collect()
    )
    place = {(row.queueId, row.queueOffset): bytes(row.body) for row in rows}
    assert len(rows) == len(place) == 270
    assert place == {(0, i): b"a%d" % i for i in range(200)} | {(1, i): b"b%d" % i for i in range(70)}
    assert {(row.topic, row.brokerName) for row in rows} == {(filled, broker_of(topics, filled))}
    tagged = {(row.tags, row["keys"]) for row in rows}
    assert tagged == {("paid", "k"), ("shipped", None), (None, None)}


@pytest.mark.behaviour("PIPE-1")
def test_sql_reads_a_topic_through_a_view(spark: SparkSession, filled: str, topics: Any) -> None:
    options = ", ".join(f"{name} '{value}'" for name, value in topics.options(filled).items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW filled USING rocketmq OPTIONS ({options})")
    found = spark.sql("SELECT tags, count(*) AS n FROM filled GROUP BY tags ORDER BY tags").collect()
    assert [(row.tags, row.n) for row in found] == [(None, 70), ("paid", 100), ("shipped", 100)]


@pytest.mark.scenario(2)
def test_an_empty_topic_gives_no_rows_in_one_task(read: Read, topics: Any) -> None:
    frame = read(topics.new(4))
    assert frame.count() == 0
    assert frame.rdd.getNumPartitions() == 1


@pytest.mark.scenario(3)
def test_a_topic_that_does_not_exist_is_named_with_the_name_server_when_loading(
    read: Read, topics: Any
) -> None:
    with pytest.raises(FAILURES, match=f"topic nowhere does not exist on name server {topics.name_server}"):
        read("nowhere")


def test_a_name_server_that_is_down_is_named_when_loading(spark: SparkSession) -> None:
    options = {"nameServer": "127.0.0.1:1", "subscribe": "t", "fetchOffset.numRetries": "0"}
    with pytest.raises(FAILURES, match=r"127\.0\.0\.1:1"):
        spark.read.format("rocketmq").options(**options).load()


@pytest.mark.scenario(43)
def test_a_wrong_option_fails_when_loading(read: Read, filled: str) -> None:
    with pytest.raises(FAILURES, match="option minPartitions='many'"):
        read(filled, minPartitions="many")


def test_offsets_choose_what_is_read(read: Read, filled: str, topics: Any) -> None:
    broker = broker_of(topics, filled)
    start = json.dumps({filled: {broker: {"0": 150, "1": -2, "2": -2}}})
    end = json.dumps({filled: {broker: {"0": -1, "1": 5, "2": 0}}})
    rows = read(filled, startingOffsets=start, endingOffsets=end, columns="queueId,queueOffset").collect()
    assert sorted(map(tuple, rows)) == [*((0, i) for i in range(150, 200)), *((1, i) for i in range(5))]
    with pytest.raises(FAILURES, match=rf"{filled}/{broker}/0: offset 900 was asked for.*ends at 200"):
        read(filled, startingOffsets=start.replace("150", "900")).collect()
    with pytest.raises(FAILURES, match=f"not for {filled}/{broker}/2"):
        read(filled, startingOffsets=json.dumps({filled: {broker: {"0": 1, "1": 2}}})).collect()


def test_assigned_queues_are_the_only_ones_read(spark: SparkSession, filled: str, topics: Any) -> None:
    options = topics.options(filled, assign=json.dumps({filled: {broker_of(topics, filled): [1]}}))
    del options["subscribe"]
    assert spark.read.format("rocketmq").options(**options).load().count() == 70


def test_a_pattern_reads_all_topics_that_match(spark: SparkSession, topics: Any) -> None:
    first, second = topics.new(1), topics.new(1)
    topics.send(first, 0, [b"x"])
    topics.send(second, 0, [b"y"])
    options = topics.options("", subscribePattern=f"{first}|{second}", columns="topic,body")
    del options["subscribe"]
    rows = spark.read.format("rocketmq").options(**options).load().collect()
    assert sorted((row.topic, bytes(row.body)) for row in rows) == sorted([(first, b"x"), (second, b"y")])


def test_a_time_chooses_where_to_start(read: Read, topics: Any) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"old"] * 3)
    time.sleep(0.05)
    middle = time.time_ns() // 1_000_000
    time.sleep(0.05)
    topics.send(topic, 0, [b"new"] * 4)
    assert {bytes(row.body) for row in read(topic, startingTimestamp=str(middle)).collect()} == {b"new"}
    assert read(topic, endingTimestamp=str(middle)).count() == 3
    far = str(2 * middle)
    assert read(topic, startingTimestamp=far, startingOffsetsByTimestampStrategy="latest").count() == 0
    with pytest.raises(FAILURES, match="startingOffsetsByTimestampStrategy"):
        read(topic, startingTimestamp=far).count()


@pytest.mark.scenario(18)
def test_a_tag_filter_passes_over_gaps_of_any_length(read: Read, topics: Any) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"first"], b"TAGS\x01a\x02")
    topics.send(topic, 0, [b"other"] * 3000, b"TAGS\x01b\x02")
    topics.send(topic, 0, [b"last"], b"TAGS\x01c\x02")
    rows = read(topic, subExpression="a || c", columns="queueOffset,body").collect()
    assert [(row.queueOffset, bytes(row.body)) for row in rows] == [(0, b"first"), (3001, b"last")]
    assert read(topic, subExpression="none").count() == 0


@pytest.mark.scenario(20)
def test_large_ranges_are_split_and_nothing_is_read_twice(read: Read, topics: Any) -> None:
    topic = topics.new(2)
    for queue_id in range(2):
        topics.send(topic, queue_id, [b"%d" % i for i in range(2500)])
    split = read(topic, minPartitions="8", pullBatchSize="100", columns="queueId,queueOffset")
    assert split.rdd.getNumPartitions() == 8
    assert split.distinct().count() == split.count() == 5000
    limited = read(topic, maxRecordsPerPartition="1000", columns="queueOffset")
    assert limited.rdd.getNumPartitions() == 6
    assert limited.count() == 5000


@pytest.mark.scenario(21)
def test_many_small_queues_share_a_few_tasks(read: Read, topics: Any) -> None:
    topic = topics.new(60)
    for queue_id in range(60):
        topics.send(topic, queue_id, [b"%d" % queue_id])
    frame = read(topic, maxPartitions="3", columns="queueId")
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(row.queueId for row in frame.collect()) == list(range(60))


@pytest.mark.scenario(29)
def test_large_and_empty_bodies_arrive_in_batches_of_the_size_asked_for(read: Read, topics: Any) -> None:
    topic = topics.new(1)
    sizes = [0, 1 << 20, 3, 0, 2 << 20, 1 << 20, 5]
    for size in sizes:
        topics.send(topic, 0, [b"z" * size])
    rows = read(topic, arrowBatchBytes="1m", pullInflight="2", columns="body").collect()
    assert [len(row.body) for row in rows] == sizes


@pytest.mark.scenario(30)
def test_a_topic_can_be_joined_with_itself(read: Read, filled: str) -> None:
    left = read(filled, columns="queueId,queueOffset")
    right = read(filled, columns="queueId,queueOffset,body")
    assert left.join(right, ["queueId", "queueOffset"]).count() == 270


@pytest.mark.scenario(42)
def test_fewer_columns_make_a_smaller_schema(read: Read, filled: str) -> None:
    assert read(filled, columns="queueOffset").columns == ["queueOffset"]
    assert dict(read(filled, includeProperties="raw").dtypes)["properties"] == "string"
    assert "properties" not in read(filled, includeProperties="none").columns


def test_stopping_early_is_clean(read: Read, filled: str) -> None:
    assert len(read(filled).limit(3).collect()) == 3
    assert read(filled).count() == 270
