"""Histories that must not be, each with the one thing wrong that the checker has to find."""

from __future__ import annotations

import pytest

from penstock.message.queue import MessageQueue
from penstock.testing.consume_history import ConsumeHistory, GroupRules

QUEUE = MessageQueue("orders", "b", 0)
LINE = MessageQueue("lines", "b", 0)


@pytest.fixture
def history() -> ConsumeHistory:
    return ConsumeHistory(
        {
            "work": GroupRules(
                "orders", max_reconsume_times=2, consume_timeout_s=60, retry_delays_s=(10.0, 30.0)
            ),
            "line": GroupRules("lines", orderly=True, max_reconsume_times=1, consume_timeout_s=60),
        }
    )


def consume(
    history: ConsumeHistory,
    message_id: str,
    offset: int,
    began: float,
    ended: float | None,
    *,
    ok: bool = True,
    attempt: int = 0,
    group: str = "work",
    queue: MessageQueue = QUEUE,
    consumer: str = "c1",
) -> None:
    call = history.began(group, consumer, message_id, queue, offset, attempt, began)
    if ended is not None:
        history.ended(call, ok, ended)


def test_a_message_that_fails_twice_and_becomes_a_dead_letter_is_a_good_history(
    history: ConsumeHistory,
) -> None:
    history.stored("orders", "m")
    for attempt, began in enumerate((0, 11, 50)):
        consume(history, "m", attempt, began, began + 1, ok=False, attempt=attempt)
    history.dead("work", "m", 60)
    history.committed("work", QUEUE, 3, 61)
    assert history.problems() == []


def test_duplicates_are_allowed(history: ConsumeHistory) -> None:
    history.stored("orders", "m")
    consume(history, "m", 0, 0, 1)
    consume(history, "m", 0, 2, 3, consumer="c2")
    assert history.problems() == []


def test_a_stored_message_that_nobody_consumed_is_lost(history: ConsumeHistory) -> None:
    history.stored("orders", "m")
    assert history.problems() == ["group work lost 1 message(s), one is m"]


def test_a_message_that_only_failed_is_lost(history: ConsumeHistory) -> None:
    history.stored("orders", "m")
    consume(history, "m", 0, 0, 1, ok=False)
    assert history.unfinished() == {"work": {"m"}}


def test_a_message_whose_consumer_died_with_it_is_lost(history: ConsumeHistory) -> None:
    history.stored("orders", "m")
    consume(history, "m", 0, 0, None)
    history.died("c1", 1)
    assert history.unfinished() == {"work": {"m"}}


def test_an_offset_past_a_message_that_was_never_begun_is_too_early(history: ConsumeHistory) -> None:
    consume(history, "m", 1, 0, 1)
    history.committed("work", QUEUE, 2, 2)
    assert "not done with offset 0" in history.problems()[0]


def test_an_offset_past_a_message_that_a_listener_still_has_is_too_early(history: ConsumeHistory) -> None:
    consume(history, "m", 0, 0, None)
    history.committed("work", QUEUE, 1, 2)
    assert "not done with offset 0" in history.problems()[0]


def test_an_offset_past_a_message_that_takes_too_long_is_right(history: ConsumeHistory) -> None:
    consume(history, "m", 0, 0, None)
    history.committed("work", QUEUE, 1, 61)
    assert history.problems() == []


def test_an_offset_past_a_message_that_died_with_its_consumer_is_never_right(history: ConsumeHistory) -> None:
    consume(history, "m", 0, 0, None)
    history.died("c1", 1)
    history.committed("work", QUEUE, 1, 1_000)
    assert "not done with offset 0" in history.problems()[0]


@pytest.mark.parametrize(("died", "wrong"), [(59, ["but did not fail in attempt(s) [2]"]), (61, [])])
def test_an_attempt_that_took_too_long_has_failed_if_its_consumer_lived_to_say_so(
    history: ConsumeHistory, died: float, wrong: list[str]
) -> None:
    for attempt, began in enumerate((0, 11)):
        consume(history, "m", attempt, began, began + 1, ok=False, attempt=attempt)
    consume(history, "m", 2, 50, None, attempt=2)
    history.died("c1", 50 + died)
    history.dead("work", "m", 1_000)
    assert [problem.partition(", ")[2] for problem in history.problems()] == wrong


