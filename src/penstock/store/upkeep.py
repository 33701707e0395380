"""What the store does besides appending and reading: derived files, checkpoints, free space, retention.

`tick` hands out jobs and takes their results at a later tick. One batch of jobs is out at a time; those of
one batch may run in any order or side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Final

from penstock.store.checkpoint import Checkpoint, save_checkpoint
from penstock.store.consume_queue import ConsumeQueue, QueueWrite
from penstock.store.index import IndexFile
from penstock.store.jobs import Job
from penstock.store.key_index import COMMIT_ENTRIES
from penstock.store.retention import Retention

if TYPE_CHECKING:
    from penstock.store.store import Store

INDEX_KEYS_PER_TICK: Final = 2_000
"""Keeps a tick short: about 5 ms."""
QUEUE_WRITE_BYTES: Final = 8 * 1024
"""A queue with this much in memory is written at the next occasion."""
QUEUES_PER_BATCH: Final = 256
WRITE_INTERVAL_MS: Final = 1_000
SYNC_INTERVAL_MS: Final = 500
"""With flush = "async": how often the log is forced to the medium. Protocol default."""
CHECKPOINT_INTERVAL_MS: Final = 60_000
CHECKPOINT_BYTES: Final = 64 << 20
"""Log written between two checkpoints; recovery reads about as much."""
SPACE_INTERVAL_MS: Final = 1_000
SPARE_BYTES: Final = 16 << 20
"""Free space (on a small disk a hundredth of it) before writes are tried again after one failed."""

_FLUSH, _UPKEEP, _SPACE = "flush", "upkeep", "space"


class _Round:
    """One checkpoint in the making: it is written once all its parts are on the medium."""

    def __init__(self, checkpoint: Checkpoint, files: list[IndexFile], queues: list[ConsumeQueue]) -> None:
        self.checkpoint = checkpoint
        self.files = files
        self.to_write = list(queues)
        self.queues = queues


class Upkeep:
    def __init__(self, store: Store, checkpoint: Checkpoint, now_ms: int) -> None:
        self._store = store
        self._disk = store.disk
        self.retention = Retention(store, now_ms)
        self.used_ratio = 0.0
        self._jobs: list[Job] = []
        self._error: OSError | None = None
        self._round: _Round | None = None
        self._checkpoint_position = checkpoint.position or 0
        self._next_write_ms = now_ms + WRITE_INTERVAL_MS
        self._next_sync_ms = now_ms + SYNC_INTERVAL_MS
        self._next_checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
        self._next_space_ms = now_ms

    def tick(self, now_ms: int) -> list[Callable[[], None]]:
        self._store.index.catch_up(INDEX_KEYS_PER_TICK)
        if now_ms >= self._next_space_ms:
            self._next_space_ms = now_ms + SPACE_INTERVAL_MS
            self._watch_space()
            self._store.release_memory()
        if not all(job.done for job in self._jobs):
            return []
        self._take_results(now_ms)
        self._jobs = self._plan(now_ms)
        return list(self._jobs)

    def finish(self) -> None:
        """Everything derived to disk, here and now, and a checkpoint. Raises OSError if that cannot be."""
        store = self._store
        store.index.catch_up()
        for job in self._jobs:
            if not job.done:
                job()
            job.finish()
        if store.removals:
            self._remove(store.removals)
            store.removals.clear()
        round_ = self._begin_round()
        while self._round is not None:
            for job in self._plan_round(round_, 0):
                job()
                job.finish()
                if self._error is not None:
                    raise self._error

    def _take_results(self, now_ms: int) -> None:
        for job in self._jobs:
            job.finish()
        if self._error is not None:
            # What failed is still in memory. A whole new round tries all of it again.
            self._store.refuse(_UPKEEP, f"{self._disk.name}: {self._error.strerror}")
            self._round = None
            self._next_checkpoint_ms = now_ms + SPACE_INTERVAL_MS
            self._error = None

    def _note(self, error: OSError | None) -> None:
        self._error = self._error or error

    # ---- planning -------------------------------------------------------------------------------

    def _plan(self, now_ms: int) -> list[Job]:
        store = self._store
        store.removals += self.retention.plan(now_ms, self.used_ratio)
        if store.removals:
            # Alone in its batch: a topic that was deleted and made again writes to the same paths.
            paths, store.removals = store.removals, []
            return [Job(lambda: self._remove(paths), self._note)]
        if self._round is None and self._checkpoint_due(now_ms):
            self._begin_round()
        if self._round is not None:
            return self._plan_round(self._round, now_ms)
        jobs = []
        if store.settings.flush == "async" and now_ms >= self._next_sync_ms:
            self._next_sync_ms = now_ms + SYNC_INTERVAL_MS
            jobs.append(Job(store.log_sync(), self._note))
        if now_ms >= self._next_write_ms:
            self._next_write_ms = now_ms + WRITE_INTERVAL_MS
            jobs += [
                self._queue_job(queue)
                for queue in store.live_dirty()
                if queue.unwritten_bytes >= QUEUE_WRITE_BYTES
            ]
            files = store.index.to_commit(COMMIT_ENTRIES)
            if files:
                jobs.append(self._index_job(files))
        return jobs

    def _checkpoint_due(self, now_ms: int) -> bool:
        grown = self._store.log.durable - self._checkpoint_position
        return grown >= CHECKPOINT_BYTES or (
            now_ms >= self._next_checkpoint_ms and (grown > 0 or _UPKEEP in self._store.refusals)
        )

    def _begin_round(self) -> _Round:
        store = self._store
        self._round = _Round(self._checkpoint(), store.index.to_commit(), store.live_dirty())
        return self._round

    def _plan_round(self, round_: _Round, now_ms: int) -> list[Job]:
        if round_.files:
            files, round_.files = round_.files, []
            return [self._index_job(files)]
        if round_.to_write:
            queues = round_.to_write[:QUEUES_PER_BATCH]
            del round_.to_write[:QUEUES_PER_BATCH]
            return [self._queue_job(queue) for queue in queues if self._store.is_live(queue)]
        self._round = None
        self._next_checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
        return [self._checkpoint_job(round_)]

    def _checkpoint(self) -> Checkpoint:
        """What may be claimed once all that is in memory now is on the medium."""
        store = self._store
        waiting = store.index.waiting
        position, time_ms = store.log.durable, store.visible_ms
        if waiting is not None:
            position, time_ms = waiting.physical_offset, waiting.store_ms - 1
        return Checkpoint(time_ms, time_ms, store.index.full_ms, position, len(store.with_files()))

    # ---- the jobs -------------------------------------------------------------------------------

    def _queue_job(self, queue: ConsumeQueue) -> Job:
        write = QueueWrite(self._disk, queue)

        def written(error: OSError | None) -> None:
            self._note(error)
            if error is None:
                queue.was_written(write.end)

        return Job(write.run, written)

    def _checkpoint_job(self, round_: _Round) -> Job:
        store = self._store
        written = [(queue, queue.written) for queue in round_.queues if store.is_live(queue)]
        paths = [path for queue, _ in written for path in queue.unsynced_paths()]
        sync_log = store.log_sync()

        def work() -> None:
            sync_log()
            self._disk.sync_paths(paths)
            save_checkpoint(self._disk, round_.checkpoint)

        def saved(error: OSError | None) -> None:
            self._note(error)
            if error is not None:
                return
            self._checkpoint_position = round_.checkpoint.position or 0
            store.allow(_UPKEEP)
            for queue, end in written:
                queue.synced = max(queue.synced, end)
                if queue.synced == queue.max_offset:
                    store.dirty.pop(queue, None)

        return Job(work, saved)

    def _index_job(self, files: list[IndexFile]) -> Job:
        commits = [(file, file.commit()) for file in files]
        sync_log = self._store.log_sync()

        def work() -> None:
            sync_log()  # an entry must not outlive its record
            for _, commit in commits:
                commit.run()

        def committed(error: OSError | None) -> None:
            self._note(error)
            if error is None:
                for file, commit in commits:
                    file.was_committed(commit)

        return Job(work, committed)

    def _remove(self, paths: list[str]) -> None:
        """Delete files and directories; the directories that held them remember it."""
        for path in paths:
            self._disk.remove_tree(path)
        for parent in {path.rpartition("/")[0] for path in paths}:
            if self._disk.exists(parent):
                self._disk.sync_dir(parent)

    # ---- free space -----------------------------------------------------------------------------

    def _watch_space(self) -> None:
        store, settings = self._store, self._store.settings
        total, free = self._disk.usage()
        self.used_ratio = ceil(100 * (total - free) / total) / 100 if total else 0.0
        if self.used_ratio > settings.disk_warning_ratio:
            store.refuse(_SPACE, f"{self._disk.name}: the disk is {self.used_ratio:.0%} full")
        elif self.used_ratio <= settings.disk_clean_ratio:
            store.allow(_SPACE)
        if _FLUSH in store.refusals and free >= min(SPARE_BYTES, total // 100) and store.cut_back():
            store.allow(_FLUSH)
