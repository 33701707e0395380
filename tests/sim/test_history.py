"""The checker itself: good histories pass, and every kind of bad one is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.testing.history import History

Told = Callable[[History], None]


def deliver(history: History, at: int, message: str = "m", attempt: int = 0, **others: str) -> str:
    """A delivery for a second; tells its handle."""
    handle = f"{message}@{at}"
    history.delivered(message, handle, at, until_ms=at + 1_000, attempt=attempt, **others)
    return handle


def ack(history: History, handle: str, at: int) -> None:
    history.ack_asked(handle, at)
    history.acked(handle)


def lost(history: History) -> None:
    history.sent("m", 0)
    history.finished(10_000)


def lost_after_a_delivery(history: History) -> None:
    history.sent("m", 0)
    deliver(history, 10)
    history.finished(10_000)


def never_sent(history: History) -> None:
    deliver(history, 10)


def two_consumers(history: History) -> None:
    history.sent("m", 0)
    deliver(history, 10)
    deliver(history, 500, attempt=1)


def a_millisecond_early(history: History) -> None:
    history.sent("m", 0)
    deliver(history, 10)
    deliver(history, 1_009, attempt=1)


def early_after_a_crash(history: History) -> None:
    history.sent("m", 0)
    deliver(history, 10)
    history.crashed(100)
    history.started(100)
    deliver(history, 200, attempt=1)


def early_after_a_change(history: History) -> None:
    history.sent("m", 0)
    old = deliver(history, 10)
    history.change_asked(old, 5_000)
    history.changed(old, "new", 5_000)
    deliver(history, 1_500, attempt=1)


def back_after_its_ack(history: History) -> None:
    history.sent("m", 0)
    ack(history, deliver(history, 10), 20)
    deliver(history, 2_000, attempt=1)


def back_after_its_ack_and_a_crash(history: History) -> None:
    history.sent("m", 0)
    ack(history, deliver(history, 10), 20)
    history.crashed(30)
    history.started(30)
    deliver(history, 2_000, attempt=1)


def late(history: History) -> None:
    history.sent("m", 0)
    deliver(history, 10)
    history.emptied(1_211)


def late_after_a_restart(history: History) -> None:
    history.sent("m", 0)
    deliver(history, 10)
    history.crashed(500)
    history.started(8_000)
    history.emptied(9_001)


def never_given_out(history: History) -> None:
    history.sent("m", 0)
    history.emptied(1)


def attempts_go_back(history: History) -> None:
    history.sent("m", 0)
    for number, attempt in enumerate((0, 1, 2, 1)):
        deliver(history, 10 + number * 2_000, attempt=attempt)


def attempt_not_counted(history: History) -> None:
    history.sent("m", 0)
    deliver(history, 10)
    deliver(history, 1_050, attempt=0)


def attempt_counted_though_suspended(history: History) -> None:
    history.sent("m", 0)
    old = deliver(history, 10)
    history.change_asked(old, 500)
    history.changed(old, "new", 500, suspend=True)
    deliver(history, 550, attempt=1)


def out_of_order(history: History) -> None:
    history.ordered("q", [(0, "a")], 10)
    history.ordered("q", [(1, "b")], 20)


def gap_in_a_batch(history: History) -> None:
    history.ordered("q", [(0, "a"), (2, "c")], 10)


def order_done_twice(history: History) -> None:
    history.sent("a", 0)
    history.ordered("q", [(0, "a")], 10)
    ack(history, deliver(history, 10, "a"), 20)
    history.ordered("q", [(0, "a")], 30)


def orderly_queue_not_blocked(history: History) -> None:
    history.sent("a", 0)
    for at in (10, 20):
        history.ordered("q", [(0, "a")], at)
        deliver(history, at, "a", attempt_id=str(at))


BAD = [
    lost,
    lost_after_a_delivery,
    never_sent,
    two_consumers,
    a_millisecond_early,
    early_after_a_crash,
    early_after_a_change,
    back_after_its_ack,
    back_after_its_ack_and_a_crash,
    late,
    late_after_a_restart,
    never_given_out,
    attempts_go_back,
    attempt_not_counted,
    attempt_counted_though_suspended,
    out_of_order,
    gap_in_a_batch,
    order_done_twice,
    orderly_queue_not_blocked,
]


@pytest.mark.parametrize("told", BAD, ids=lambda told: told.__name__)
def test_a_bad_history_is_found(told: Told) -> None:
    history = History()
    told(history)
    assert history.violations


def plain(history: History) -> None:
    history.sent("m", 0)
    ack(history, deliver(history, 10), 20)
    history.emptied(5_000)


def redelivered_in_time(history: History) -> None:
    history.sent("m", 0)
    deliver(history, 10)
    history.emptied(1_210)
    ack(history, deliver(history, 1_210, attempt=1), 1_300)


def changed_and_acked(history: History) -> None:
    history.sent("m", 0)
    old = deliver(history, 10)
    history.change_asked(old, 5_000)
    history.changed(old, "new", 5_000)
    history.emptied(5_100)
    ack(history, "new", 4_000)


def late_ack(history: History) -> None:
    history.sent("m", 0)
    ack(history, deliver(history, 10), 1_100)
    ack(history, deliver(history, 1_150, attempt=1), 1_200)


def unanswered_ack(history: History) -> None:
    history.sent("m", 0)
    history.ack_asked(deliver(history, 10), 20)
    history.crashed(30)
    history.started(30)
    history.emptied(9_000)


def copied_twice_by_a_crash(history: History) -> None:
    history.sent("m", 0)
    deliver(history, 10)
    history.crashed(1_020)
    history.started(1_030)
    ack(history, deliver(history, 1_100, attempt=1), 1_110)
    ack(history, deliver(history, 1_120, attempt=1), 1_130)


def answer_lost(history: History) -> None:
    history.sent("m", 0)
    history.pop_lost(10, 1_000)
    history.emptied(1_200)
    ack(history, deliver(history, 1_205, attempt=1), 1_210)


def same_attempt(history: History) -> None:
    history.sent("a", 0)
    for at in (10, 20):
        history.ordered("q", [(0, "a")], at)
        last = deliver(history, at, "a", attempt_id="x")
    ack(history, last, 30)


def moved_back(history: History) -> None:
    history.sent("m", 0)
    ack(history, deliver(history, 10), 20)
    history.reset_asked(["m"])
    history.reset(["m"], [], 30)
    ack(history, deliver(history, 40), 50)


GOOD = [
    plain,
    redelivered_in_time,
    changed_and_acked,
    late_ack,
    unanswered_ack,
    copied_twice_by_a_crash,
    answer_lost,
    same_attempt,
    moved_back,
]


@pytest.mark.parametrize("told", GOOD, ids=lambda told: told.__name__)
def test_a_good_history_passes(told: Told) -> None:
    history = History()
    told(history)
    history.finished(10_000)
    assert history.violations == []
