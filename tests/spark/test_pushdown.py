"""Conditions of a query that save reading."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from penstock.errors import InvalidArgument
from penstock.spark.batch import RangesPartition
from penstock.spark.options import read_options
from penstock.spark.pushdown import PushdownReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON = {"filterPushdown": "true"}


@pytest.fixture(scope="module")
def filled(topics: Any) -> str:
    topic: str = topics.new(3)
    topics.send(topic, 0, [b"x"] * 40, b"TAGS\x01paid\x02")
    topics.send(topic, 1, [b"x"] * 20, b"TAGS\x01shipped\x02")
    topics.send(topic, 2, [b"x"] * 10)
    return topic


def planned(
    topics: Any, topic: str, *filters: Filter, **more: str
) -> tuple[dict[int, tuple[int, int]], list[str]]:
    """Offsets that would be read by queue, and the tags of what comes back."""
    reader = PushdownReader(read_options(topics.options(topic, **ON | more)))
    assert list(reader.pushFilters(list(filters))) == list(filters)
    ranges: dict[int, tuple[int, int]] = {}
    tags: list[str] = []
    for partition in reader.partitions():
        assert isinstance(partition, RangesPartition)
        for piece in partition.ranges:
            start, end = ranges.get(piece.queue.queue_id, (piece.start, piece.end))
            ranges[piece.queue.queue_id] = (min(start, piece.start), max(end, piece.end))
        tags += [tag for batch in reader.read(partition) for tag in batch.column("tags").to_pylist()]
    return ranges, tags


def test_queues_and_offsets_outside_the_conditions_are_not_read(topics: Any, filled: str) -> None:
    assert planned(topics, filled)[0] == {0: (0, 40), 1: (0, 20), 2: (0, 10)}
    assert planned(topics, filled, EqualTo(("queueId",), 1))[0] == {1: (0, 20)}
    by_offset = (In(("queueId",), (0, 2)), GreaterThanOrEqual(("queueOffset",), 15))
    assert planned(topics, filled, *by_offset)[0] == {0: (15, 40)}
    below = (LessThanOrEqual(("queueOffset",), 5), LessThan(("queueOffset",), 3))
    assert planned(topics, filled, *below)[0] == {0: (0, 4), 1: (0, 4), 2: (0, 4)}
    assert planned(topics, filled, EqualTo(("body", "x"), 1))[0] == {0: (0, 40), 1: (0, 20), 2: (0, 10)}


def test_tags_are_filtered_by_the_broker(topics: Any, filled: str) -> None:
    assert planned(topics, filled, EqualTo(("tags",), "paid"))[1] == ["paid"] * 40
    assert (
        sorted(planned(topics, filled, In(("tags",), ("paid", "shipped")))[1])
        == ["paid"] * 40 + ["shipped"] * 20
    )
    assert len(planned(topics, filled, EqualTo(("tags",), "pa||id"))[1]) == 70


def test_times_narrow_the_offsets_with_room_for_clocks(topics: Any, filled: str) -> None:
    now = datetime.now(UTC)
    split, tags = planned(
        topics, filled, GreaterThanOrEqual(("storeTimestamp",), now - timedelta(days=1)), minPartitions="9"
    )
    assert split[0] == (0, 40)
    assert len(tags) == 70
    everything = {0: (0, 40), 1: (0, 20), 2: (0, 10)}
    assert planned(topics, filled, GreaterThanOrEqual(("storeTimestamp",), now))[0] == everything
    assert planned(topics, filled, GreaterThanOrEqual(("storeTimestamp",), now + timedelta(hours=1)))[0] == {}
    assert planned(topics, filled, LessThan(("storeTimestamp",), now - timedelta(hours=1)))[0] == {}
    naive = now.replace(tzinfo=None) + timedelta(hours=1)
    assert planned(topics, filled, GreaterThanOrEqual(("storeTimestamp",), naive))[0] == everything


def test_streams_have_no_conditions_to_push(topics: Any) -> None:
    with pytest.raises(InvalidArgument, match="filterPushdown only works for batch reads"):
        read_options(topics.options("t", **ON)).stream_start()


@pytest.mark.spark
def test_a_query_with_conditions_gives_the_same_with_and_without(
    spark: SparkSession, topics: Any, filled: str
) -> None:
    def rows(**options: str) -> list[Any]:
        frame = spark.read.format("rocketmq").options(**topics.options(filled, **options)).load()
        frame = frame.where(
            "queueId = 0 AND queueOffset > 7 AND tags = 'paid' AND storeTimestamp > '2020-01-01'"
        )
        return sorted(row.queueOffset for row in frame.collect())

    assert rows(**ON) == rows() == list(range(8, 40))
