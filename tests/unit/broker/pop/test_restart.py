"""Leases across the end of a broker: killed or stopped, soon or late, with few leases or thousands."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.pop.helpers import item


def drain(pops: Any, **fields: Any) -> list[tuple[bytes, int]]:
    """Pops and acks until there is nothing; tells bodies and attempts."""
    found: list[tuple[bytes, int]] = []
    while (answer := pops.pop(**fields)).code == 0:
        found += [(message.body, message.times) for message in answer.messages]
        pops.batch_ack(answer.messages)
    return found


@pytest.mark.scenario(34)
@pytest.mark.behaviour("POP-7")
def test_a_kill_after_the_reply_loses_nothing_and_gives_nothing_out_early(pops: Any) -> None:
    pops.send(5)
    popped = pops.pop(most=3, invisible_ms=10_000)
    pops.kill()
    assert pops.offset() == 3
    assert pops.pop(most=5).bodies == [b"m3", b"m4"]
    assert pops.ack(popped.messages[1]).code == 0  # its handle is as good as before
    pops.bench.wait(10_100, step_ms=100)
    assert drain(pops) == [(b"m0", 1), (b"m2", 1)]


@pytest.mark.scenario(34)
def test_a_kill_before_the_lease_is_durable_means_that_nothing_happened(pops: Any) -> None:
    pops.send(2)
    number = pops.bench.request(200050, pops.fields())
    assert pops.bench.answered(number) is None
    pops.kill()
    assert pops.pop().bodies == [b"m0", b"m1"]


@pytest.mark.scenario(35)
@pytest.mark.behaviour("POP-10")
def test_what_was_acked_stays_away_after_a_kill(pops: Any) -> None:
    pops.send(4)
    batch = pops.pop(invisible_ms=5_000).messages
    pops.ack(batch[0])
    pops.batch_ack(batch[2:])
    pops.kill()
    pops.bench.wait(6_000, step_ms=100)
    assert drain(pops) == [(b"m1", 1)]


@pytest.mark.scenario(36)
def test_a_kill_between_copy_and_release_gives_at_most_one_copy_more(pops: Any) -> None:
    pops.send(3)
    pops.pop(invisible_ms=1_000)
    bench = pops.bench
    bench.now_ms += 1_100
    bench.broker.tick(bench.now_ms)
    flush = bench.store.take_flush()
    flush.run()
    bench.store.flushed(flush)  # the copies are on the disk; the broker has not heard of it
    pops.kill()
    bench.wait(200)
    found = drain(pops)
    assert {body for body, _ in found} == {b"m0", b"m1", b"m2"}
    assert len(found) <= 6
    assert {times for _, times in found} == {1}


@pytest.mark.scenario(37)
@pytest.mark.parametrize("written", [True, False])
def test_a_kill_in_the_middle_of_a_change_leaves_one_lease_or_the_other(pops: Any, written: bool) -> None:
    """Both halves of a change are one entry of the journal, so there is no in-between."""
    pops.send(1)
    (message,) = pops.pop(invisible_ms=5_000).messages
    bench = pops.bench
    fields = pops.ack_fields(message, invisibleTime=20_000)
    bench.request(200053, fields)
    if written:
        flush = bench.store.take_flush()
        flush.run()
    pops.kill()
    assert pops.in_flight() == 1
    bench.wait(5_100, step_ms=100)
    assert len(drain(pops)) == (0 if written else 1)
    bench.wait(16_000, step_ms=100)
    assert len(drain(pops)) == (1 if written else 0)


@pytest.mark.scenario(38)
@pytest.mark.parametrize("way", ["kill", "stop"])
def test_what_ran_out_while_the_broker_was_down_comes_back_at_once(pops: Any, way: str) -> None:
    pops.send(5)
    pops.pop(invisible_ms=10_000)
    if way == "kill":
        pops.bench.store.disk.unlock()
    else:
        pops.bench.close()
    pops.bench.now_ms += 3_600_000
    pops.bench.open()
    pops.bench.wait(100, step_ms=20)
    assert drain(pops) == [(b"m%d" % number, 1) for number in range(5)]


@pytest.mark.parametrize("way", ["kill", "restart"])
def test_thousands_of_leases_are_there_after_a_restart_and_end_in_their_time(pops: Any, way: str) -> None:
    count = 6_000
    for number in range(count // 200):
        body = b"".join(item(b"m%d" % (number * 200 + at), "") for at in range(200))
        assert pops.bench.send("T", body, batch=True).code == 0
    held: list[Any] = []
    while len(held) < count:
        most = 1 if len(held) < 2_000 else 32
        for _ in range(50):
            number = pops.bench.request(200050, pops.fields(most=most, invisible_ms=30_000))
            held.append(number)
        pops.bench.flush()
        numbers = [number for number in held if isinstance(number, int)]
        held = [message for message in held if not isinstance(message, int)]
        for number in numbers:
            asked = pops.fields(invisible_ms=30_000)
            held += pops.read(pops.bench.answered(number), asked).messages
        pops.bench.peer.received.clear()
        pops.bench.wait(20, step_ms=20)
    acked = held[::3]
    for message in acked:
        pops.bench.request(200051, pops.ack_fields(message), oneway=True)
    pops.bench.flush()
    getattr(pops, way)()
    left = {message.body for message in held} - {message.body for message in acked}
    assert pops.lag().in_flight == len(left)
    start_ms = pops.bench.now_ms
    pops.bench.wait(29_000, step_ms=200)
    assert pops.pop().code == 210 or pops.bench.now_ms - start_ms < 30_000
    pops.bench.wait(2_000, step_ms=20)
    found = drain(pops)
    assert sorted(body for body, _ in found) == sorted(left)


def test_leases_survive_in_snapshot_and_journal_together(pops: Any) -> None:
    """Some leases are in the saved file, some in the journal behind it, some changed in between."""
    pops.send(9)
    early = pops.pop(most=3, invisible_ms=60_000).messages
    pops.bench.wait(16_000, step_ms=500)  # the tables are saved
    late = pops.pop(most=3, invisible_ms=60_000).messages
    pops.ack(early[0])
    pops.change(early[1], 100_000)
    pops.kill()
    pops.bench.wait(16_000, step_ms=500)
    pops.kill()
    assert sorted(offset for lease in pops.leases().leases for offset in lease.offsets) == [1, 2, 3, 4, 5]
    assert pops.ack(early[1]).code == 0
    assert pops.ack(late[2]).code == 0
    assert pops.lag().in_flight == 3
    assert pops.lag().delayed == 0


def test_a_damaged_snapshot_of_leases_is_refused_with_a_reason(pops: Any) -> None:
    pops.send(1)
    pops.pop()
    pops.bench.close()
    (file,) = (pops.bench.directory / "penstock").glob("leases")
    file.write_bytes(file.read_bytes()[:-3])
    for backup in (pops.bench.directory / "penstock").glob("leases.bak"):
        backup.unlink()
    with pytest.raises(Exception, match="leases"):
        pops.bench.open()
    pops.bench.store.disk.unlock()
    file.unlink()
    pops.bench.open()


@pytest.mark.parametrize("ticks", range(12))
def test_a_snapshot_in_portions_and_the_journal_tell_what_changed_between_two_of_them(
    pops: Any, monkeypatch: pytest.MonkeyPatch, ticks: int
) -> None:
    """Killed this many ticks after the snapshot was begun, with a pop, an ack and a change in each tick."""
    monkeypatch.setattr("penstock.broker.pop.leases.PORTION", 2)
    bench = pops.bench
    pops.topic(queues=2)
    pops.send(60)
    held = [pops.pop(most=1, invisible_ms=40_000).messages[0] for _ in range(12)]
    expected = {message.body for message in held}
    bench.wait(20_000, step_ms=1_000)  # whatever snapshot there was is saved
    persistence = bench.broker.persistence
    pops.ack(held[11])
    expected.remove(held[11].body)
    while persistence._save is None:
        bench.now_ms += 100
        bench.broker.tick(bench.now_ms)
    bench.flush()
    for number in range(ticks):
        bench.now_ms += 20
        bench.broker.tick(bench.now_ms)
        if number < 8:
            (new,) = pops.pop(most=1, invisible_ms=40_000).messages
            pops.ack(held[number])
            assert pops.change(held[number + 1], 39_000).code == 0
            expected = expected - {held[number].body} | {new.body}
    saved = bench.store.disk.exists("penstock/leases.bak")
    assert saved or ticks < 10
    pops.kill()
    assert pops.in_flight() == len(expected)
    pops.bench.wait(41_000, step_ms=100)
    popped = {body for body, _ in drain(pops)}
    assert expected <= popped
    assert {body for body in popped if int(body[1:]) < 12} == {m for m in expected if int(m[1:]) < 12}
