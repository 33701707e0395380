"""Progress of streaming queries, as Spark tells its listeners."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.spark.offsets import is_initial, parse_offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a query, or an idle moment between two."""

    rows: int
    lag: int | None
    done: bool
    """Whether there was a batch at all."""


Watcher = Callable[[str, Batch | None], None]


class Listener(StreamingQueryListener):
    """Hands events to whoever watches a query. Spark calls from a thread of its own, and after the fact."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[str, Watcher] = {}
        self._names: dict[str, str] = {}

    def watch(self, name: str, watcher: Watcher) -> None:
        """Calls with the id of the run and each batch, and with None after the last one of a run."""
        with self._lock:
            self._watchers[name] = watcher

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        with self._lock:
            self._names[str(event.runId)] = str(event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        progress = event.progress
        ends = [(source.endOffset, source.latestOffset) for source in progress.sources]
        done = "addBatch" in progress.durationMs
        self._tell(str(progress.runId), Batch(progress.numInputRows, lag(ends), done))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        self._tell(str(event.runId), None)

    def _tell(self, run_id: str, batch: Batch | None) -> None:
        with self._lock:
            watcher = self._watchers.get(self._names.get(run_id, ""))
            if batch is None:
                self._names.pop(run_id, None)
        if watcher is not None:
            watcher(run_id, batch)


def lag(ends: list[tuple[str, str]]) -> int | None:
    """Messages between what is done and what the topics hold, from the offsets in a progress."""
    total = 0
    for end, latest in ends:
        done, there = _offsets(end), _offsets(latest)
        if done is None or there is None:
            return None
        total += sum(max(0, there.get(queue, offset) - offset) for queue, offset in done.items())
    return total


def _offsets(text: str) -> Mapping[Any, int] | None:
    try:
        document = json.loads(text)
    except (TypeError, ValueError):
        return None
    if not isinstance(document, dict) or is_initial(document):
        return None
    return parse_offset(document).queues
