"""Rates of a consumer, by topic: what the protocol calls pull RT and TPS, consume RT, OK and failed TPS.

Counters only grow; samples of them are taken every ten seconds, and a rate is the difference between the
oldest and the newest sample.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.wire.bodies import ConsumeStatus as ConsumeStatusBody

MINUTE_SAMPLES = 7
HOUR_SAMPLES = 7
TICKS_PER_HOUR_SAMPLE = 60
"""Hour samples are taken with every sixtieth minute sample: every ten minutes."""


class Counter:
    """A sum and the number of times something was added to it."""

    __slots__ = ("_hour", "_minute", "times", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.times = 0
        self._minute: deque[tuple[float, float, int]] = deque(maxlen=MINUTE_SAMPLES)
        self._hour: deque[tuple[float, float, int]] = deque(maxlen=HOUR_SAMPLES)

    def add(self, value: float, times: int = 1) -> None:
        self.value += value
        self.times += times

    def sample(self, now_ms: float, *, hour: bool) -> None:
        point = (now_ms, self.value, self.times)
        self._minute.append(point)
        if hour:
            self._hour.append(point)

    def minute(self) -> Rate:
        return _rate(self._minute)

    def hour(self) -> Rate:
        return _rate(self._hour)


@dataclass(frozen=True, slots=True)
class Rate:
    total: float = 0.0
    per_second: float = 0.0
    average: float = 0.0


def _rate(samples: deque[tuple[float, float, int]]) -> Rate:
    if len(samples) < 2:
        return Rate()
    (first_ms, first_value, first_times), (last_ms, last_value, last_times) = samples[0], samples[-1]
    total, times, elapsed_ms = last_value - first_value, last_times - first_times, last_ms - first_ms
    return Rate(
        total=total,
        per_second=total * 1000 / elapsed_ms if elapsed_ms else 0.0,
        average=total / times if times else 0.0,
    )


class TopicStats:
    __slots__ = ("consume_failed", "consume_ok", "consume_rt", "pull_messages", "pull_rt")

    def __init__(self) -> None:
        self.consume_ok = Counter()
        self.consume_failed = Counter()
        self.consume_rt = Counter()
        self.pull_messages = Counter()
        self.pull_rt = Counter()

    def sample(self, now_ms: float, *, hour: bool) -> None:
        for name in self.__slots__:
            getattr(self, name).sample(now_ms, hour=hour)

    def status(self) -> ConsumeStatusBody:
        consume_rt = self.consume_rt.minute()
        if not consume_rt.total:
            consume_rt = self.consume_rt.hour()
        return ConsumeStatusBody(
            pull_rt=self.pull_rt.minute().average,
            pull_tps=self.pull_messages.minute().per_second,
            consume_rt=consume_rt.average,
            consume_ok_tps=self.consume_ok.minute().per_second,
            consume_failed_tps=self.consume_failed.minute().per_second,
            consume_failed_msgs=int(self.consume_failed.hour().total),
        )


class ConsumerStats:
    """All topics of one consumer."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicStats] = {}
        self._ticks = 0

    def topic(self, name: str) -> TopicStats:
        stats = self._topics.get(name)
        if stats is None:
            stats = self._topics[name] = TopicStats()
        return stats

    def sample(self, now_ms: float) -> None:
        hour = self._ticks % TICKS_PER_HOUR_SAMPLE == 0
        self._ticks += 1
        for stats in self._topics.values():
            stats.sample(now_ms, hour=hour)

    def forget(self, name: str) -> None:
        self._topics.pop(name, None)
