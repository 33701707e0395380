"""Bringing a directory back to one truth: the longest valid log, with queues and index that agree with it.

Everything is looked at before anything is changed, so a directory that cannot be repaired stays as it is.

Where the scan of the log starts: at our own checkpoint position, if we were the last to write here; otherwise
by Apache's rules, at the start of a file that its store times (after a crash) or the queues (after a clean
stop) prove to be old enough. After a crash, queue entries that point behind the start are not believed: they
may be torn. They are built again from the log, as is everything that never reached the disk.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import StoreDamaged, StoreError
from penstock.message.sysflag import ROLLBACK, TRANSACTION_MASK
from penstock.store import checkpoint as checkpoints
from penstock.store import commit_log, config_files, consume_queue, index, journal
from penstock.store.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from penstock.store.commit_log import segment_path
from penstock.store.consume_queue import FILL, ConsumeQueue, QueueWrite, is_queue_name
from penstock.store.disk import Disk
from penstock.store.dispatch import NOT_IN_QUEUE, DelayLevels, keys_of, queue_tag_code
from penstock.store.key_index import COMMIT_ENTRIES
from penstock.store.log_scan import FoundRecord, check_tail, find_end, first_store_ms, records
from penstock.store.queue_loading import check_queue_files, clear_behind, drop_from, load_queue
from penstock.store.queue_repair import rebuild_lost_files
from penstock.store.retention import correct_min_offset
from penstock.store.segments import check_segments, segment_starts
from penstock.store.tombstones import load_tombstones

if TYPE_CHECKING:
    from penstock.store.store import Store

log_ = logging.getLogger("penstock.store")

ABORT: Final = "abort"
LOCK: Final = "lock"
_DIRECTORIES: Final = (
    commit_log.DIRECTORY,
    consume_queue.DIRECTORY,
    index.DIRECTORY,
    journal.DIRECTORY,
    config_files.DIRECTORY,
)
_OURS: Final = frozenset({ABORT, LOCK, checkpoints.PATH, *_DIRECTORIES})
_WRITE_BYTES: Final = 1 << 20
"""A queue with this much built anew in memory is written before the scan goes on."""
_HOUSEKEEPING_RECORDS: Final = 16_384


class _QueueBehindError(Exception):
    """A queue lacks entries from before the scan's start."""


def check_directory(disk: Disk) -> None:
    """Refuse a directory that holds something else. An empty or missing one will become a store."""
    names = disk.list_dir("")
    if names and not _OURS.intersection(names):
        raise StoreError(
            f"{disk.name} is not a data directory (it holds {names[0]!r}): give an empty or a new directory"
        )
    for directory in _DIRECTORIES:
        try:
            disk.list_dir(directory)
        except NotADirectoryError:
            raise StoreDamaged(
                f"{disk.name}/{directory} is not a directory: restore it, or give another data directory"
            ) from None


