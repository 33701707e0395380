"""A directory that a real broker left behind: its topics, groups and progress are ours to go on with."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.wire import dialect

GOLDEN = Path(__file__).parents[2] / "golden" / "disk"


@pytest.fixture
def bench(tmp_path: Path, new_bench: Callable[..., Any]) -> Any:
    facts = json.loads((GOLDEN / "clean.json").read_text())
    with tarfile.open(GOLDEN / "clean.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 has it
        archive.extractall(tmp_path)
    (tmp_path / "clean").rename(tmp_path / "store")
    sizes = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
    return new_bench(**{key: str(facts["settings"][key]) for key in sizes})


def saved(bench: Any, name: str) -> Any:
    return dialect.loads((bench.directory / "config" / name).read_bytes())


def test_its_tables_are_read(bench: Any) -> None:
    broker = bench.broker
    assert dict(broker.offsets.queues("StoreGroup", "Plain")) == {0: 3, 1: 1}
    assert broker.offsets.query_pulled("StoreGroup", "Plain", 0) == 2
    assert broker.delay.progress == {1: 2, 18: 0}
    assert broker.groups.get("StorePopGroup").retry_max_times == 16
    assert broker.topics.get("Many").write_queue_nums == 1
    assert broker.topics.get("TBW102").perm == 7


def test_its_tables_are_written_as_they_were(bench: Any) -> None:
    names = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
    before = {name: saved(bench, name) for name in names}
    bench.close()
    after = {name: saved(bench, name) for name in names}
    bench.open()
    del before["consumerOffset.json"]["groupTopicMap"]
    assert after == before


def test_messages_that_were_delayed_there_arrive_here(bench: Any) -> None:
    delivered = bench.store.max_offset("Delayed", 0), bench.store.max_offset("Delayed", 1)
    bench.wait(1_500)
    assert (bench.store.max_offset("Delayed", 0), bench.store.max_offset("Delayed", 1)) == delivered
    bench.now_ms += 7_200_000
    bench.wait(200)
    arrived = bench.store.max_offset("Delayed", 0) + bench.store.max_offset("Delayed", 1)
    assert arrived == sum(delivered) + bench.store.max_offset("SCHEDULE_TOPIC_XXXX", 17)
