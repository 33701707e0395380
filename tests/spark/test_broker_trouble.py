"""Brokers that go away, forget or come back with less, seen by the reader of a stream; no Spark session."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import Faults
from pyspark.sql.types import StructType

from penstock.errors import TopicNotFound
from penstock.message.queue import MessageQueue
from penstock.spark.batch import RangesPartition
from penstock.spark.cluster import DataLossError
from penstock.spark.offsets import parse_offset
from penstock.spark.options import read_options
from penstock.spark.sink import Sender
from penstock.spark.stream import StreamReader
from penstock.spark.write_options import write_options
from penstock.testing import RunningBroker, broker
from penstock.wire.codes import RequestCode

Offset = dict[str, Any]
QUICK = {"routeCacheTtlMs": "0", "fetchOffset.numRetries": "40", "fetchOffset.retryIntervalMs": "100"}


def stream(topics: Any, topic: str, **options: str) -> StreamReader:
    return StreamReader(read_options(topics.options(topic, **QUICK | options)))


def latest(reader: StreamReader, start: Offset) -> Offset:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def read(reader: StreamReader, start: Offset, end: Offset) -> list[tuple[str, int]]:
    """Broker and offset of every message of a batch."""
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            columns = (batch.column("brokerName").to_pylist(), batch.column("queueOffset").to_pylist())
            found += list(zip(*columns, strict=True))
    return sorted(found)


def offsets(offset: Offset) -> dict[str, int]:
    """Next offset by broker, for topics with one queue."""
    return {queue.broker_name: next_ for queue, next_ in parse_offset(offset).queues.items()}


@pytest.fixture
def own(topics_of: Any) -> Iterator[tuple[RunningBroker, Any]]:
    with broker(settings={"mappedFileSizeCommitLog": str(1 << 20)}) as running:
        yield running, topics_of(running.name_server)


class Pair:
    """Two brokers under one name server, each a process of its own that can be killed and started again."""

    def __init__(self, start: Callable[..., Any], folder: Path, topics_of: Callable[[str], Any]) -> None:
        self._start, self._folder = start, folder
        self.name_server: str = start("namesrv").name_server
        self._running: dict[str, Any] = {}
        self._ports: dict[str, str] = {}
        for name in ("a", "b"):
            self.start(name)
        self.topics = topics_of(self.name_server)
        deadline = time.monotonic() + 20
        while set(self.topics.addresses()) != {"a", "b"}:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def start(self, name: str) -> None:
        port = self._ports.get(name, "0")
        arguments = ("--data", str(self._folder / name), "--broker-port", port, "--set", f"brokerName={name}")
        self._running[name] = self._start("broker", *arguments, "--name-server", self.name_server)
        self._ports[name] = self._running[name].addresses[0].rpartition(":")[2]

    def kill(self, name: str) -> None:
        self._running[name].stop(9)


@pytest.fixture
def pair(start: Callable[..., Any], tmp_path: Path, topics_of: Callable[[str], Any]) -> Pair:
    return Pair(start, tmp_path, topics_of)


@pytest.mark.scenario(11)
def test_while_one_of_two_brokers_is_down_the_other_moves_on_and_the_first_catches_up(pair: Pair) -> None:
    topics = pair.topics
    topic = topics.new(1)
    reader = stream(topics, topic)
    begin = latest(reader, reader.initialOffset())
    topics.send(topic, 0, [b"x"] * 5, broker_name="a")
    pair.kill("a")
    topics.send(topic, 0, [b"x"] * 7, broker_name="b")
    middle = latest(reader, begin)
    assert offsets(middle) == {"a": 0, "b": 7}
    assert read(reader, begin, middle) == [("b", i) for i in range(7)]
    pair.start("a")
    end = _next(reader, middle)
    assert offsets(end) == {"a": 5, "b": 7}
    assert read(reader, middle, end) == [("a", i) for i in range(5)]


@pytest.mark.scenario(11)
def test_a_planned_batch_waits_for_its_broker_and_loses_nothing_where_loss_is_allowed(pair: Pair) -> None:
    topics = pair.topics
    topic = topics.new(1)
    for name in ("a", "b"):
        topics.send(topic, 0, [b"x"] * 4, broker_name=name)
    reader = stream(topics, topic, startingOffsets="earliest", failOnDataLoss="false")
    begin = reader.initialOffset()
    end = latest(reader, begin)
    pair.kill("a")
    again = stream(topics, topic, startingOffsets="earliest", failOnDataLoss="false")
    starter = threading.Timer(1.0, pair.start, ["a"])
    starter.start()
    assert read(again, begin, end) == [(name, i) for name in ("a", "b") for i in range(4)]
    starter.join()


def test_a_run_to_the_end_does_not_leave_out_a_broker_that_is_down(pair: Pair) -> None:
    topics = pair.topics
    topic = topics.new(1)
    reader = stream(topics, topic, startingOffsets="earliest")
    begin = latest(reader, reader.initialOffset())
    topics.send(topic, 0, [b"x"] * 4, broker_name="a")
    pair.kill("a")
    deadline = time.monotonic() + 20
    while len(topics.brokers.run(topics.brokers.api.topic_route(topic)).broker_datas) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(
        DataLossError, match=rf"{topic}/a/0: no broker serves it, offset 0 is next; .*failOnDataLoss"
    ):
        latest(reader, begin)


@pytest.mark.scenario(13)
@pytest.mark.parametrize("fail", [True, False])
def test_files_that_retention_removed_are_a_loss_with_the_number_of_messages(
    own: tuple[RunningBroker, Any], caplog: pytest.LogCaptureFixture, fail: bool
) -> None:
    running, topics = own
    topic = topics.new(1)
    topics.send(topic, 0, [bytes(1000)] * 10)
    options = {"startingOffsets": "earliest", "failOnDataLoss": str(fail).lower()}
    reader = stream(topics, topic, maxOffsetsPerTrigger="4", **options)
    begin = latest(reader, reader.initialOffset())
    topics.send(topic, 0, [bytes(400)] * 4000)
    running.stop()
    first_file = min((running.data_dir / "commitlog").iterdir())
    first_file.unlink()
    running.start()
    name = running.broker_name
    (minimum,) = _bounds(topics, topic)
    assert 4 < minimum < 4010
    if fail:
        with pytest.raises(
            DataLossError,
            match=rf"{topic}/{name}/0: offset 4 is next, but the queue now begins at {minimum}: "
            rf"{minimum - 4} messages are gone; set failOnDataLoss=false",
        ):
            latest(reader, begin)
    else:
        with caplog.at_level(logging.WARNING, "penstock.spark"):
            end = latest(reader, begin)
        assert f"{minimum - 4} messages are gone" in caplog.text
        assert read(reader, begin, end) == [(name, minimum + i) for i in range(4)]
        again = stream(topics, topic, **options)
        assert read(again, begin, end) == [(name, minimum + i) for i in range(4)]


@pytest.mark.scenario(17)
def test_a_broker_that_comes_back_with_a_shorter_log_is_waited_for_and_then_a_loss(
    own: tuple[RunningBroker, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running, topics = own
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 4)
    running.stop()
    shutil.copytree(running.data_dir, tmp_path / "older")
    running.start()
    topics.send(topic, 0, [b"x"] * 5)
    reader = stream(topics, topic, startingOffsets="earliest", pullTimeoutMs="1500")
    begin = latest(reader, reader.initialOffset())
    assert offsets(begin) == {running.broker_name: 9}
    running.stop()
    shutil.rmtree(running.data_dir)
    shutil.copytree(tmp_path / "older", running.data_dir)
    running.start()
    held = latest(reader, begin)
    assert held is begin
    assert read(reader, begin, held) == []
    assert "offset 9 is next, but the queue now ends at 4; waiting" in caplog.text
    with pytest.raises(DataLossError, match=r"offset 9 is next, but the queue now ends at 4.*failOnDataLoss"):
        _next(reader, begin)


def test_both_limits_hold_together(own: tuple[RunningBroker, Any]) -> None:
    _, topics = own
    topic = topics.new(1)
    topics.send(topic, 0, [bytes(1000)] * 100)
    by_rows = stream(topics, topic, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    by_both = stream(
        topics, topic, startingOffsets="earliest", maxOffsetsPerTrigger="70", maxBytesPerTrigger="12k"
    )
    assert list(offsets(latest(by_rows, by_rows.initialOffset())).values()) == [7]
    (end,) = offsets(latest(by_both, by_both.initialOffset())).values()
    assert 8 <= end <= 12


@pytest.mark.scenario(21)
def test_bounds_of_many_queues_are_asked_for_at_once_and_equal_those_asked_for_one_by_one(
    own: tuple[RunningBroker, Any],
) -> None:
    running, topics = own
    topic = topics.new(300)
    for queue_id in (0, 17, 299):
        topics.send(topic, queue_id, [b"x"] * (queue_id + 1))
    faults = Faults(running)
    faults.count(RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET)
    reader = stream(topics, topic, startingOffsets="earliest", maxPartitions="3")
    begin = reader.initialOffset()
    end = latest(reader, begin)
    assert faults.counted == {RequestCode.GET_TOPIC_STATS_INFO: 1}
    found = parse_offset(end).queues
    name = running.broker_name
    assert {queue.queue_id: offset for queue, offset in found.items() if offset} == {0: 1, 17: 18, 299: 300}
    assert len(found) == 300
    partitions = reader.partitions(begin, end)
    assert len(partitions) <= 3
    ranges = [piece for p in partitions if isinstance(p, RangesPartition) for piece in p.ranges]
    assert {piece.queue for piece in ranges} == {MessageQueue(topic, name, i) for i in (0, 17, 299)}


def _bounds(topics: Any, topic: str) -> list[int]:
    name, address = next(iter(topics.addresses().items()))
    return [topics.brokers.run(topics.brokers.api.min_offset(address, MessageQueue(topic, name, 0)))]


def _next(reader: StreamReader, start: Offset) -> Offset:
    deadline = time.monotonic() + 30
    while (end := latest(reader, start)) is start:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return end


@pytest.mark.parametrize("wait_for_topic", [True, False])
def test_a_sink_waits_for_a_name_server_that_is_away_as_long_as_it_would_for_a_send(
    start: Callable[..., Any], tmp_path: Path, topics_of: Callable[[str], Any], wait_for_topic: bool
) -> None:
    arguments = ("--data", str(tmp_path / "data"), "--broker-port", "0")
    running = start("serve", *arguments, "--namesrv-port", "0")
    topic = topics_of(running.name_server).new(2)
    port = running.name_server.rpartition(":")[2]
    running.stop(9)
    starter = threading.Timer(1.0, start, ["serve", *arguments, "--namesrv-port", port])
    starter.start()
    given = {"nameServer": running.name_server, "topic": topic, "retries": "12"}
    sender = Sender(write_options(given, StructType().add("body", "binary"), overwrite=False))
    assert len(sender.queues(topic, wait_for_topic=wait_for_topic)) == 2
    starter.join()


def test_a_topic_that_a_task_does_not_find_may_be_on_its_way(own: tuple[RunningBroker, Any]) -> None:
    running, topics = own
    given = {"nameServer": running.name_server, "topic": "late", "retries": "12"}
    sender = Sender(write_options(given, StructType().add("body", "binary"), overwrite=False))
    with pytest.raises(TopicNotFound, match="late"):
        sender.queues("late", wait_for_topic=False)
    maker = threading.Timer(0.5, topics.set_queues, ["late", 1])
    maker.start()
    assert len(sender.queues("late")) == 1
    maker.join()