class Recovery:
    def __init__(self, store: Store, delay_level_ms: DelayLevels | None) -> None:
        self._store = store
        self._disk = store.disk
        self._log = store.log
        self._delay_level_ms = delay_level_ms
        self._clean = not self._disk.exists(ABORT)
        self.checkpoint = Checkpoint()
        self._queue_files: dict[tuple[str, int], list[int]] = {}
        self.tombstones: dict[str, int] = {}
        self._ours = False
        """Whether we were the last to write here."""
        self.end = 0
        self.store_ms = 0

    def run(self) -> None:
        store, log = self._store, self._log
        log.load(
            check_segments(
                self._disk,
                commit_log.DIRECTORY,
                log.file_size,
                "mappedFileSizeCommitLog",
                "delete all files from there on to go on without the messages in them",
                one_empty=True,
            )
        )
        self._queue_files = check_queue_files(
            self._disk, store.settings.consume_queue_file_entries, clean=self._clean
        )
        index_names = store.index.check()
        self.checkpoint = load_checkpoint(self._disk)
        self._ours = self.checkpoint.position is not None
        self.tombstones = load_tombstones(self._disk)
        if self._clean:
            self._load_queues(None)
        start = self._scan_start()
        self.end, last_ms = find_end(log, start)
        check_tail(log, self.end, 0 if self._ours else 1)
        self.store_ms = max(last_ms, self.checkpoint.log_ms)

        # From here on the directory changes.
        if not (self._clean and self._ours):
            self._clear_log()
        log.durable = self.end
        if not self._clean:
            self._load_queues(start)
        self._fit_queues()
        rebuild_lost_files(self._disk, log, store.queues, self.tombstones, self._delay_level_ms)
        self._load_index(index_names)
        lost = self._lost_queues()
        if lost:
            log_.warning(
                "%s: the files of %d queues are missing; they are built again", self._disk.name, lost
            )
            start = log.min_offset
        try:
            self._claim(start)
            self._rebuild(start, strict=not lost)
        except _QueueBehindError:
            self._claim(log.min_offset)
            self._forget_queues()
            self._rebuild(log.min_offset, strict=False)
        for queue in store.queues.values():
            correct_min_offset(log, queue)

    # ---- where to start -------------------------------------------------------------------------

    def _scan_start(self) -> int:
        log, position = self._log, self.checkpoint.position
        if position is not None:
            log_end = log.starts[-1] + log.file_size if log.starts else 0
            if position > log_end:
                raise StoreDamaged(
                    f"{self._disk.name}/{segment_path(log_end)} is missing: restore it, or delete "
                    f"{checkpoints.PATH} to go on without the messages in it"
                )
        if not log.starts or not any(self._queue_files.values()):
            return log.min_offset
        if position is not None:
            return max(position, log.min_offset)
        if self._clean:
            return self._start_after_clean_stop()
        return self._start_after_crash()

    def _start_after_clean_stop(self) -> int:
        dispatched = max((queue.max_physical for queue in self._store.queues.values()), default=-1)
        for start in reversed(self._log.starts):
            if start <= dispatched and first_store_ms(self._log, start):
                return start
        return self._log.min_offset

    def _start_after_crash(self) -> int:
        for start in reversed(self._log.starts):
            if 0 < first_store_ms(self._log, start) <= self.checkpoint.min_ms:
                return start
        return self._log.min_offset

    # ---- what is there --------------------------------------------------------------------------

    def _clear_log(self) -> None:
        for start in segment_starts(self._disk, commit_log.DIRECTORY):
            if start not in self._log.starts:
                self._disk.remove(segment_path(start))
        self._log.cut(self.end)

    def _load_queues(self, limit: int | None) -> None:
        store = self._store
        for (topic, queue_id), starts in self._queue_files.items():
            if starts:
                queue = store.add_queue(topic, queue_id)
                load_queue(queue, self._log, store.queue_files, starts, limit)

    def _fit_queues(self) -> None:
        """Drop what does not belong to the log that was found, in memory and on disk."""
        store = self._store
        for key, queue in list(store.queues.items()):
            found = queue.max_offset
            drop_from(queue, self.end)
            deleted = queue.max_physical <= self.tombstones.get(queue.topic, -1)
            if deleted or not self._log.starts or queue.max_offset == queue.first_file * queue.per_file:
                del store.queues[key]
                store.queue_files.forget(queue.directory)
                self._disk.remove_tree(queue.directory)
            elif not self._clean or queue.max_offset < found:
                clear_behind(self._disk, queue, store.queue_files)
        for (topic, queue_id), starts in self._queue_files.items():
            if not starts and (topic, queue_id) not in store.queues:
                self._disk.remove_tree(f"{consume_queue.DIRECTORY}/{topic}/{queue_id}")

    def _forget_queues(self) -> None:
        for queue in self._store.queues.values():
            self._store.queue_files.forget(queue.directory)
            self._disk.remove_tree(queue.directory)
        self._store.queues.clear()
        self._store.dirty.clear()

    def _load_index(self, names: list[str]) -> None:
        key_index = self._store.index
        key_index.load(names)
        if not self._clean:
            if self._ours:
                key_index.roll_back()
            else:
                key_index.discard_after(self.checkpoint.index_ms)
        key_index.discard_from(self.end)

    def _claim(self, start: int) -> None:
        """Take back what the checkpoint says about records that are gone over again: what is built anew for
        them stays in memory for a while, and the machine may stop before it is on disk."""
        known = self.checkpoint
        if known.position is None or start < known.position:
            if start <= self._log.min_offset:
                known = Checkpoint(log_ms=known.log_ms)
            self.checkpoint = msgspec.structs.replace(known, position=start)
            save_checkpoint(self._disk, self.checkpoint)

    def _lost_queues(self) -> int:
        """How many queues have no file any more, though no topic was deleted since they were counted."""
        position = self.checkpoint.position
        if position is None or any(deleted >= position for deleted in self.tombstones.values()):
            return 0
        return max(0, self.checkpoint.queues - sum(bool(starts) for starts in self._queue_files.values()))

    # ---- building anew --------------------------------------------------------------------------

    def _rebuild(self, start: int, *, strict: bool) -> None:
        for number, record in enumerate(records(self._log, start, self.end), 1):
            self._dispatch(record, strict)
            if number % _HOUSEKEEPING_RECORDS == 0:
                self._to_disk()

    def _dispatch(self, record: FoundRecord, strict: bool) -> None:
        store = self._store
        topic, position = record.topic, record.physical_offset
        if self.tombstones and position < self.tombstones.get(topic, 0):
            return
        if not record.sys_flag & NOT_IN_QUEUE and is_queue_name(topic, record.queue_id):
            queue = store.queues.get((topic, record.queue_id)) or store.add_queue(topic, record.queue_id)
            if self._make_room(queue, record, strict):
                tag_code = queue_tag_code(topic, record.properties, record.store_ms, self._delay_level_ms)
                queue.append(record.queue_offset, position, record.size, tag_code)
                queue.next_offset = queue.max_offset
                store.dirty[queue] = None
        if store.index.enabled and record.sys_flag & TRANSACTION_MASK != ROLLBACK:
            store.index.insert(topic, keys_of(record.properties), position, record.store_ms)

    def _make_room(self, queue: ConsumeQueue, record: FoundRecord, strict: bool) -> bool:
        """Whether the record's entry comes next in its queue, which may have to be bent for that."""
        offset = record.queue_offset
        if record.physical_offset + record.size <= queue.max_physical:
            return False
        if offset == queue.max_offset:
            return True
        if offset == 0:
            # The topic was deleted and made again by a broker that leaves no note of that.
            self._store.queue_files.forget(queue.directory)
            self._disk.remove_tree(queue.directory)
            queue.begin_at(0)
            return True
        if offset < queue.max_offset:
            return False
        if strict and (queue.max_offset > 0 or self._ours):
            raise _QueueBehindError
        if queue.max_offset == 0:
            queue.begin_at(offset)
        else:
            queue.tail += FILL * (offset - queue.max_offset)
        return True

    def _to_disk(self) -> None:
        """Keep memory bounded while a large log is gone over."""
        store = self._store
        for queue in store.dirty:
            if queue.unwritten_bytes >= _WRITE_BYTES:
                write = QueueWrite(self._disk, queue)
                write.run()
                queue.was_written(write.end)
        for file in store.index.to_commit(COMMIT_ENTRIES):
            commit = file.commit()
            commit.run()
            file.was_committed(commit)
