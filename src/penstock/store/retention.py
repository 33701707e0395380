"""Which old files go: log files by age or lack of space, then whatever pointed into them."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from penstock.store.commit_log import CommitLog, segment_path
from penstock.store.consume_queue import FILL_SIZE, ConsumeQueue

if TYPE_CHECKING:
    from penstock.store.store import Store

FIRST_MS: Final = 60_000
INTERVAL_MS: Final = 10_000
FILES_PER_RUN: Final = 10
QUEUES_PER_RUN: Final = 500
"""Queues looked at in one tick, so that thousands of them do not hold up requests."""
MANUAL_RUNS: Final = 20
_HOUR_MS: Final = 3_600_000


class Retention:
    def __init__(self, store: Store, now_ms: int) -> None:
        self._store = store
        self._next_ms = now_ms + FIRST_MS
        self._manual_runs = 0
        self._cleaned_to = store.log.min_offset
        self._queues: list[ConsumeQueue] = []

    def delete_expired_soon(self) -> None:
        """An operator asks for expired files to go at any hour."""
        self._manual_runs = MANUAL_RUNS

    def plan(self, now_ms: int, used_ratio: float) -> list[str]:
        """Paths to delete; the store has forgotten them already."""
        paths: list[str] = []
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + INTERVAL_MS
            paths += self._log_files(now_ms, used_ratio)
            if self._store.log.min_offset > self._cleaned_to:
                self._cleaned_to = self._store.log.min_offset
                self._queues = list(self._store.queues.values())
                paths += self._index_files()
        for queue in self._queues[:QUEUES_PER_RUN]:
            if self._store.is_live(queue):
                paths += self._queue_files(queue)
        del self._queues[:QUEUES_PER_RUN]
        return paths

    def _log_files(self, now_ms: int, used_ratio: float) -> list[str]:
        settings, log = self._store.settings, self._store.log
        at_once = used_ratio > settings.disk_clean_ratio
        hour = f"{time.localtime(now_ms // 1000).tm_hour:02d}"
        if self._manual_runs > 0:
            self._manual_runs -= 1
        elif not (
            at_once or used_ratio > settings.disk_max_used_ratio or hour in settings.delete_when.split(";")
        ):
            return []
        paths = []
        for start in log.starts[:-1][:FILES_PER_RUN]:
            if not at_once and now_ms < log.modified_ms(start) + settings.file_reserved_hours * _HOUR_MS:
                break
            log.forget(start)
            paths.append(segment_path(start))
        return paths

    def _index_files(self) -> list[str]:
        index = self._store.index
        old = [
            file for file in index.files[:-1] if file.end_offset < self._cleaned_to and not file.uncommitted
        ]
        for file in old:
            index.forget(file)
        return [file.path for file in old]

    def _queue_files(self, queue: ConsumeQueue) -> list[str]:
        paths = []
        while (end := (queue.first_file + 1) * queue.per_file) < queue.max_offset and end <= queue.written:
            last = queue.read(end - 1, 1)
            if last is not None and int.from_bytes(last[:8], "big") >= self._cleaned_to:
                break
            paths.append(queue.drop_first_file())
        correct_min_offset(self._store.log, queue)
        return paths


def correct_min_offset(log: CommitLog, queue: ConsumeQueue) -> None:
    """The first entry whose record is still in the log; the queue's end if none is, so numbering goes on."""
    low = max(queue.min_offset, queue.first_file * queue.per_file)

    def in_log(offset: int) -> bool:
        data = queue.read(offset, 1)
        if data is None:
            return False
        return int.from_bytes(data[:8], "big") >= log.min_offset and data[8:12] != FILL_SIZE

    queue.min_offset = low + bisect_left(range(low, queue.max_offset), True, key=in_log)
