"""What the broker counts: per topic, queue and group for the tools, and in total for its runtime info.

Counting is on the path of every send and pull, so it only adds to numbers; `tick` samples them into the
protocol's three windows (a minute of 10 s, an hour of 10 min, a day of 1 h). A series that stands still
keeps one sample and costs nothing but a comparison.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Final, NamedTuple

from penstock.limits import STATISTICS_SERIES
from penstock.message.names import is_system_topic

SECOND_MS: Final = 1_000
WINDOWS: Final = ((10_000, 7), (600_000, 7), (3_600_000, 25))
"""(period in ms, samples kept) of minute, hour and day."""

PUT_TIME_BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""Upper bounds of the put time classes; the last class is open."""


class Window(NamedTuple):
    sum: int
    tps: float
    avgpt: float
    """Mean value of one increment."""


class View(NamedTuple):
    minute: Window
    hour: Window
    day: Window


class _Sample(NamedTuple):
    time_ms: int
    value: int
    times: int


class Series:
    """One number that only grows, with its samples."""

    __slots__ = ("_samples", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self._samples = tuple([_Sample(0, 0, 0)] for _ in WINDOWS)

    def add(self, value: int) -> None:
        self.value += value
        self.times += 1

    def sample(self, index: int, now_ms: int) -> None:
        samples = self._samples[index]
        last = samples[-1]
        if last.times == self.times and samples[0].times == self.times:
            if len(samples) > 1:
                del samples[:-1]
            return
        period_ms, kept = WINDOWS[index]
        if len(samples) == 1:  # a beginning counts from one period ago; after a standstill the window is full
            back = kept - 1 if last.times else 1
            samples[:] = [last._replace(time_ms=now_ms - period_ms * n) for n in range(back, 0, -1)]
        samples.append(_Sample(now_ms, self.value, self.times))
        if len(samples) > kept:
            del samples[0]

    def window(self, index: int) -> Window:
        first, last = self._samples[index][0], self._samples[index][-1]
        total, times, elapsed_ms = (
            last.value - first.value,
            last.times - first.times,
            last.time_ms - first.time_ms,
        )
        return Window(
            total, total * 1000 / elapsed_ms if elapsed_ms else 0.0, total / times if times else 0.0
        )

    def view(self) -> View:
        return View(self.window(0), self.window(1), self.window(2))


class _Pair(NamedTuple):
    """Messages and bytes are always counted together."""

    messages: Series
    size: Series

    def add(self, messages: int, size_bytes: int, requests: int = 1) -> None:
        count, size = self
        count.value += messages
        count.times += requests
        size.value += size_bytes
        size.times += requests


class _Counts:
    """What one queue took, or one group got of it, since the last sample."""

    __slots__ = ("is_user", "messages", "of_all", "of_queue", "requests", "size_bytes")

    def __init__(self, of_all: _Pair, of_queue: _Pair, is_user: bool) -> None:
        self.of_all = of_all
        """The series of the topic, or of the group's reading of it."""
        self.of_queue = of_queue
        self.is_user = is_user
        self.requests = self.messages = self.size_bytes = 0

    def add_up(self) -> None:
        if self.requests:
            self.of_all.add(self.messages, self.size_bytes, self.requests)
            self.of_queue.add(self.messages, self.size_bytes, self.requests)
            self.requests = self.messages = self.size_bytes = 0


class Totals(NamedTuple):
    """Everything since the start; differences of two give rates."""

    time_ms: int = 0
    puts: int = 0
    found: int = 0
    missed: int = 0
    transferred: int = 0


class Morning(NamedTuple):
    """User messages in and out, as they stood at local midnight."""

    puts: int = 0
    gets: int = 0


class Statistics:
    def __init__(self, cluster_name: str, *, now_ms: int) -> None:
        self.boot_ms = now_ms
        self.put_messages = 0
        self.put_bytes = 0
        self.put_failures = 0
        self.put_max_ms = 0
        self.put_times = [0] * (len(PUT_TIME_BOUNDS_MS) + 1)
        self.found_pulls = 0
        self.missed_pulls = 0
        self.transferred_messages = 0
        self.user_puts = 0
        self.user_gets = 0
        self.yesterday_morning = Morning()
        self.today_morning = Morning()
        self._cluster = cluster_name
        self._series: dict[tuple[str, str], Series] = {}
        self._overflow = Series()
        self._puts: dict[tuple[str, int], _Counts] = {}
        self._gets: dict[tuple[str, str, int], _Counts] = {}
        self._seconds: deque[Totals] = deque([self._totals(now_ms)], maxlen=601)
        self._due_ms = [now_ms + period_ms for period_ms, _ in WINDOWS]
        self._day = _local_day(now_ms)

    # ---- counting ---------------------------------------------------------------------------------------

    def count_put(self, topic: str, queue_id: int, messages: int, size_bytes: int) -> None:
        """Stored messages of one request; `_add_up` brings them to the series when those are sampled."""
        puts = self._puts.get((topic, queue_id))
        if puts is None:
            puts = self._puts[topic, queue_id] = _Counts(
                self._pair("TOPIC_PUT", topic),
                self._pair("QUEUE_PUT", f"{topic}@{queue_id}"),
                not is_system_topic(topic),
            )
        puts.requests += 1
        puts.messages += messages
        puts.size_bytes += size_bytes
        self.put_messages += messages
        self.put_bytes += size_bytes
        if puts.is_user:
            self.user_puts += messages

    def _add_up(self) -> None:
        for puts in self._puts.values():
            puts.add_up()
        for gets in self._gets.values():
            gets.add_up()

    def count_put_failure(self) -> None:
        self.put_failures += 1

    def count_put_time(self, messages: int, elapsed_ms: int) -> None:
        """How long a flushed group of messages took from arrival to durable."""
        for index, bound in enumerate(PUT_TIME_BOUNDS_MS):
            if elapsed_ms <= bound:
                self.put_times[index] += messages
                break
        else:
            self.put_times[-1] += messages
        self.put_max_ms = max(self.put_max_ms, elapsed_ms)

    def count_get(self, group: str, topic: str, queue_id: int, messages: int, size_bytes: int) -> None:
        """Messages handed out by one pull or pop, brought to the series as those of `count_put` are."""
        gets = self._gets.get((group, topic, queue_id))
        if gets is None:
            if len(self._gets) >= STATISTICS_SERIES:
                self._forget_gets()
            gets = self._gets[group, topic, queue_id] = _Counts(
                self._pair("GROUP_GET", f"{topic}@{group}"),
                self._pair("QUEUE_GET", f"{topic}@{queue_id}@{group}"),
                not is_system_topic(topic),
            )
        gets.requests += 1
        gets.messages += messages
        gets.size_bytes += size_bytes
        self.found_pulls += 1
        self.transferred_messages += messages
        if gets.is_user:
            self.user_gets += messages

    def _forget_gets(self) -> None:
        """The series have what was counted; the table finds them again for who reads on."""
        self._add_up()
        self._gets.clear()

    def count_get_miss(self) -> None:
        self.missed_pulls += 1

    def add(self, name: str, key: str, value: int = 1) -> None:
        """The rarer counts, by the protocol's own names (SNDBCK_PUT_NUMS with key topic@group, ...)."""
        self._find_or_make(name, key).add(value)

    def _pair(self, kind: str, key: str) -> _Pair:
        return _Pair(self._find_or_make(f"{kind}_NUMS", key), self._find_or_make(f"{kind}_SIZE", key))

    def _find_or_make(self, name: str, key: str) -> Series:
        series = self._series.get((name, key))
        if series is None:
            if len(self._series) >= STATISTICS_SERIES:
                return self._overflow
            series = self._series[name, key] = Series()
        return series

    def forget_topic(self, topic: str) -> None:
        self._add_up()
        self._puts = {key: puts for key, puts in self._puts.items() if key[0] != topic}
        self._gets = {key: gets for key, gets in self._gets.items() if key[1] != topic}
        self._series = {
            (name, key): series
            for (name, key), series in self._series.items()
            if key.partition("@")[0] != topic or name.startswith("BROKER_")
        }

    def forget_group(self, group: str) -> None:
        self._add_up()
        self._gets = {key: gets for key, gets in self._gets.items() if key[0] != group}
        self._series = {
            (name, key): series
            for (name, key), series in self._series.items()
            if not key.endswith(f"@{group}") or name.startswith("QUEUE_PUT_")
        }

    # ---- asking -----------------------------------------------------------------------------------------

    def view(self, name: str, key: str) -> View | None:
        """None for what was never counted."""
        series = self._series.get((name, key))
        return series.view() if series is not None else None

    def tps(self, name: str, key: str) -> float:
        """Rate of the last minute; 0 for what was never counted."""
        series = self._series.get((name, key))
        return series.window(0).tps if series is not None else 0.0

    def rates(self, seconds: int) -> Totals:
        """Counts and elapsed ms of the last so many seconds, as far as they were sampled."""
        newest = self._seconds[-1]
        oldest = self._seconds[max(0, len(self._seconds) - 1 - seconds)]
        return Totals(*(new - old for new, old in zip(newest, oldest, strict=True)))

    # ---- time -------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        if now_ms - self._seconds[-1].time_ms >= SECOND_MS:
            self._seconds.append(self._totals(now_ms))
            self._turn_day(now_ms)
        for index, (period_ms, _) in enumerate(WINDOWS):
            if now_ms >= self._due_ms[index]:
                self._due_ms[index] = now_ms + period_ms
                self._count_broker()
                self._add_up()
                for series in self._series.values():
                    series.sample(index, now_ms)

    def _count_broker(self) -> None:
        """The broker-wide series repeat totals, so they are filled when looked at, not with each send."""
        for name, total in (
            ("BROKER_PUT_NUMS", self.put_messages),
            ("BROKER_GET_NUMS", self.transferred_messages),
            ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", self.user_puts),
            ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", self.user_gets),
        ):
            if total:
                series = self._find_or_make(name, self._cluster)
                if total != series.value:
                    series.add(total - series.value)

    def _totals(self, now_ms: int) -> Totals:
        return Totals(
            now_ms, self.put_messages, self.found_pulls, self.missed_pulls, self.transferred_messages
        )

    def _turn_day(self, now_ms: int) -> None:
        day = _local_day(now_ms)
        if day != self._day:
            self._day = day
            self.yesterday_morning = self.today_morning
            self.today_morning = Morning(self.user_puts, self.user_gets)


def _local_day(now_ms: int) -> int:
    return datetime.fromtimestamp(now_ms / 1000).toordinal()
