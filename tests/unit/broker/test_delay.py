from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import limits
from penstock.message.names import SCHEDULE_TOPIC
from penstock.message.tags import tag_code


@pytest.mark.behaviour("CON-11")
def test_a_delayed_message_arrives_when_it_is_due(bench: Any) -> None:
    bench.wait(1_000)
    bench.send("T", b"later", queue_id=2, properties="DELAY\x012\x02TAGS\x01a\x02KEYS\x01k\x02")
    bench.wait(4_900)
    assert bench.store.max_offset("T", 2) == 0
    bench.wait(200)
    (record,) = bench.stored("T", 2)
    assert (bytes(record.body), record.properties["DELAY"]) == (b"later", "2")
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T", "2")
    assert bench.store.entries("T", 2, 0, 1)[0][2] == tag_code("a")


def test_levels_do_not_wait_for_each_other(bench: Any) -> None:
    bench.wait(1_000)
    for level in (3, 1, 2):
        bench.send("T", b"%d" % level, properties=f"DELAY\x01{level}\x02")
    bench.wait(10_200)
    assert [bytes(record.body) for record in bench.stored("T")] == [b"1", b"2", b"3"]


def test_delivery_wakes_held_pulls(bench: Any) -> None:
    bench.send("T")
    bench.wait(1_000)
    bench.send("T", properties="DELAY\x011\x02")
    opaque = bench.request(11, bench.pull_fields("T", 1, sys_flag=6, suspend_ms=15_000))
    bench.wait(900)
    assert bench.answered(opaque) is None
    bench.wait(300)
    assert bench.answered(opaque).code == 0


def test_a_stopped_broker_delivers_the_rest_after_its_start_and_nothing_twice(
    new_bench: Callable[..., Any],
) -> None:
    bench = new_bench()
    bench.wait(1_000)
    bench.send("T", b"first", properties="DELAY\x011\x02")
    bench.wait(2_000)
    bench.send("T", b"second", properties="DELAY\x012\x02")
    bench.close()
    bench.now_ms += 60_000
    bench.open()
    bench.wait(900)
    assert len(bench.stored("T")) == 1
    bench.wait(300)
    assert [bytes(record.body) for record in bench.stored("T")] == [b"first", b"second"]


def test_progress_counts_only_when_the_delivered_message_is_durable(bench: Any) -> None:
    bench.wait(1_000)
    bench.send("T", properties="DELAY\x011\x02")
    bench.now_ms += 1_100
    bench.broker.tick(bench.now_ms)
    assert bench.broker.delay.progress.get(1, 0) == 0
    bench.flush()
    assert bench.broker.delay.progress[1] == 1


def test_a_delivery_that_the_disk_refused_is_made_again(bench: Any) -> None:
    bench.wait(1_000)
    bench.send("T", properties="DELAY\x011\x02")
    bench.now_ms += 1_100
    bench.broker.tick(bench.now_ms)
    flush = bench.store.take_flush()
    error = OSError(5, "Input/output error")
    bench.store.flushed(flush, error)
    bench.broker.flush_failed(error, bench.now_ms)
    bench.store.writable = True
    bench.wait(300)
    assert len(bench.stored("T")) == 1


def test_a_backlog_is_worked_off_in_bounded_steps(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELAY_DELIVERIES_PER_TICK", 3)
    bench.wait(500)
    for _ in range(7):
        bench.send("T", properties="DELAY\x011\x02")
    bench.now_ms += 5_000
    counts = []
    for _ in range(4):
        bench.now_ms += 100
        bench.broker.tick(bench.now_ms)
        bench.flush()
        counts.append(bench.store.max_offset("T", 0))
    assert counts == [3, 6, 7, 7]


def test_a_due_time_beyond_the_level_counts_as_due(bench: Any) -> None:
    """A clock that was set back must not keep messages for ever."""
    bench.wait(1_000)
    bench.send("T", properties="DELAY\x011\x02")
    bench.now_ms -= 100_000
    bench.broker.delay._next_look_ms = 0
    bench.broker.tick(bench.now_ms)
    bench.flush()
    assert len(bench.stored("T")) == 1


def test_a_message_of_a_lost_half_is_discarded(bench: Any) -> None:
    bench.wait(1_000)
    text = b"DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02"
    host = bench.peer.remote_host
    bench.store.append(SCHEDULE_TOPIC, 0, 0, 0, 0, host, 0, 0, b"x", text, bench.now_ms, (), bench.now_ms)
    bench.flush()
    bench.wait(300)
    assert bench.store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) == 0
    assert bench.broker.delay.progress[1] == 1
