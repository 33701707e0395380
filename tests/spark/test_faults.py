"""What goes wrong while Spark reads and writes, and that it ends well or with a clear error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from faults import Faults, failed_tasks, kill, pid_of_connection
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import SendError
from penstock.spark.parcels import Packer
from penstock.spark.sink import Sender
from penstock.spark.write_options import write_options
from penstock.testing import RunningBroker, broker
from penstock.wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
FAILURES = (PySparkException, Py4JError)


@pytest.fixture
def own(topics_of: Any) -> Iterator[tuple[RunningBroker, Any]]:
    """A broker that the test may harm."""
    with broker() as running:
        yield running, topics_of(running.name_server)


@pytest.fixture
def group(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """A job group, so that the tasks of this test can be told from all others."""
    spark.sparkContext.setJobGroup(request.node.name, request.node.name)
    yield request.node.name
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None unsets


def read(spark: SparkSession, topics: Any, topic: str, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(**topics.options(topic, **options)).load()


def write(frame: DataFrame, topics: Any, topic: str, **options: str) -> None:
    given = {"nameServer": topics.name_server, "topic": topic} | options
    frame.write.format("rocketmq").options(**given).mode("append").save()


@pytest.mark.scenario(7)
def test_a_task_whose_read_fails_once_is_repeated_and_the_rows_are_exact(
    spark: SparkSession, own: tuple[RunningBroker, Any], group: str
) -> None:
    running, topics = own
    topic = topics.new(2)
    topics.send(topic, 0, [b"%d" % i for i in range(500)])
    topics.send(topic, 1, [b"%d" % i for i in range(300)])
    faults = Faults(running)
    faults.refuse(RequestCode.PULL_MESSAGE, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "on purpose", times=1)
    rows = read(spark, topics, topic).select("queueId", "queueOffset", "body").collect()
    assert sorted((row.queueId, row.queueOffset, bytes(row.body)) for row in rows) == [
        *((0, i, b"%d" % i) for i in range(500)),
        *((1, i, b"%d" % i) for i in range(300)),
    ]
    assert faults.refused == 1
    assert failed_tasks(spark, group) == 1


def test_a_broker_that_refuses_every_pull_is_named_with_queue_and_offset(
    spark: SparkSession, own: tuple[RunningBroker, Any]
) -> None:
    running, topics = own
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 9)
    Faults(running).refuse(RequestCode.PULL_MESSAGE, ResponseCode.NO_PERMISSION + 900, "not for you")
    with pytest.raises(FAILURES, match=rf"{topic}/.*/0 at offset 0: code 916 .*not for you"):
        read(spark, topics, topic).collect()


@pytest.mark.scenario(8)
def test_a_worker_killed_while_it_reads_is_replaced_and_the_rows_are_exact(
    spark: SparkSession, own: tuple[RunningBroker, Any], group: str
) -> None:
    running, topics = own
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 2000)
    frame = read(spark, topics, topic, maxPartitions="1").select("queueOffset")
    reader = Faults(running).ignore_first(RequestCode.PULL_MESSAGE)
    killer = threading.Thread(target=lambda: kill(pid_of_connection(*reader(60))))
    killer.start()
    rows = frame.collect()
    killer.join()
    assert sorted(row.queueOffset for row in rows) == list(range(2000))
    assert failed_tasks(spark, group) == 1


@pytest.mark.scenario(10)
def test_a_broker_that_is_away_for_a_while_fails_no_task(
    spark: SparkSession, own: tuple[RunningBroker, Any], group: str
) -> None:
    running, topics = own
    topic = topics.new(2)
    for queue_id in (0, 1):
        topics.send(topic, queue_id, [bytes(1000)] * 3000)
    frame = read(spark, topics, topic, columns="queueId,queueOffset", pullBatchSize="100")
    first_pull = Faults(running).ignore_first(RequestCode.PULL_MESSAGE)

    def restart() -> None:
        first_pull(60)
        running.kill()
        time.sleep(3)
        running.start()

    restarter = threading.Thread(target=restart)
    restarter.start()
    rows = frame.collect()
    restarter.join()
    assert sorted(map(tuple, rows)) == [(queue, i) for queue in (0, 1) for i in range(3000)]
    assert failed_tasks(spark, group) == 0


@pytest.mark.scenario(34)
@pytest.mark.behaviour("PIPE-3")
def test_a_broker_that_is_busy_for_two_seconds_costs_time_but_no_row_and_no_task(
    spark: SparkSession, own: tuple[RunningBroker, Any], group: str
) -> None:
    running, topics = own
    topic = topics.new(2)
    faults = Faults(running)
    faults.refuse(RequestCode.SEND_BATCH_MESSAGE, ResponseCode.SYSTEM_BUSY, "busy", seconds=2)
    write(spark.range(400).selectExpr("cast(id AS string) AS body"), topics, topic, batchMessages="50")
    assert failed_tasks(spark, group) == 0
    rows = read(spark, topics, topic).collect()
    assert sorted(int(row.body) for row in rows) == list(range(400))
    # Every pause is longer than the one before, so two seconds are few attempts.
    assert 4 <= faults.refused <= 80


def test_a_broker_whose_disk_is_full_fails_the_write_naming_topic_and_option(topics_of: Any) -> None:
    # For a broker that may use one hundredth of it every disk is full.
    with broker(settings={"diskSpaceWarningLevelRatio": "1"}) as running:
        topics = topics_of(running.name_server)
        topic = topics.new(1)
        given = {"nameServer": running.name_server, "topic": topic, "retries": "1"}
        options = write_options(given, StructType([StructField("body", StringType())]), overwrite=False)
        sender = Sender(options)
        packed = Packer(options, "A" * 20, sender.queues).pack(pa.record_batch({"body": pa.array(["x"])}))
        text = rf"for topic {topic} were not stored after 1 retries \(option retries\): .*disk is \d+% full"
        with pytest.raises(SendError, match=text):
            sender.start(packed).result()


@pytest.mark.scenario(35)
@pytest.mark.behaviour("PIPE-3")
def test_a_row_that_is_too_large_goes_to_the_dead_letters_when_asked_for(
    spark: SparkSession, topics: Any
) -> None:
    topic = topics.new(1)
    frame = spark.range(0, 3, 1, 1).selectExpr("if(id = 1, repeat('x', 4194305), 'small') AS body")
    group = f"{topic}-sink"
    write(frame, topics, topic, onOversize="dlq", producerGroup=group)
    rows = read(spark, topics, topic).collect()
    assert [bytes(row.body) for row in rows] == [b"small", b"small"]
    dead = read(spark, topics, f"%DLQ%{group}").collect()
    assert [len(row.body) for row in dead] == [1 << 20]
    assert dead[0].properties["DLQ_ORIGIN_TOPIC"] == topic
    assert dead[0].properties["originBodyBytes"] == "4194305"
    assert dead[0].msgId not in {row.msgId for row in rows}


@pytest.mark.scenario(42)
def test_columns_that_are_not_asked_for_do_not_travel(spark: SparkSession, topics: Any) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [bytes(2000)] * 1000)

    def received(frame: DataFrame) -> int:
        assert len(frame.collect()) == 1000
        plan: Any = frame._jdf.queryExecution().executedPlan()
        while not plan.metrics().contains("pythonDataReceived"):
            plan = plan.children().head()
        return int(plan.metrics().apply("pythonDataReceived").value())

    # Spark adds up this figure over the reads of a session.
    narrow, narrow_twice = (received(read(spark, topics, topic, columns="queueOffset")) for _ in range(2))
    everything = received(read(spark, topics, topic)) - narrow_twice
    assert everything > 2_000_000
    assert 0 < narrow_twice - narrow < everything / 10


@pytest.mark.scenario(30)
def test_two_reads_of_a_topic_in_one_query_have_their_own_offsets_and_groups(
    spark: SparkSession, topics: Any, tmp_path: Path
) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"%d" % i for i in range(20)])

    def side(group: str, start: str) -> DataFrame:
        options = topics.options(topic, consumerGroup=group, startingOffsets=start, columns="queueOffset")
        return spark.readStream.format("rocketmq").options(**options).load()

    name = next(iter(topics.addresses()))
    later = f'{{"{topic}":{{"{name}":{{"0":15}}}}}}'
    left, right = side("left", "earliest"), side("right", later)
    query = (
        left.join(right, "queueOffset")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        _wait_for(
            lambda: topics.group_offset(topic, "left", 0) == topics.group_offset(topic, "right", 0) == 20
        )
    finally:
        query.stop()
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.queueOffset for row in found) == list(range(15, 20))


def _wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
