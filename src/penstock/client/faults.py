"""Which brokers a producer avoids: slow ones for a while, failed ones for longer."""

from __future__ import annotations

from collections.abc import Sequence

ISOLATED_LATENCY_MS = 10_000
"""A failed attempt counts as this slow."""


class LatencyFaults:
    """Times are monotonic milliseconds. A broker never measured is available."""

    def __init__(self, steps_ms: Sequence[tuple[int, int]], *, enabled: bool) -> None:
        self.enabled = enabled
        self._steps = tuple(steps_ms)
        self._blocked_until: dict[str, float] = {}
        self._unreachable: set[str] = set()

    def note(
        self, broker_name: str, latency_ms: float, *, isolate: bool, reachable: bool, now_ms: float
    ) -> None:
        if not self.enabled:
            return
        latency_ms = ISOLATED_LATENCY_MS if isolate else latency_ms
        avoid_ms = next((avoid for least, avoid in self._steps if latency_ms >= least), 0)
        until = now_ms + avoid_ms
        # Never shortened: one quick answer does not clear a broker that just failed.
        self._blocked_until[broker_name] = max(until, self._blocked_until.get(broker_name, 0.0))
        if reachable:
            self._unreachable.discard(broker_name)
        else:
            self._unreachable.add(broker_name)

    def available(self, broker_name: str, now_ms: float) -> bool:
        return now_ms >= self._blocked_until.get(broker_name, 0.0)

    def reachable(self, broker_name: str) -> bool:
        return broker_name not in self._unreachable
