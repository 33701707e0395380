from __future__ import annotations

from datetime import datetime

import pytest

from penstock.broker import stats
from penstock.broker.stats import Statistics, Window

NOON_MS = int(datetime(2026, 3, 5, 12).timestamp() * 1000)


def make() -> Statistics:
    return Statistics("DefaultCluster", now_ms=NOON_MS)


def run(statistics: Statistics, from_s: int, to_s: int) -> None:
    for second in range(from_s, to_s):
        statistics.tick(NOON_MS + second * 1000)


def test_what_was_never_counted_is_unknown() -> None:
    statistics = make()
    run(statistics, 0, 30)
    assert statistics.view("TOPIC_PUT_NUMS", "orders") is None
    assert statistics.tps("TOPIC_PUT_NUMS", "orders") == 0.0


def test_a_put_is_seen_in_the_minute_after_the_first_sample() -> None:
    statistics = make()
    statistics.count_put("orders", 3, 5, 500)
    view = statistics.view("TOPIC_PUT_NUMS", "orders")
    assert view is not None
    assert view.minute == Window(0, 0.0, 0.0)
    run(statistics, 0, 11)
    view = statistics.view("TOPIC_PUT_NUMS", "orders")
    assert view is not None
    assert view.minute == Window(5, 0.5, 5.0)
    assert view.hour == Window(0, 0.0, 0.0)
    size = statistics.view("QUEUE_PUT_SIZE", "orders@3")
    assert size is not None
    assert size.minute == Window(500, 50.0, 500.0)


def test_the_minute_window_spans_sixty_seconds_and_then_forgets() -> None:
    statistics = make()
    for second in range(100):
        statistics.count_put("orders", 0, 1, 10)
        run(statistics, second, second + 1)
    assert statistics.tps("TOPIC_PUT_NUMS", "orders") == pytest.approx(1.0)
    view = statistics.view("TOPIC_PUT_NUMS", "orders")
    assert view is not None
    assert view.minute.sum == 60
    run(statistics, 100, 200)
    view = statistics.view("TOPIC_PUT_NUMS", "orders")
    assert view is not None
    assert view.minute == Window(0, 0.0, 0.0)


def test_a_series_that_starts_again_counts_over_the_whole_window() -> None:
    statistics = make()
    statistics.count_put("orders", 0, 7, 70)
    run(statistics, 0, 300)
    statistics.count_put("orders", 0, 2, 20)
    run(statistics, 300, 311)
    view = statistics.view("TOPIC_PUT_NUMS", "orders")
    assert view is not None
    assert view.minute == Window(2, pytest.approx(2 / 60), 2.0)


def test_hour_and_day_windows_fill_at_their_own_pace() -> None:
    statistics = make()
    statistics.count_put("orders", 0, 6, 60)
    run(statistics, 0, 601)
    view = statistics.view("TOPIC_PUT_NUMS", "orders")
    assert view is not None
    assert view.hour == Window(6, 0.01, 6.0)
    assert view.day == Window(0, 0.0, 0.0)
    run(statistics, 601, 3601)
    view = statistics.view("TOPIC_PUT_NUMS", "orders")
    assert view is not None
    assert view.day.sum == 6


def test_reads_count_by_group_by_queue_and_for_the_broker() -> None:
    statistics = make()
    statistics.count_get("billing", "orders", 1, 4, 400)
    statistics.count_get("billing", "orders", 2, 1, 100)
    statistics.count_get_miss()
    run(statistics, 0, 11)
    assert statistics.tps("GROUP_GET_NUMS", "orders@billing") == 0.5
    assert statistics.tps("QUEUE_GET_SIZE", "orders@1@billing") == 40.0
    assert statistics.tps("BROKER_GET_NUMS", "DefaultCluster") == 0.5
    rates = statistics.rates(10)
    assert (rates.time_ms, rates.found, rates.missed, rates.transferred) == (10_000, 2, 1, 5)
    statistics.count_get("billing", "orders", 1, 3, 30)
    run(statistics, 11, 12)
    rates = statistics.rates(10)
    assert (rates.time_ms, rates.found, rates.transferred) == (10_000, 1, 3)


def test_system_topics_are_left_out_of_the_daily_totals() -> None:
    statistics = make()
    statistics.count_put("orders", 0, 2, 20)
    statistics.count_put("SCHEDULE_TOPIC_XXXX", 0, 3, 30)
    assert (statistics.user_puts, statistics.put_messages, statistics.put_bytes) == (2, 5, 50)


def test_mornings_move_on_at_local_midnight() -> None:
    statistics = make()
    statistics.count_put("orders", 0, 2, 20)
    statistics.tick(NOON_MS + 13 * 3_600_000)
    assert (statistics.yesterday_morning.puts, statistics.today_morning.puts) == (0, 2)
    statistics.count_put("orders", 0, 5, 50)
    statistics.tick(NOON_MS + 37 * 3_600_000)
    assert (statistics.yesterday_morning.puts, statistics.today_morning.puts) == (2, 7)


@pytest.mark.parametrize(
    ("elapsed_ms", "index"), [(0, 0), (1, 1), (10, 1), (11, 2), (10_000, 11), (10_001, 12)]
)
def test_put_times_fall_into_the_protocols_classes(elapsed_ms: int, index: int) -> None:
    statistics = make()
    statistics.count_put_time(4, elapsed_ms)
    assert [i for i, count in enumerate(statistics.put_times) if count] == [index]
    assert statistics.put_max_ms == elapsed_ms


def test_a_deleted_topic_or_group_is_forgotten_and_nothing_else() -> None:
    statistics = make()
    for topic in ("orders", "other"):
        statistics.count_put(topic, 7, 1, 1)
        for group in ("7", "billing"):
            statistics.count_get(group, topic, 0, 1, 1)
    statistics.forget_group("7")
    assert statistics.view("GROUP_GET_NUMS", "orders@7") is None
    assert statistics.view("QUEUE_PUT_NUMS", "orders@7") is not None
    statistics.forget_topic("orders")
    assert statistics.view("TOPIC_PUT_NUMS", "orders") is None
    assert statistics.view("GROUP_GET_NUMS", "orders@billing") is None
    assert statistics.view("GROUP_GET_NUMS", "other@billing") is not None
    statistics.count_put("orders", 7, 1, 1)
    view = statistics.view("TOPIC_PUT_NUMS", "orders")
    assert view is not None
    run(statistics, 0, 11)
    assert statistics.tps("TOPIC_PUT_NUMS", "orders") == 0.1


def test_past_the_bound_only_totals_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "STATISTICS_SERIES", 10)
    statistics = make()
    for number in range(50):
        statistics.count_put(f"topic{number}", 0, 1, 1)
        statistics.count_get("group", f"topic{number}", 0, 1, 1)
    assert statistics.put_messages == 50
    assert statistics.view("TOPIC_PUT_NUMS", "topic0") is not None
    assert statistics.view("TOPIC_PUT_NUMS", "topic49") is None
