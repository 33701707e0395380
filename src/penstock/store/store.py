"""The store: one object that the broker appends to, reads from and keeps running.

Appending and reading happen on the caller's thread. Only a Flush and the jobs that `tick` returns may run
elsewhere: they touch nothing but files.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.errors import StoreError
from penstock.limits import PULL_MAX_BYTES, QUERY_MAX_MESSAGES
from penstock.message.names import is_system_topic
from penstock.message.record import RecordView
from penstock.store.commit_log import Flush, segment_path
from penstock.store.config_files import ConfigFiles
from penstock.store.consume_queue import DIRECTORY, ConsumeQueue
from penstock.store.disk import Disk
from penstock.store.dispatch import DelayLevels
from penstock.store.reading import get_messages, read_record
from penstock.store.recovery import ABORT, LOCK, Recovery, check_directory
from penstock.store.results import GetResult, KeyQueryResult
from penstock.store.search import entry_store_ms, offset_by_time, record_store_ms
from penstock.store.settings import StoreSettings
from penstock.store.tombstones import save_tombstones
from penstock.store.upkeep import Upkeep
from penstock.store.writer import Writer


class Store(Writer):
    def __init__(self, disk: Disk, settings: StoreSettings, *, store_host: bytes) -> None:
        """Use `open`."""
        super().__init__(disk, settings, store_host=store_host)
        self.config = ConfigFiles(disk)
        self.removals: list[str] = []
        """Paths to be deleted by the next job."""
        self._tombstones: dict[str, int] = {}
        self._upkeep: Upkeep

    @classmethod
    def open(
        cls,
        disk: Disk,
        settings: StoreSettings,
        *,
        store_host: bytes,
        delay_level_ms: DelayLevels | None = None,
        look: Callable[[ConfigFiles], None] | None = None,
        now_ms: int,
    ) -> Store:
        """Lock a directory, repair what a crash left, and get ready to write.

        Raises StoreLocked, StoreDamaged or another StoreError, which name the file and what to do; then
        nothing in the directory has changed. `look` is how the owner of the configuration files can refuse
        them in time.
        """
        try:
            check_directory(disk)
            disk.make_dirs("")
            disk.lock(LOCK)
            store = cls(disk, settings, store_host=store_host)
            try:
                if look is not None:
                    look(store.config)
                recovery = Recovery(store, delay_level_ms)
                recovery.run()
                store._start(recovery, now_ms)
            except BaseException:
                store.abandon()
                raise
        except OSError as error:
            where = error.filename or disk.name
            text = f"{where}: {error.strerror}; give a data directory on a disk that works"
            raise StoreError(text) from error
        return store

    def _start(self, recovery: Recovery, now_ms: int) -> None:
        oldest = self.log.min_offset
        self._tombstones = {topic: end for topic, end in recovery.tombstones.items() if end > oldest}
        self._fit_tombstones()
        self.log.open_last()
        self.journal.open()
        self._write_from(self.log.durable, recovery.store_ms)
        self._upkeep = Upkeep(self, recovery.checkpoint, now_ms)
        self.disk.write_bytes(ABORT, str(os.getpid()).encode())

    def close(self, now_ms: int) -> None:
        """Put everything on the medium and leave the directory as after a clean stop.

        Where that fails, the mark of an unclean stop stays and the next start recovers. No flush and no job
        may be running any more.
        """
        try:
            flush = self._flush or self.take_flush()
            while flush is not None:
                try:
                    flush.run()
                    self.flushed(flush)
                except OSError as error:
                    self.flushed(flush, error)
                flush = self.take_flush()
            if self._failed is not None:
                return
            self._upkeep.finish()
            self.disk.remove(ABORT)
            self.disk.sync_dir("")
        except OSError as error:
            self.refuse("close", f"{self.disk.name}: {error.strerror}")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the directory as it is: nothing more is written, as when the process dies."""
        self.log.close()
        self.journal.close()
        self.index.close()
        self.queue_files.close()
        self.disk.unlock()

    def change_settings(self, settings: StoreSettings) -> None:
        """Limits and retention may change at any time; what files look like stays as it was opened."""
        self.settings = settings
        self._max_body = settings.max_message_bytes

    # ---- reading --------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        matches: Callable[[int], bool] | None = None,
        record_filter: Callable[[RecordView], bool] | None = None,
        max_bytes: int = PULL_MAX_BYTES,
        correct_offsets: bool = True,
    ) -> GetResult:
        queue = self.queues.get((topic, queue_id))
        return get_messages(
            self.log, queue, offset, max_messages, matches, record_filter, max_bytes, correct_offsets
        )

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the last visible message; 0 for an unknown queue."""
        queue = self.queues.get((topic, queue_id))
        return queue.max_offset if queue is not None else 0

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Position, size and tag code of the messages from an offset on that are there."""
        queue = self.queues.get((topic, queue_id))
        if queue is None or offset < queue.min_offset:
            return []
        return list(queue.entries(offset, count))

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of a message in ms; -1 if it is not there."""
        queue = self.queues.get((topic, queue_id))
        return entry_store_ms(self.log, queue, offset) if queue is not None else -1

    def earliest_time(self, topic: str, queue_id: int) -> int:
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def earliest_store_time(self) -> int:
        """Store time of the oldest record of all; -1 if there is none."""
        return record_store_ms(self.log, self.log.min_offset)

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        queue = self.queues.get((topic, queue_id))
        return offset_by_time(self.log, queue, time_ms, upper=upper) if queue is not None else 0

    def read_record(self, physical_offset: int) -> bytes | memoryview | None:
        """The record that starts at a position; None if none does."""
        return read_record(self.log, physical_offset)

    def query_keys(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> KeyQueryResult:
        """Records of a topic that were stored with a key (or one with the same hash) in a span of time."""
        found = self.index.find(topic, key, min(max_num, QUERY_MAX_MESSAGES), begin_ms, end_ms)
        records = [read_record(self.log, position) for position in found]
        last = self.index.files[-1] if self.index.files else None
        return KeyQueryResult(
            [record for record in records if record is not None],
            last.end_ms if last is not None else 0,
            last.end_offset if last is not None else 0,
        )

    @property
    def min_physical_offset(self) -> int:
        return self.log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Behind the last readable record."""
        return self.log.durable

    @property
    def used_ratio(self) -> float:
        """Of the disk, as of the last look at it."""
        return self._upkeep.used_ratio

    # ---- keeping house --------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Callable[[], None]]:
        """Periodic work; jobs to be run once each, in any thread, before or after the next tick."""
        return self._upkeep.tick(now_ms)

    def release_memory(self) -> None:
        """Who catches up reads gigabytes through maps; what is done with would stay resident."""
        self.log.release_memory()
        self.queue_files.release_memory()
        self.index.release_memory()

    def topics_with_queues(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self.queues):
            found.setdefault(topic, []).append(queue_id)
        return found

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues. Its records stay in the log until that part expires, unreachable."""
        queues = [queue for queue in self.queues.values() if queue.topic == topic]
        if not queues:
            return
        self._tombstones[topic] = self._log_end
        save_tombstones(self.disk, self._tombstones)
        for queue in queues:
            self._destroy(queue)
        self.removals.append(f"{DIRECTORY}/{topic}")

    def _fit_tombstones(self) -> None:
        """Positions behind the end of a log that was cut go to new records, which nobody has deleted."""
        end = self.log.durable
        fitted = {topic: min(position, end) for topic, position in self._tombstones.items()}
        if fitted != self._tombstones:
            save_tombstones(self.disk, fitted)
            self._tombstones = fitted

    def _wipe(self, failed: Flush) -> None:
        super()._wipe(failed)
        self._fit_tombstones()

    def clean_expired_consume_queues(self) -> int:
        """Destroy queues whose messages are all gone from the log; they begin again at offset 0.

        Queues of system topics stay. Tells how many went.
        """
        expired = [
            queue
            for queue in self.queues.values()
            if queue.max_physical <= self.log.min_offset
            and queue.next_offset == queue.max_offset > 0
            and not is_system_topic(queue.topic)
        ]
        for queue in expired:
            self._destroy(queue)
            self.removals.append(queue.directory)
        return len(expired)

    def delete_expired_files(self) -> None:
        """Let expired log files go at the next occasions, whatever the hour."""
        self._upkeep.retention.delete_expired_soon()

    def _destroy(self, queue: ConsumeQueue) -> None:
        del self.queues[queue.topic, queue.queue_id]
        self.dirty.pop(queue, None)
        self.queue_files.forget(queue.directory + "/")

    def log_sync(self) -> Callable[[], None]:
        """Work that forces the log to the medium where flushes do not."""
        if self.settings.flush == "sync":
            return lambda: None
        paths = [segment_path(start) for start in self.log.starts[-1:]] + self.journal.paths()
        return lambda: self.disk.sync_paths(paths)

    def live_dirty(self) -> list[ConsumeQueue]:
        """Queues to be written; those of topics that were deleted meanwhile are dropped."""
        live = [queue for queue in self.dirty if self.is_live(queue)]
        self.dirty = dict.fromkeys(live)
        return live

    def with_files(self) -> list[ConsumeQueue]:
        """Queues that have entries, on file or on their way there."""
        return [
            queue for queue in self.queues.values() if queue.max_offset > queue.first_file * queue.per_file
        ]

    def is_live(self, queue: ConsumeQueue) -> bool:
        """Not deleted: its directory may belong to a new queue of the same name."""
        return self.queues.get((queue.topic, queue.queue_id)) is queue
