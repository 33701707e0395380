"""Reading ranges inside a task, without a Spark session, through all kinds of trouble."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from penstock.client.api import BrokerApi, PullResult, PullStatus
from penstock.errors import RequestTimeout
from penstock.message.queue import MessageQueue
from penstock.spark.batch import BatchReader, RangesPartition
from penstock.spark.cluster import Cluster, DataLossError
from penstock.spark.options import read_options
from penstock.spark.ranges import OffsetRange
from penstock.spark.reader import read_ranges
from penstock.spark.stream import StreamReader
from penstock.testing import RunningBroker, broker

Topics = Any  # of conftest, which tests cannot import


@pytest.fixture
def own(topics_of: Any) -> Iterator[tuple[RunningBroker, Topics]]:
    """A broker that the test may stop."""
    with broker() as running:
        yield running, topics_of(running.name_server)


def ranges_of(topics: Topics, topic: str, **options: str) -> tuple[list[OffsetRange], Any]:
    parsed = read_options(topics.options(topic, **options))
    partitions = BatchReader(parsed).partitions()
    found = []
    for partition in partitions:
        assert isinstance(partition, RangesPartition)
        found += partition.ranges
    return found, parsed.pull


def offsets(batches: Iterator[Any]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


def test_messages_of_a_range_come_in_order_and_end_exactly(topics: Topics) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"%d" % i for i in range(3000)])
    (whole,), options = ranges_of(topics, topic, pullBatchSize="70", arrowBatchBytes="10k", pullInflight="3")
    part = whole._replace(start=100, end=2777)
    batches = list(read_ranges([part], options))
    assert offsets(iter(batches)) == list(range(100, 2777))
    assert len(batches) > 10
    assert all(batch.nbytes < 200_000 for batch in batches)


def test_a_reader_that_is_closed_early_leaves_nothing_behind(topics: Topics) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [bytes(1000)] * 3000)
    ranges, options = ranges_of(topics, topic, arrowBatchBytes="100k")
    batches = read_ranges(ranges, options)
    assert len(list(islice(batches, 2))) == 2
    batches.close()  # type: ignore[attr-defined]  # a generator behind its interface
    tasks = topics.brokers.run(_running_tasks())
    assert tasks == 1


async def _running_tasks() -> int:
    return len(
        [task for task in asyncio.all_tasks() if "Fetcher" in repr(task) or task is asyncio.current_task()]
    )


@pytest.mark.scenario(10)
def test_a_broker_that_restarts_in_the_middle_is_waited_for(own: tuple[RunningBroker, Topics]) -> None:
    running, topics = own
    topic = topics.new(1)
    topics.send(topic, 0, [b"%d" % i for i in range(4000)])
    ranges, options = ranges_of(topics, topic, pullBatchSize="50", arrowBatchBytes="20k", pullInflight="2")
    batches = read_ranges(ranges, options)
    seen = offsets(islice(batches, 3))
    running.stop()
    starter = threading.Timer(1.5, running.start)
    starter.start()
    seen += offsets(batches)
    starter.join()
    assert seen == list(range(4000))


def test_a_broker_that_stays_away_fails_the_task_with_the_place_and_the_option(
    own: tuple[RunningBroker, Topics],
) -> None:
    running, topics = own
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 10)
    ranges, options = ranges_of(topics, topic, pullTimeoutMs="600")
    running.stop()
    with pytest.raises(RequestTimeout, match=rf"{topic}/.*/0: no progress at offset 0 .*pullTimeoutMs"):
        list(read_ranges(ranges, options))


@pytest.mark.scenario(12)
def test_a_name_server_that_comes_back_within_the_retries_is_no_failure(
    own: tuple[RunningBroker, Topics],
) -> None:
    running, topics = own
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 10)
    options = read_options(topics.options(topic, **{"fetchOffset.retryIntervalMs": "300"}))
    running.stop()
    starter = threading.Timer(1.0, running.start)
    starter.start()
    assert list(Cluster(options).queues()) == [MessageQueue(topic, next(iter(topics.addresses())), 0)]
    starter.join()


@pytest.mark.scenario(11)
def test_queues_of_a_broker_that_is_down_wait_and_catch_up_later(own: tuple[RunningBroker, Topics]) -> None:
    running, topics = own
    topic = topics.new(1)
    reader = StreamReader(read_options(topics.options(topic, routeCacheTtlMs="600000")))
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    topics.send(topic, 0, [b"x"] * 5)
    running.stop()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) is start
    running.start()
    deadline = time.monotonic() + 30
    while reader.latestOffset(start, reader.getDefaultReadLimit()) is start:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    strict = StreamReader(
        read_options(topics.options(topic, brokerUnavailable="fail", **{"fetchOffset.numRetries": "0"}))
    )
    strict.latestOffset(start, strict.getDefaultReadLimit())
    running.stop()
    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        strict.latestOffset(start, strict.getDefaultReadLimit())


@pytest.mark.scenario(13)
def test_offsets_that_are_gone_are_a_loss_that_can_be_allowed(
    topics: Topics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 10)
    (whole,), options = ranges_of(topics, topic)
    real = BrokerApi.pull

    async def pull(self: BrokerApi, address: str, header: Any, timeout_ms: int) -> PullResult:
        if header.queue_offset < 6:
            return PullResult(PullStatus.OFFSET_ILLEGAL, 6, 6, 10, 0, b"")
        return await real(self, address, header, timeout_ms)

    monkeypatch.setattr(BrokerApi, "pull", pull)
    with pytest.raises(
        DataLossError, match=rf"6 messages of {topic}/.*/0 from offset 0 on are gone.*begins at 6"
    ):
        list(read_ranges([whole], options))
    tolerant = dataclasses.replace(options, fail_on_data_loss=False)
    assert offsets(read_ranges([whole], tolerant)) == [6, 7, 8, 9]
    assert "6 messages" in caplog.text
