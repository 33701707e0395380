"""The table of leases: what it costs, and that nothing of what ended stays behind."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from penstock.broker.offsets import Offsets
from penstock.broker.persistence import Kind
from penstock.broker.pop.leases import Lease, LeaseQueue, Leases

START_MS = 1_700_000_000_000
HOLDER = bytes(8)


def note(kind: int, payload: bytes) -> int:
    return 1


def grow(finish: Callable[[], None]) -> int:
    return 1


def make_leases() -> Leases:
    return Leases(note, grow, Offsets(note, note, now_ms=START_MS))


@pytest.fixture
def leases() -> Leases:
    return make_leases()


def lease_singles(leases: Leases, queue: LeaseQueue, count: int) -> None:
    """As pops of one message each make them, a few in each millisecond."""
    for offset in range(count):
        lease = Lease(offset, START_MS + offset // 20, 60_000, 0, HOLDER, 1, 1)
        assert leases.add(queue, lease, offset + 1, START_MS) is not None


def test_a_message_popped_by_itself_costs_less_than_300_bytes(leases: Leases) -> None:
    count = 50_000
    queue = leases.queue("orders", "billing", 0)
    tracemalloc.start()
    try:
        lease_singles(leases, queue, count)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / count < 300


def test_leases_that_are_acked_leave_nothing_behind(leases: Leases) -> None:
    queue = leases.queue("orders", "billing", 0)
    for _ in range(3):
        lease_singles(leases, queue, 2_000)
        for offset in range(2_000):
            assert leases.ack(queue, offset, START_MS + offset // 20, 60_000, offset)
    assert (leases.count, queue.in_flight, len(queue.leases)) == (0, 0, 0)
    assert list(leases.due.walk(lambda queue: True)) == []


def test_an_ack_that_does_not_fit_changes_nothing(leases: Leases) -> None:
    queue = leases.queue("orders", "billing", 0)
    leases.add(queue, Lease(10, START_MS, 60_000, 0, HOLDER, 3, 0b101), 13, START_MS)
    for start, pop_ms, invisible_ms, offset in (
        (9, START_MS, 60_000, 10),
        (10, START_MS + 1, 60_000, 10),
        (10, START_MS, 59_999, 10),
        (10, START_MS, 60_000, 9),
        (10, START_MS, 60_000, 11),
        (10, START_MS, 60_000, 99),
    ):
        assert not leases.ack(queue, start, pop_ms, invisible_ms, offset)
    assert queue.in_flight == 2
    assert leases.ack(queue, 10, START_MS, 60_000, 12)
    assert leases.ack(queue, 10, START_MS, 60_000, 10)
    assert leases.count == 0


def test_a_snapshot_brings_everything_back_and_damage_is_noticed(leases: Leases) -> None:
    queue = leases.queue("orders", "billing", 3)
    leases.add(queue, Lease(0, START_MS, 60_000, 0, HOLDER, 32, (1 << 32) - 1), 32, START_MS)
    leases.add(queue, Lease(32, START_MS, 60_000, 0, bytes(20), 1, 1), 33, START_MS)
    saved = b"".join(leases.snapshot())
    again = make_leases()
    again.load(saved)
    again.start(START_MS, 0)
    assert again.count == 2
    found = again.find_queue("orders", "billing", 3)
    assert found is not None
    assert found.in_flight == 33
    assert b"".join(again.snapshot()) == saved
    for damaged in (saved[:-1], saved + b"x", b"nonsense", saved[:9]):
        with pytest.raises(ValueError, match=r"."):
            make_leases().load(damaged)


def test_acks_of_one_lease_after_another_are_one_entry_in_the_order_of_what_happened() -> None:
    noted: list[tuple[int, bytes]] = []
    promised: list[Callable[[], None]] = []

    def remember(kind: int, payload: bytes) -> int:
        noted.append((kind, payload))
        return len(noted)

    def promise(finish: Callable[[], None]) -> int:
        promised.append(finish)
        return len(noted) + 1

    leases = Leases(remember, promise, Offsets(note, note, now_ms=START_MS))
    queue = leases.queue("orders", "billing", 0)
    lease = Lease(0, START_MS, 60_000, 0, HOLDER, 32, (1 << 32) - 1)
    leases.add(queue, lease, 32, START_MS)
    for offset in range(32):
        assert leases.ack(queue, 0, START_MS, 60_000, offset)
    assert [kind for kind, _ in noted] == [Kind.LEASED]
    # set back to where it was and popped again, all within a millisecond
    leases.add(queue, lease, 32, START_MS)
    assert leases.ack(queue, 0, START_MS, 60_000, 31)
    for finish in promised:
        finish()
    assert [kind for kind, _ in noted] == [
        Kind.LEASED,
        Kind.LEASE_RELEASED,
        Kind.LEASED,
        Kind.LEASE_RELEASED,
    ]
    again = make_leases()
    for kind, payload in noted:
        assert again.replay(kind, payload)
    assert list(again.snapshot()) == list(leases.snapshot())
