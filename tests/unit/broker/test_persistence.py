from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.wire import dialect
from penstock.wire.bodies import SubscriptionGroupConfig, TopicConfig


def kill(bench: Any) -> None:
    """The process dies: what was neither flushed nor saved is gone, and so is its lock."""
    bench.store.disk.unlock()


def config(bench: Any, name: str) -> Path:
    path: Path = bench.directory / "config" / name
    return path


def commit(bench: Any, offset: int) -> None:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": offset}
    assert bench.ask(15, fields).code == 0


def start(bench: Any) -> None:
    bench.broker.groups.find("G", bench.now_ms)
    assert bench.send("T").code == 0


def test_an_acknowledged_commit_survives_a_kill_at_any_moment(bench: Any) -> None:
    start(bench)
    for offset in range(1, 40):
        commit(bench, offset)
        if offset % 3 == 0:
            bench.wait(1_700)
        kill(bench)
        bench.open()
        assert bench.broker.offsets.query("G", "T", 0) == offset


def test_topics_and_groups_made_on_the_way_survive_a_kill(bench: Any) -> None:
    start(bench)
    bench.broker.groups.set_forbidden("G", "T", 4, bench.now_ms)
    bench.broker.topics.put(TopicConfig("U", perm=4), bench.now_ms)
    bench.broker.topics.put(TopicConfig("V"), bench.now_ms)
    bench.broker.topics.delete("V", bench.now_ms)
    bench.flush()
    kill(bench)
    bench.open()
    assert bench.broker.topics.get("T").write_queue_nums == 4
    assert bench.broker.topics.get("U").perm == 4
    assert bench.broker.topics.get("V") is None
    assert bench.broker.groups.get("G") is not None
    assert bench.broker.groups.forbidden_bits("G", "T") == 4


def test_dropped_progress_stays_dropped(bench: Any) -> None:
    start(bench)
    commit(bench, 3)
    bench.wait(20_000, step_ms=500)
    bench.broker.offsets.drop_topic("T", bench.now_ms)
    bench.flush()
    kill(bench)
    bench.open()
    assert bench.broker.offsets.query("G", "T", 0) == -1


def test_delivered_delays_survive_a_kill(bench: Any) -> None:
    bench.wait(1_000)
    bench.send("T", properties="DELAY\x011\x02")
    bench.wait(1_500)
    kill(bench)
    bench.open()
    bench.wait(2_000)
    assert len(bench.stored("T")) == 1


def test_offsets_of_another_broker_win_over_our_journal(bench: Any) -> None:
    start(bench)
    commit(bench, 3)
    bench.wait(20_000, step_ms=500)
    commit(bench, 4)
    kill(bench)
    path = config(bench, "consumerOffset.json")
    saved = dialect.loads(path.read_bytes())
    saved["offsetTable"]["T@G"]["0"] = 9
    path.write_bytes(json.dumps(saved).encode())
    bench.open()
    assert bench.broker.offsets.query("G", "T", 0) == 9
    commit(bench, 10)
    kill(bench)
    bench.open()
    assert bench.broker.offsets.query("G", "T", 0) == 10


def test_files_are_written_on_schedule(bench: Any) -> None:
    start(bench)
    commit(bench, 3)
    bench.wait(1_200)
    topics = json.loads(config(bench, "topics.json").read_bytes())
    assert topics["topicConfigTable"]["T"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    commit(bench, 5)
    bench.wait(10_000, step_ms=500)
    offsets = json.loads(config(bench, "consumerOffset.json").read_bytes())
    assert offsets["offsetTable"] == {"T@G": {"0": 5}}


def test_nothing_is_written_while_nothing_changes(bench: Any) -> None:
    start(bench)
    bench.wait(30_000, step_ms=500)
    before = config(bench, "topics.json").stat().st_mtime_ns
    bench.wait(30_000, step_ms=500)
    assert config(bench, "topics.json").stat().st_mtime_ns == before


def test_a_clean_stop_writes_all_files(bench: Any) -> None:
    start(bench)
    commit(bench, 3)
    bench.close()
    names = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
    for name in names:
        content = json.loads(config(bench, name).read_bytes())
        assert set(content["dataVersion"]) == {"counter", "stateVersion", "timestamp"}
    bench.open()
    assert bench.broker.offsets.query("G", "T", 0) == 3


def test_members_that_are_not_ours_are_kept(bench: Any) -> None:
    start(bench)
    bench.close()
    edits = {
        "topics.json": lambda c: c["topicConfigTable"]["T"],
        "subscriptionGroup.json": lambda c: c["subscriptionGroupTable"]["G"],
    }
    for name, entry in edits.items():
        content = json.loads(config(bench, name).read_bytes())
        content["fromTheFuture"] = {"a": [1]}
        entry(content)["alsoNew"] = "x"
        config(bench, name).write_bytes(json.dumps(content).encode())
    bench.open()
    bench.broker.topics.put(TopicConfig("T", perm=2), bench.now_ms)
    bench.broker.groups.put(SubscriptionGroupConfig("G", retry_max_times=1), bench.now_ms)
    bench.close()
    for name, entry in edits.items():
        content = json.loads(config(bench, name).read_bytes())
        assert content["fromTheFuture"] == {"a": [1]}
        assert entry(content)["alsoNew"] == "x"
    bench.open()
    assert bench.broker.topics.get("T").perm == 2


def test_the_dialect_of_another_broker_is_read(bench: Any) -> None:
    bench.close()
    config(bench, "consumerOffset.json").write_text(
        '{\n\t"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},'
        '"groupTopicMap":{"G":["T"]},"offsetTable":{"T@G":{0:3,1:7}},"pullOffsetTable":{"T@G":{0:4}}}'
    )
    config(bench, "delayOffset.json").write_text('{"offsetTable":{1:2,18:5}}')
    bench.open()
    assert dict(bench.broker.offsets.queues("G", "T")) == {0: 3, 1: 7}
    assert bench.broker.offsets.query_pulled("G", "T", 0) == 4
    assert bench.broker.delay.progress == {1: 2, 18: 5}


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"topicConfigTable":{"T":{"perm":"x"}}}'])
def test_a_damaged_file_gives_way_to_its_predecessor(bench: Any, damage: str) -> None:
    start(bench)
    bench.close()
    bench.open()
    bench.close()
    config(bench, "topics.json").write_text(damage)
    bench.open()
    assert bench.broker.topics.get("T").perm == 6


