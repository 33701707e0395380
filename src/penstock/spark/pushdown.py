"""Conditions of a batch query that save reading: by queue, offset, store time and tag.

Spark evaluates every condition again on what comes back, so a condition here may let too much through, never
too little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.message.queue import MessageQueue
from penstock.spark.batch import BatchReader
from penstock.spark.cluster import Bounds, Cluster
from penstock.spark.options import Position, ReadOptions
from penstock.spark.ranges import OffsetRange

CLOCK_MARGIN_MS: Final = 60_000
"""Store times follow a broker's clock, which may have been set back between two messages."""

_ABOVE: Final = (EqualTo, GreaterThan, GreaterThanOrEqual)
_BELOW: Final = (EqualTo, LessThan, LessThanOrEqual)


class PushdownReader(BatchReader):
    """Only made with filterPushdown=true: Spark refuses readers with this method unless it is switched on."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        self._filters = list(filters)
        tags = self._wanted("tags")
        pull = self._options.pull
        if tags is not None and pull.expression == "*" and all(_is_tag(tag) for tag in tags):
            pull = replace(pull, expression=" || ".join(sorted(tags)), tags=frozenset(tags))
            self._options = replace(self._options, pull=pull)
        return filters

    def _ranges(self) -> list[OffsetRange]:
        ids = self._wanted("queueId")
        kept = [piece for piece in super()._ranges() if ids is None or piece.queue.queue_id in ids]
        first, last = self._numbers("queueOffset", _ABOVE, max), self._numbers("queueOffset", _BELOW, min)
        earliest, latest = self._times(kept)
        narrowed = []
        for piece in kept:
            start = max(piece.start, first or 0, earliest.get(piece.queue, 0))
            end = min(piece.end, piece.end if last is None else last + 1, latest.get(piece.queue, piece.end))
            narrowed.append(piece._replace(start=start, end=max(start, end)))
        return narrowed

    def _times(
        self, pieces: Sequence[OffsetRange]
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        """Offsets by the wanted store times, with room for clocks."""
        queues = {piece.queue: piece.address for piece in pieces}
        bounds = {piece.queue: Bounds(piece.start, piece.end) for piece in pieces}
        cluster = Cluster(self._options)
        found: list[dict[MessageQueue, int]] = []
        for kinds, choose, margin in ((_ABOVE, max, -CLOCK_MARGIN_MS), (_BELOW, min, CLOCK_MARGIN_MS)):
            time_ms = self._numbers("storeTimestamp", kinds, choose)
            if time_ms is None or not queues:
                found.append({})
                continue
            position = Position("timestamp", timestamp_ms=max(0, time_ms + margin), latest_when_too_new=True)
            found.append(cluster.resolve(position, queues, bounds))
        return found[0], found[1]

    def _wanted(self, column: str) -> set[Any] | None:
        """The values that a column may have; None: any."""
        wanted: set[Any] | None = None
        for condition in self._filters:
            if isinstance(condition, EqualTo) and condition.attribute == (column,):
                values = {condition.value}
            elif isinstance(condition, In) and condition.attribute == (column,):
                values = set(condition.value)
            else:
                continue
            wanted = values if wanted is None else wanted & values
        return wanted

    def _numbers(self, column: str, kinds: tuple[type[Any], ...], choose: Any) -> int | None:
        """The tightest bound that conditions of these kinds put on a column; times in milliseconds."""
        values = []
        for condition in self._filters:
            if isinstance(condition, kinds) and condition.attribute == (column,):
                value = condition.value
                if isinstance(value, datetime) and value.tzinfo is not None:
                    values.append(int(value.timestamp() * 1000))
                elif type(value) is int:
                    values.append(value)
        return choose(values) if values else None


def _is_tag(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "|" not in value and value == value.strip()
