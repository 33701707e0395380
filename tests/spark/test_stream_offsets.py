"""What the stream reader decides, asked without a Spark session."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from penstock.errors import InvalidArgument
from penstock.message.queue import MessageQueue
from penstock.spark.batch import RangesPartition
from penstock.spark.cluster import Bounds, DataLossError
from penstock.spark.offsets import parse_offset
from penstock.spark.options import read_options
from penstock.spark.stream import StreamReader

Offset = dict[str, Any]


def stream(topics: Any, topic: str, **options: str) -> StreamReader:
    return StreamReader(read_options(topics.options(topic, **{"routeCacheTtlMs": "0"} | options)))


def latest(reader: StreamReader, start: Offset) -> Offset:
    """As Spark asks: the offset goes through JSON, and its text is compared."""
    return json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))  # type: ignore[no-any-return]  # JSON of a dict is a dict


def planned(reader: StreamReader, start: Offset, end: Offset) -> dict[int, tuple[int, int]]:
    """Offsets by queue id; every queue must be in one piece."""
    found = {}
    for partition in reader.partitions(start, end):
        assert isinstance(partition, RangesPartition)
        for piece in partition.ranges:
            assert piece.queue.queue_id not in found
            found[piece.queue.queue_id] = (piece.start, piece.end)
    return found


def ends(offset: Offset) -> list[int]:
    return [end for _, end in sorted(parse_offset(offset).queues.items())]


@pytest.mark.scenario(5)
def test_the_first_batch_has_the_same_range_after_a_crash_whatever_arrived_meanwhile(topics: Any) -> None:
    topic = topics.new(2)
    topics.send(topic, 0, [b"before"] * 5)
    reader = stream(topics, topic)
    end = latest(reader, reader.initialOffset())
    assert planned(reader, reader.initialOffset(), end) == {}
    topics.send(topic, 0, [b"after"] * 3)
    second = latest(reader, end)
    again = stream(topics, topic)
    assert again.initialOffset() == reader.initialOffset()
    assert planned(again, again.initialOffset(), end) == {}
    assert planned(again, end, second) == {0: (5, 8)}


def test_an_idle_stream_gets_its_own_offset_back(topics: Any) -> None:
    topic = topics.new(2)
    topics.send(topic, 1, [b"x"] * 5)
    reader = stream(topics, topic, startingOffsets="earliest")
    end = latest(reader, reader.initialOffset())
    assert ends(end) == [0, 5]
    assert latest(reader, end) == end
    assert reader.latestOffset(end, ReadAllAvailable()) is end
    assert ends(reader.reportLatestOffset() or {}) == [0, 5]


@pytest.mark.scenario(14)
def test_new_queues_are_read_from_their_first_message_and_again_in_a_replay(topics: Any) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 4)
    reader = stream(topics, topic)
    start = latest(reader, reader.initialOffset())
    topics.set_queues(topic, 3)
    assert latest(reader, start) == start
    topics.send(topic, 2, [b"y"] * 6)
    end = latest(reader, start)
    assert planned(reader, start, end) == {2: (0, 6)}
    topics.send(topic, 2, [b"y"] * 5)
    assert planned(stream(topics, topic), start, end) == {2: (0, 6)}
    assert planned(reader, end, latest(reader, end)) == {2: (6, 11)}


@pytest.mark.scenario(15)
def test_a_new_topic_that_matches_the_pattern_is_read_from_its_beginning(topics: Any) -> None:
    first = topics.new(1)
    options = topics.options("", subscribePattern=f"{first}.*", routeCacheTtlMs="0")
    del options["subscribe"]
    reader = StreamReader(read_options(options))
    start = latest(reader, reader.initialOffset())
    topics.set_queues(f"{first}-more", 1)
    topics.send(f"{first}-more", 0, [b"x"] * 3)
    end = latest(reader, start)
    assert {(queue.topic, offset) for queue, offset in parse_offset(end).first.items()} == {
        (f"{first}-more", 0)
    }
    assert planned(reader, start, end) == {0: (0, 3)}


@pytest.mark.scenario(16)
@pytest.mark.parametrize("fail", [True, False])
def test_a_queue_that_is_gone_with_unread_messages_is_a_loss(topics: Any, fail: bool) -> None:
    topic = topics.new(2)
    reader = stream(topics, topic, failOnDataLoss=str(fail).lower(), maxOffsetsPerTrigger="1")
    start = latest(reader, reader.initialOffset())
    topics.send(topic, 1, [b"x"] * 5)
    end = latest(reader, start)
    topics.set_queues(topic, 1)
    if fail:
        with pytest.raises(DataLossError, match=r"is gone, with offsets 1 to 5 unread.*failOnDataLoss"):
            latest(reader, end)
    else:
        assert latest(reader, end) == end
        topics.send(topic, 0, [b"x"])
        assert ends(latest(reader, end)) == [1, 1]


@pytest.mark.scenario(13)
@pytest.mark.parametrize("fail", [True, False])
def test_retention_that_passed_the_offset_is_a_loss(
    topics: Any, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 9)
    reader = stream(
        topics, topic, startingOffsets="earliest", maxOffsetsPerTrigger="2", failOnDataLoss=str(fail).lower()
    )
    start = latest(reader, reader.initialOffset())
    real = reader._cluster.bounds

    def later(*arguments: Any, **more: Any) -> dict[MessageQueue, Bounds]:
        return {queue: bounds._replace(min_offset=6) for queue, bounds in real(*arguments, **more).items()}

    monkeypatch.setattr(reader._cluster, "bounds", later)
    if fail:
        with pytest.raises(
            DataLossError, match="offset 2 is next, but the queue now begins at 6: 4 messages are gone"
        ):
            latest(reader, start)
    else:
        end = latest(reader, start)
        assert planned(reader, start, end) == {0: (6, 8)}


@pytest.mark.scenario(17)
def test_an_end_that_fell_back_plans_nothing_and_becomes_a_loss_in_time(
    topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 9)
    reader = stream(topics, topic, startingOffsets="earliest", pullTimeoutMs="50")
    start = latest(reader, reader.initialOffset())
    real = reader._cluster.bounds

    def shorter(*arguments: Any, **more: Any) -> dict[MessageQueue, Bounds]:
        return {queue: bounds._replace(max_offset=4) for queue, bounds in real(*arguments, **more).items()}

    monkeypatch.setattr(reader._cluster, "bounds", shorter)
    assert latest(reader, start) == start
    time.sleep(0.06)
    with pytest.raises(DataLossError, match="offset 9 is next, but the queue now ends at 4"):
        latest(reader, start)


@pytest.mark.scenario(19)
def test_every_queue_moves_on_within_the_limit(topics: Any) -> None:
    topic = topics.new(4)
    topics.send(topic, 0, [b"x"] * 3000)
    for queue_id in (1, 2, 3):
        topics.send(topic, queue_id, [b"x"] * 4)
    reader = stream(topics, topic, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    offset = latest(reader, reader.initialOffset())
    for total in (100, 200, 300):
        assert sum(ends(offset)) == total
        assert min(ends(offset)) >= total // 100
        offset = latest(reader, offset)
    everything = reader.latestOffset(offset, ReadAllAvailable())
    assert ends(everything) == [3000, 4, 4, 4]


def test_a_limit_in_bytes_follows_the_size_of_the_messages(topics: Any) -> None:
    topic = topics.new(2)
    topics.send(topic, 0, [bytes(10_000)] * 50)
    topics.send(topic, 1, [bytes(100)] * 50)
    reader = stream(topics, topic, startingOffsets="earliest", maxBytesPerTrigger="100k")
    assert reader.getDefaultReadLimit() == ReadMaxBytes(102_400)
    large, small = ends(latest(reader, reader.initialOffset()))
    assert 5 <= large <= 10
    assert 1 <= small <= 20


@pytest.mark.scenario(25)
def test_few_messages_wait_for_more_or_for_the_delay(topics: Any) -> None:
    topic = topics.new(1)
    reader = stream(topics, topic, minOffsetsPerTrigger="100", maxTriggerDelay="300ms")
    assert reader.getDefaultReadLimit() == ReadMinRows(100)
    start = latest(reader, reader.initialOffset())
    topics.send(topic, 0, [b"x"] * 10)
    assert latest(reader, start) == start
    time.sleep(0.35)
    end = latest(reader, start)
    assert ends(end) == [10]
    topics.send(topic, 0, [b"x"] * 150)
    assert ends(latest(reader, end)) == [160]


@pytest.mark.scenario(23)
def test_available_now_ends_at_what_was_there_when_it_began(topics: Any) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 10)
    reader = stream(topics, topic, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    reader.prepareForTriggerAvailableNow()
    topics.send(topic, 0, [b"x"] * 10)
    topics.set_queues(topic, 2)
    topics.send(topic, 1, [b"x"])
    first = latest(reader, reader.initialOffset())
    second = latest(reader, first)
    assert (ends(first)[0], ends(second)[0]) == (6, 10)
    assert latest(reader, second) == second


@pytest.mark.scenario(26)
def test_the_group_shows_what_is_done_also_when_nothing_comes(topics: Any) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 7)
    reader = stream(
        topics, topic, startingOffsets="earliest", consumerGroup="mirror", maxOffsetsPerTrigger="4"
    )
    first = latest(reader, reader.initialOffset())
    assert topics.group_offset(topic, "mirror", 0) is None
    second = latest(reader, first)
    assert topics.group_offset(topic, "mirror", 0) == 4
    assert latest(reader, second) == second
    assert topics.group_offset(topic, "mirror", 0) == 7
    committed = stream(topics, topic, startingOffsets="group", consumerGroup="mirror")
    topics.send(topic, 0, [b"x"])
    end = latest(committed, committed.initialOffset())
    assert planned(committed, committed.initialOffset(), end) == {0: (7, 8)}


def test_a_checkpoint_of_another_topic_is_refused(topics: Any) -> None:
    mine, other = topics.new(1), topics.new(1)
    reader = stream(topics, other)
    foreign = latest(reader, reader.initialOffset())
    with pytest.raises(InvalidArgument, match=f"belongs to topic {other}, but this query reads {mine}"):
        latest(stream(topics, mine), foreign)
