"""Rates, fault tables, queue choice by key, subscriptions, listeners."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from penstock.client.faults import LatencyFaults
from penstock.client.listener import (
    ConsumeContext,
    ConsumeStatus,
    Listeners,
    OrderlyContext,
    OrderlyStatus,
    RetryLater,
)
from penstock.client.sender import PublishInfo, by_key
from penstock.client.stats import ConsumerStats, Counter
from penstock.client.subscriptions import Subscriptions, subscription_data
from penstock.errors import InvalidArgument
from penstock.message.queue import MessageQueue

QUEUES = [MessageQueue("t", "b", number) for number in range(4)]
STEPS = ((15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000))


# ---- rates --------------------------------------------------------------------------------------------


def test_a_rate_is_the_difference_of_the_oldest_and_newest_sample() -> None:
    counter = Counter()
    counter.sample(0, hour=False)
    counter.add(30, 3)
    counter.sample(10_000, hour=False)
    rate = counter.minute()
    assert (rate.total, rate.per_second, rate.average) == (30, 3, 10)
    assert counter.hour().total == 0


def test_old_samples_leave_the_minute() -> None:
    counter = Counter()
    for number in range(20):
        counter.sample(number * 10_000, hour=False)
        counter.add(1)
    assert counter.minute().total == 6


def test_failures_are_summed_over_the_hour() -> None:
    stats = ConsumerStats()
    topic = stats.topic("t")
    stats.sample(0)
    topic.consume_failed.add(5)
    for tick in range(1, 61):
        stats.sample(tick * 10_000)
    status = topic.status()
    assert status.consume_failed_msgs == 5
    assert status.consume_failed_tps == 0


# ---- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latency", "avoided"),
    [(0, 0), (549, 0), (550, 2_000), (1_800, 5_000), (3_000, 6_000), (5_000, 10_000), (15_000, 30_000)],
)
def test_a_slow_broker_is_avoided_by_its_latency(latency: int, avoided: int) -> None:
    faults = LatencyFaults(STEPS, enabled=True)
    faults.note("b", latency, isolate=False, reachable=True, now_ms=1_000)
    assert faults.available("b", 1_000 + avoided)
    assert not avoided or not faults.available("b", 999 + avoided)


def test_a_failed_broker_counts_as_ten_seconds_slow_and_a_good_answer_does_not_clear_it() -> None:
    faults = LatencyFaults(STEPS, enabled=True)
    faults.note("b", 1, isolate=True, reachable=False, now_ms=0)
    faults.note("b", 1, isolate=False, reachable=True, now_ms=10)
    assert not faults.available("b", 9_999)
    assert faults.available("b", 10_000)
    assert faults.reachable("b")


def test_nothing_is_noted_while_fault_tolerance_is_off() -> None:
    faults = LatencyFaults(STEPS, enabled=False)
    faults.note("b", 1, isolate=True, reachable=False, now_ms=0)
    assert faults.available("b", 0)
    assert faults.reachable("b")


# ---- queues -------------------------------------------------------------------------------------------


@pytest.mark.scenario(69)
@pytest.mark.parametrize(
    ("key", "index"), [("order-17", 1), (7, 3), (-7, 3), (2**40 + 5, 1), ("polygenelubricants", 0), ("", 0)]
)
def test_a_key_finds_the_queue_that_other_clients_find(key: Any, index: int) -> None:
    assert by_key(QUEUES, key) == QUEUES[index]


def test_turns_go_round_all_queues() -> None:
    info = PublishInfo(QUEUES)
    assert {info.next() for _ in range(4)} == set(QUEUES)


# ---- subscriptions ------------------------------------------------------------------------------------


@pytest.mark.behaviour("START-1")
def test_an_expression_becomes_subscription_data() -> None:
    data = subscription_data("t", " TagA || TagB||", None)
    assert data.tags_set == ["TagA", "TagB"]
    assert data.code_set == [2598919, 2598920]
    assert data.sub_string == " TagA || TagB||"
    everything = subscription_data("t", None, None)
    assert (everything.sub_string, everything.tags_set, everything.expression_type) == ("*", [], "TAG")
    sql = subscription_data("t", None, "a > 5")
    assert (sql.sub_string, sql.expression_type, sql.tags_set) == ("a > 5", "SQL92", [])


def test_a_subscription_is_by_tags_or_by_sql() -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        subscription_data("t", "a", "a > 5")
    with pytest.raises(InvalidArgument, match="empty"):
        subscription_data("t", None, "  ")


def test_a_new_version_counts_only_after_it_was_announced() -> None:
    subscriptions = Subscriptions()
    data = subscription_data("t", None, None)
    subscriptions.put(data)
    first = data.sub_version
    subscriptions.bump("t")
    assert data.sub_version > first
    assert subscriptions.announced_version("t") == first
    subscriptions.announced("t")
    assert subscriptions.announced_version("t") == data.sub_version


# ---- listeners ----------------------------------------------------------------------------------------


def test_a_consumer_has_one_kind_of_listener() -> None:
    listeners = Listeners(lambda messages, context: ConsumeStatus.SUCCESS)
    assert listeners.defined
    assert not listeners.one_by_one
    with pytest.raises(InvalidArgument, match="not both"):
        listeners.add("t", print)
    handlers = Listeners(None)
    assert not handlers.defined
    handlers.add("t", print)
    with pytest.raises(InvalidArgument, match="already"):
        handlers.add("t", print)


def test_coroutine_functions_are_recognised_also_as_objects() -> None:
    class Callable:
        async def __call__(self, message: Any) -> None:
            return

    async def coroutine(message: Any) -> None:
        return

    handlers = Listeners(None)
    handlers.add("plain", print)
    handlers.add("coroutine", coroutine)
    handlers.add("object", Callable())
    assert [handlers.is_async(topic) for topic in ("plain", "coroutine", "object")] == [False, True, True]


def test_a_handler_that_returns_has_succeeded_in_either_mode(make_message: Any) -> None:
    handlers = Listeners(None)
    handlers.add("T", lambda message: "ignored")
    message = make_message(1)
    assert handlers.call([message], ConsumeContext(message.queue)) is ConsumeStatus.SUCCESS
    assert handlers.call([message], OrderlyContext(message.queue)) is OrderlyStatus.SUCCESS
    with pytest.raises(InvalidArgument, match="no handler for topic U"):
        handlers.call([make_message(1, topic="U")], ConsumeContext(message.queue))


def test_retry_later_carries_its_delay() -> None:
    assert RetryLater(level=5).level == 5
    assert str(RetryLater("the bank is closed", level=5)) == "the bank is closed"


def test_rooms_with_public_names_need_no_import_of_their_own() -> None:
    code = "import penstock; penstock.sync.Producer, penstock.testing.broker, penstock.errors.PenstockError"
    subprocess.run(
        [sys.executable, "-c", f"{code}; penstock.spark.session; penstock.admin.AdminClient"], check=True
    )
