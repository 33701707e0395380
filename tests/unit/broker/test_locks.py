from __future__ import annotations

from typing import Any

import pytest

from penstock import limits
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody

QUEUES = [MessageQueue("T", "broker-a", i) for i in range(3)]


def lock(bench: Any, client: str, queues: list[MessageQueue] = QUEUES) -> list[MessageQueue]:
    answer = bench.ask(41, None, LockBatchRequestBody("G", client, mq_set=queues).encode())
    assert answer.code == 0
    return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set


def test_a_free_queue_is_locked_for_the_first_who_asks(bench: Any) -> None:
    assert lock(bench, "one", QUEUES[:2]) == QUEUES[:2]
    assert lock(bench, "two") == QUEUES[2:]
    assert lock(bench, "one", QUEUES[:2]) == QUEUES[:2]


def test_a_lock_is_taken_over_when_it_was_not_renewed_for_a_minute(bench: Any) -> None:
    lock(bench, "one")
    bench.now_ms += 59_000
    assert lock(bench, "two") == []
    bench.now_ms += 2_000
    assert lock(bench, "two") == QUEUES


def test_renewing_keeps_a_lock(bench: Any) -> None:
    lock(bench, "one")
    for _ in range(5):
        bench.now_ms += 20_000
        assert lock(bench, "one") == QUEUES
        assert lock(bench, "two") == []


def test_only_the_owner_can_unlock(bench: Any) -> None:
    lock(bench, "one")
    bench.ask(42, None, UnlockBatchRequestBody("G", "two", mq_set=QUEUES).encode())
    assert lock(bench, "two") == []
    assert bench.ask(42, None, UnlockBatchRequestBody("G", "one", mq_set=QUEUES).encode()).code == 0
    assert lock(bench, "two") == QUEUES


def test_the_reply_without_locks_has_an_empty_list(bench: Any) -> None:
    lock(bench, "one")
    answer = bench.ask(41, None, LockBatchRequestBody("G", "two", mq_set=QUEUES).encode())
    assert answer.body == b'{"lockOKMQSet":[]}'


def test_a_body_that_is_none_is_an_error(bench: Any) -> None:
    assert bench.ask(41).code == 1
    assert bench.ask(42, None, b"[").code == 1


def test_locks_have_a_bound_and_dead_ones_are_forgotten(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_LOCKS_PER_BROKER", 2)
    assert lock(bench, "one") == QUEUES[:2]
    bench.wait(75_000, step_ms=5_000)
    assert bench.broker.locks.table == {}
    assert lock(bench, "two", QUEUES[1:]) == QUEUES[1:]
