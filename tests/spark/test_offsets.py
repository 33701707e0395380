"""Offsets in the checkpoint, shares of a batch, and tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.message.queue import MessageQueue
from penstock.spark.offsets import StreamOffset, batch_start, initial_offset, parse_offset, share_out
from penstock.spark.ranges import OffsetRange, plan_tasks

queues = st.builds(
    MessageQueue, st.sampled_from(["orders", "%RETRY%g"]), st.sampled_from(["a", "b@c"]), st.integers(0, 20)
)
offsets = st.dictionaries(queues, st.integers(0, 2**40), max_size=20)


@given(offsets, offsets)
def test_an_offset_survives_the_checkpoint_as_the_same_text(
    ends: dict[MessageQueue, int], first: dict[MessageQueue, int]
) -> None:
    text = json.dumps(StreamOffset(ends, first).to_json())
    again = parse_offset(json.loads(text))
    assert again == StreamOffset(ends, first)
    shuffled = StreamOffset(dict(reversed(ends.items())), dict(reversed(first.items())))
    assert json.dumps(shuffled.to_json()) == text


@pytest.mark.parametrize(
    "document", [{}, {"v": 2, "q": {}}, {"v": 1}, {"v": 1, "q": {"t@0": 1}}, {"v": 1, "q": {"t@b@0": "1"}}]
)
def test_an_offset_of_something_else_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="the checkpoint holds"):
        parse_offset(document)


@pytest.mark.scenario(5, 14)
def test_a_start_that_the_end_carries_comes_before_what_spark_remembers() -> None:
    old, new = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
    end = StreamOffset({old: 9, new: 5}, {new: 2})
    assert batch_start(StreamOffset({old: 7}, {}).to_json(), end) == {old: 7, new: 2}
    whole = StreamOffset({old: 9}, {old: 4})
    assert batch_start(initial_offset("latest"), whole) == {old: 4}
    assert batch_start(StreamOffset({old: 3}, {}).to_json(), whole) == {old: 4}


@given(st.dictionaries(queues, st.integers(0, 10_000), max_size=30), st.integers(1, 5_000))
def test_shares_stay_within_the_limit_and_no_queue_starves(
    backlog: dict[MessageQueue, int], limit: int
) -> None:
    shares = share_out(backlog, limit)
    waiting = {queue: count for queue, count in backlog.items() if count}
    assert shares.keys() == waiting.keys()
    assert all(1 <= shares[queue] <= count for queue, count in waiting.items())
    assert sum(shares.values()) == max(min(limit, sum(waiting.values())), len(waiting))


@pytest.mark.scenario(19)
def test_a_large_backlog_leaves_room_for_small_ones() -> None:
    backlog = {MessageQueue("t", "b", i): 10 for i in range(1, 8)} | {MessageQueue("t", "b", 0): 1_000_000}
    shares = share_out(backlog, 1000)
    assert sum(shares.values()) == 1000
    assert min(shares.values()) >= 1
    assert shares[MessageQueue("t", "b", 0)] > 900


ranges = st.dictionaries(queues, st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=40).map(
    lambda bounds: [OffsetRange(queue, start, start + size, "h:1") for queue, (start, size) in bounds.items()]
)
limits = st.one_of(st.none(), st.integers(1, 30))


@pytest.mark.scenario(20, 21)
@given(ranges, limits, limits, st.integers(1, 50))
@settings(max_examples=60)
def test_tasks_cover_every_offset_once_in_order(
    asked: list[OffsetRange], max_records: int | None, min_tasks: int | None, max_tasks: int
) -> None:
    max_records = max_records and max_records * 50
    tasks = plan_tasks(asked, max_records=max_records, min_tasks=min_tasks, max_tasks=max_tasks)
    assert tasks == plan_tasks(asked[::-1], max_records=max_records, min_tasks=min_tasks, max_tasks=max_tasks)
    pieces = sorted(piece for task in tasks for piece in task)
    assert all(list(task) == sorted(task) for task in tasks)
    assert all(piece.size > 0 for piece in pieces)
    for source in asked:
        covered = [(piece.start, piece.end) for piece in pieces if piece.queue == source.queue]
        assert [end for _, end in covered[:-1]] == [start for start, _ in covered[1:]]
        assert (not covered and source.size == 0) or (covered[0][0], covered[-1][1]) == (
            source.start,
            source.end,
        )
    if max_records is not None:
        assert all(sum(piece.size for piece in task) <= max_records for task in tasks)
    else:
        assert len(tasks) <= max_tasks


@pytest.mark.scenario(20)
def test_two_queues_are_split_into_about_as_many_tasks_as_asked_for() -> None:
    asked = [OffsetRange(MessageQueue("t", "b", i), 0, size, "h:1") for i, size in enumerate((1000, 3000))]
    tasks = plan_tasks(asked, min_tasks=8, max_tasks=16)
    assert [len(task) for task in tasks] == [1] * 8
    assert sorted({task[0].size for task in tasks}) == [500]


@pytest.mark.scenario(21)
def test_a_thousand_small_queues_share_few_tasks_of_equal_size() -> None:
    asked = [OffsetRange(MessageQueue("t", "b", i), 5, 6, "h:1") for i in range(1000)]
    assert [len(task) for task in plan_tasks(asked, max_tasks=4)] == [250] * 4
