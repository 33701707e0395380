from __future__ import annotations

from typing import Any

import pytest

from penstock import limits


def commit(bench: Any, offset: int, *, group: str = "G", topic: str = "T", queue_id: int = 0) -> Any:
    return bench.ask(15, commit_fields(offset, group=group, topic=topic, queue_id=queue_id))


def commit_fields(offset: int, *, group: str = "G", topic: str = "T", queue_id: int = 0) -> dict[str, Any]:
    return {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}


@pytest.fixture
def table(bench: Any) -> Any:
    bench.send("T")
    bench.broker.groups.find("G", bench.now_ms)
    return bench.broker.offsets


def test_a_commit_is_answered_when_it_is_durable(bench: Any, table: Any) -> None:
    opaque = bench.request(15, commit_fields(7))
    assert bench.answered(opaque) is None
    bench.flush()
    assert bench.answered(opaque).code == 0


def test_smaller_offsets_may_be_committed(bench: Any, table: Any) -> None:
    commit(bench, 7)
    commit(bench, 3)
    assert table.query("G", "T", 0) == 3


def test_a_oneway_commit_counts(bench: Any, table: Any) -> None:
    bench.request(15, commit_fields(7), oneway=True)
    assert table.query("G", "T", 0) == 7
    assert bench.answered(bench._opaque) is None


def test_a_commit_under_a_pending_reset_is_confirmed_and_ignored(bench: Any, table: Any) -> None:
    table.reset("G", "T", 0, 0, bench.now_ms)
    bench.flush()
    assert commit(bench, 7).code == 0
    answer = bench.ask(14, {"consumerGroup": "G", "topic": "T", "queueId": 0})
    assert answer.ext["offset"] == "0"
    assert table.take_reset("G", "T", 0) == 0
    assert table.take_reset("G", "T", 0) is None
    commit(bench, 7)
    assert table.query("G", "T", 0) == 7


def test_the_table_has_a_bound(bench: Any, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(bench, 1)
    monkeypatch.setattr(limits, "OFFSETS_PER_BROKER", 1)
    assert commit(bench, 1, queue_id=1).code == 2
    assert commit(bench, 2).code == 0
    table.note_pulled("G", "T", 0, 1)
    table.note_pulled("G", "T", 1, 1)
    assert (table.query_pulled("G", "T", 0), table.query_pulled("G", "T", 1)) == (1, -1)


def test_progress_can_be_listed_by_group_and_by_topic(bench: Any, table: Any) -> None:
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G")):
        table.commit(group, topic, 0, 1, bench.now_ms)
    table.commit("G@broadcast", "T", 0, 1, bench.now_ms)
    assert table.topics_of("G") == ["T", "U"]
    assert table.groups_of("T") == ["G", "H"]


def test_dropped_progress_is_gone(bench: Any, table: Any) -> None:
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G")):
        table.commit(group, topic, 0, 1, bench.now_ms)
    table.drop_topic("T", bench.now_ms)
    assert (table.query("G", "T", 0), table.query("H", "T", 0), table.query("G", "U", 0)) == (-1, -1, 1)
    table.drop_group("G", bench.now_ms)
    assert table.query("G", "U", 0) == -1


def test_a_group_can_take_over_anothers_progress(bench: Any, table: Any) -> None:
    table.commit("G", "T", 0, 4, bench.now_ms)
    table.commit("G", "T", 1, 5, bench.now_ms)
    table.clone("G", "H", "T", bench.now_ms)
    assert dict(table.queues("H", "T")) == {0: 4, 1: 5}


def test_the_data_version_grows_slowly(bench: Any, table: Any) -> None:
    for i in range(1_000):
        table.commit("G", "T", 0, i, bench.now_ms)
    assert table.data_version.counter == 2


def killed(bench: Any) -> Any:
    """The offsets that a broker finds after its forerunner was killed."""
    bench.flush()
    bench.store.abandon()
    bench.open()
    return bench.broker.offsets


def test_a_commit_that_came_with_a_pull_is_in_the_journal_a_tick_later(bench: Any, table: Any) -> None:
    before = bench.store.end
    for offset in (1, 2, 3):
        bench.pull("T", group="G", sys_flag=4 | 1, commit=offset)
    assert table.query("G", "T", 0) == 3
    assert bench.store.end == before
    bench.broker.tick(bench.now_ms)
    assert bench.store.end > before
    assert killed(bench).query("G", "T", 0) == 3


@pytest.mark.parametrize("later", ["commit", "reset", "group deleted"])
def test_what_comes_after_the_commit_of_a_pull_is_not_undone_by_it(
    bench: Any, table: Any, later: str
) -> None:
    bench.pull("T", group="G", sys_flag=4 | 1, commit=9)
    assert table.query("G", "T", 0) == 9
    if later == "commit":
        commit(bench, 5)
    elif later == "reset":
        table.reset("G", "T", 0, 5, bench.now_ms)
    else:
        table.drop_group("G", bench.now_ms)
    bench.broker.tick(bench.now_ms)
    assert killed(bench).query("G", "T", 0) == (-1 if later == "group deleted" else 5)