def test_a_save_that_fails_is_made_again_and_loses_nothing(
    bench: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start(bench)
    commit(bench, 1)
    save = bench.store.config.save
    fails = True

    def unreliable(name: str, data: bytes) -> None:
        if fails:
            raise OSError(28, "No space left on device")
        save(name, data)

    monkeypatch.setattr(bench.store.config, "save", unreliable)
    for offset in range(2, 8):
        bench.wait(6_000, step_ms=500)
        commit(bench, offset)
    assert "No space left" in caplog.text
    kill(bench)
    monkeypatch.undo()
    bench.open()
    assert bench.broker.offsets.query("G", "T", 0) == 7
    assert bench.broker.topics.get("T") is not None


def test_a_save_that_recovers_writes_what_is_true_by_then(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(bench)
    save = bench.store.config.save
    failures = [OSError(28, "No space left on device")]

    def once(name: str, data: bytes) -> None:
        if failures:
            raise failures.pop()
        save(name, data)

    monkeypatch.setattr(bench.store.config, "save", once)
    commit(bench, 1)
    bench.wait(30_000, step_ms=500)
    commit(bench, 2)
    bench.wait(30_000, step_ms=500)
    assert json.loads(config(bench, "consumerOffset.json").read_bytes())["offsetTable"]["T@G"] == {"0": 2}
    kill(bench)
    bench.open()
    assert bench.broker.offsets.query("G", "T", 0) == 2


def test_what_a_failed_flush_took_from_the_journal_reaches_the_files(bench: Any) -> None:
    start(bench)
    bench.request(15, {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 5})
    flush = bench.store.take_flush()
    error = OSError(5, "Input/output error")
    bench.store.flushed(flush, error)
    bench.broker.flush_failed(error, bench.now_ms)
    bench.wait(20_000, step_ms=500)
    assert json.loads(config(bench, "consumerOffset.json").read_bytes())["offsetTable"]["T@G"] == {"0": 5}


def test_file_writes_can_be_handed_to_a_thread(new_bench: Callable[..., Any]) -> None:
    bench = new_bench()
    jobs: list[Callable[[], None]] = []
    bench.broker.persistence._run_job = jobs.append
    start(bench)
    bench.wait(1_200)
    assert len(jobs) == 1
    assert not config(bench, "topics.json").exists()
    commit(bench, 3)
    bench.wait(20_000, step_ms=500)
    assert len(jobs) == 1
    kill(bench)
    jobs.clear()
    bench.open()
    assert bench.broker.offsets.query("G", "T", 0) == 3


def test_entries_of_a_newer_version_are_left_out(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    start(bench)
    bench.store.journal.append(250, b"?")
    commit(bench, 3)
    kill(bench)
    bench.open()
    assert bench.broker.offsets.query("G", "T", 0) == 3
    assert "kind 250" in caplog.text


def test_a_topic_whose_first_send_failed_is_durable_before_the_next_is_confirmed(bench: Any) -> None:
    bench.request(310, bench.send_fields("T"), b"x")
    flush = bench.store.take_flush()
    error = OSError(5, "Input/output error")
    bench.store.flushed(flush, error)
    bench.broker.flush_failed(error, bench.now_ms)
    bench.store.allow("flush")
    assert bench.send("T").code == 0
    kill(bench)
    bench.open()
    assert bench.broker.topics.get("T") is not None


def test_files_are_new_at_once_after_a_kill(bench: Any) -> None:
    """The journal keeps only so many generations: the files must not fall behind over many kills."""
    start(bench)
    commit(bench, 3)
    kill(bench)
    bench.open()
    assert json.loads(config(bench, "consumerOffset.json").read_bytes())["offsetTable"]["T@G"] == {"0": 3}