def test_an_orderly_offset_past_a_message_that_failed_is_too_early(history: ConsumeHistory) -> None:
    consume(history, "m", 0, 0, 1, ok=False, group="line", queue=LINE)
    history.committed("line", LINE, 1, 2)
    assert "not done with offset 0" in history.problems()[0]


def test_an_attempt_after_one_that_succeeded_is_wrong(history: ConsumeHistory) -> None:
    consume(history, "m", 0, 0, 1)
    consume(history, "m", 1, 20, 21, attempt=1)
    assert "no attempt 0 failed before it" in history.problems()[0]


def test_an_attempt_that_skips_one_is_wrong(history: ConsumeHistory) -> None:
    consume(history, "m", 0, 0, 1, ok=False)
    consume(history, "m", 1, 50, 51, attempt=2)
    assert "no attempt 1 failed before it" in history.problems()[0]


def test_an_attempt_before_its_delay_is_too_early(history: ConsumeHistory) -> None:
    consume(history, "m", 0, 0, 1, ok=False)
    consume(history, "m", 1, 5, 6, attempt=1)
    assert "4.000 s after the last one, not 10.0 s" in history.problems()[0]


def test_an_attempt_after_the_last_is_one_too_many(history: ConsumeHistory) -> None:
    for attempt in range(4):
        consume(history, "m", attempt, attempt * 100, attempt * 100 + 1, ok=False, attempt=attempt)
    assert "at most 2 were allowed" in history.problems()[0]


@pytest.mark.parametrize(("back", "allowed"), [(300, True), (100, False)])
def test_one_attempt_more_is_right_only_when_a_broker_was_away(
    history: ConsumeHistory, back: float, allowed: bool
) -> None:
    history.broker_away("b", 50)
    history.broker_back("b", back)
    for attempt in range(4):
        consume(history, "m", attempt, attempt * 100, attempt * 100 + 1, ok=False, attempt=attempt)
    assert (history.problems() == []) is allowed


def test_a_dead_letter_before_the_last_attempt_failed_is_too_early(history: ConsumeHistory) -> None:
    consume(history, "m", 0, 0, 1, ok=False)
    history.dead("work", "m", 2)
    assert "did not fail in attempt(s) [1, 2]" in history.problems()[0]


def test_an_orderly_message_before_the_one_ahead_of_it_is_out_of_order(history: ConsumeHistory) -> None:
    consume(history, "n", 1, 0, 1, group="line", queue=LINE)
    assert "before offset 0 was done with" in history.problems()[0]


def test_an_orderly_message_after_one_that_failed_is_out_of_order(history: ConsumeHistory) -> None:
    consume(history, "m", 0, 0, 1, ok=False, group="line", queue=LINE)
    consume(history, "n", 1, 2, 3, group="line", queue=LINE)
    assert "before offset 0 was done with" in history.problems()[0]


def test_two_listeners_in_one_queue_of_an_orderly_group_are_wrong(history: ConsumeHistory) -> None:
    consume(history, "m", 0, 0, None, group="line", queue=LINE)
    consume(history, "m", 0, 1, 2, group="line", queue=LINE, consumer="c2")
    assert "while c1 had offset 0" in history.problems()[0]


@pytest.mark.parametrize("reason", ["death", "restart"])
def test_a_second_listener_is_right_when_the_first_lost_its_lock(
    history: ConsumeHistory, reason: str
) -> None:
    consume(history, "m", 0, 0, None, group="line", queue=LINE)
    if reason == "death":
        history.died("c1", 0.5)
    else:
        history.broker_away("b", 0.5)
    consume(history, "m", 0, 1, 2, group="line", queue=LINE, consumer="c2")
    assert history.problems() == []
