"""The store: one object that the broker appends to, reads from and keeps running.

Appending and reading happen on the caller's thread. Only a Flush and the jobs that `tick` returns may run
elsewhere: they touch nothing but files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

from penstock.errors import InvalidArgument, MessageTooLarge, StoreFull
from penstock.limits import MAX_PROPERTIES_BYTES, PULL_MAX_BYTES, QUERY_MAX_MESSAGES
from penstock.message.names import is_system_topic
from penstock.message.record import RecordView
from penstock.message.sysflag import BORN_V6, STORE_V6
from penstock.store.commit_log import CommitLog, Flush, blank_record, segment_path
from penstock.store.config_files import ConfigFiles
from penstock.store.consume_queue import DIRECTORY, ENTRY, ConsumeQueue
from penstock.store.disk import Disk, sync_files
from penstock.store.dispatch import DelayLevels, tag_code_of
from penstock.store.files import OpenFiles
from penstock.store.journal import Journal
from penstock.store.key_index import KeyIndex
from penstock.store.reading import get_messages, read_record
from penstock.store.recovery import ABORT, LOCK, Recovery, check_directory
from penstock.store.results import Arrival, GetResult, KeyQueryResult
from penstock.store.search import entry_store_ms, offset_by_time, record_store_ms
from penstock.store.settings import StoreSettings
from penstock.store.tombstones import save_tombstones
from penstock.store.upkeep import Upkeep

_CRC_MASK: Final = 0x7FFF_FFFF
_BLANK_BYTES: Final = 8
_HOST_BYTES: Final = 8
_V6_EXTRA_BYTES: Final = 12
_NOT_IN_QUEUE: Final = 0x4
"""The sysFlag bit that prepared and rolled-back records have, and no others."""
OPEN_QUEUE_FILES: Final = 1024

_new_arrival: Final = tuple.__new__
_pack_entry: Final = ENTRY.pack


class Store:
    def __init__(self, disk: Disk, settings: StoreSettings, *, store_host: bytes) -> None:
        """Use `open`."""
        self.disk = disk
        self.settings = settings
        self.log = CommitLog(disk, settings.commit_log_file_size)
        self.journal = Journal(disk, lambda: self._log_end + self.journal.end)
        self.config = ConfigFiles(disk)
        self.index = KeyIndex(disk, settings)
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.queue_files = OpenFiles(disk, OPEN_QUEUE_FILES)
        self.dirty: dict[ConsumeQueue, None] = {}
        """Queues with entries that are not on the medium yet; a dict because it keeps their order."""
        self.removals: list[str] = []
        """Paths to be deleted by the next job."""
        self.writable = True
        self.refusals: dict[str, str] = {}
        """Why writes are refused, by cause."""
        self.durable = 0
        """Position up to which everything appended or noted in the journal is durable."""
        self.visible_ms = 0
        """Store time of the newest visible record."""
        self._tombstones: dict[str, int] = {}
        self._upkeep: Upkeep

        self._log_end = 0
        self._segment_end = 0
        self._store_ms = 0
        self._records: list[Arrival] = []
        self._pending = bytearray()
        self._pieces: list[tuple[int, bytearray]] = []
        self._flush: Flush | None = None
        self._failed: Flush | None = None

        self._store_host = store_host
        v6 = len(store_host) != _HOST_BYTES
        self._host_flag = STORE_V6 if v6 else 0
        self._host_extra = _V6_EXTRA_BYTES if v6 else 0
        self._pack_v4 = struct.Struct(f">iIiiiqqiq8sq{len(store_host)}siqi").pack
        self._pack_v6 = struct.Struct(f">iIiiiqqiq20sq{len(store_host)}siqi").pack
        self._max_body = settings.max_message_bytes

    @classmethod
    def open(
        cls,
        disk: Disk,
        settings: StoreSettings,
        *,
        store_host: bytes,
        delay_level_ms: DelayLevels | None = None,
        now_ms: int,
    ) -> Store:
        """Lock a directory, repair what a crash left, and get ready to write.

        Raises StoreLocked, StoreDamaged or another StoreError, which name the file and what to do; then
        nothing in the directory has changed.
        """
        check_directory(disk)
        disk.make_dirs("")
        disk.lock(LOCK)
        try:
            store = cls(disk, settings, store_host=store_host)
            recovery = Recovery(store, delay_level_ms)
            recovery.run()
            store._start(recovery, now_ms)
        except BaseException:
            disk.unlock()
            raise
        return store

    def _start(self, recovery: Recovery, now_ms: int) -> None:
        self._tombstones = {
            topic: position
            for topic, position in recovery.tombstones.items()
            if position > self.log.min_offset
        }
        self.durable = self._log_end = self.log.durable
        self._store_ms = self.visible_ms = recovery.store_ms
        self.log.open_last()
        self.journal.open()
        self._begin_group()
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
            self.log.close()
            self.journal.close()
            self.index.close()
            self.queue_files.close()
            self.disk.unlock()

    # ---- whether writes are taken ---------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """Why writes are refused."""
        return "; ".join(self.refusals.values())

    def refuse(self, cause: str, text: str) -> None:
        self.refusals[cause] = text
        self.writable = False

    def allow(self, cause: str) -> None:
        self.refusals.pop(cause, None)
        self.writable = not self.refusals

    # ---- appending ------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Position behind everything appended or noted in the journal; compare with `durable`."""
        return self._log_end + self.journal.end

    def append(
        self,
        topic: str,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_offset: int,
        body: bytes | memoryview,
        properties: bytes,
        tag_code: int,
        keys: tuple[str, ...],
        now_ms: int,
    ) -> tuple[int, int]:
        """Add one record to the group; tells its position in the log and its offset in the queue.

        The hot path of the broker, so it encodes in place.
        """
        if not self.writable:
            raise StoreFull(self.refusal)
        queue = self.queues.get((topic, queue_id)) or self.add_queue(topic, queue_id)
        body_size = len(body)
        properties_size = len(properties)
        if body_size > self._max_body or properties_size > MAX_PROPERTIES_BYTES:
            raise _too_large(body_size, self._max_body, properties_size)
        size = queue.overhead + self._host_extra + body_size + properties_size
        pack = self._pack_v4
        sys_flag |= self._host_flag
        if len(born_host) != _HOST_BYTES:
            size += _V6_EXTRA_BYTES
            pack = self._pack_v6
            sys_flag |= BORN_V6
        position = self._log_end
        if position + size + _BLANK_BYTES > self._segment_end:
            position = self._roll(size)
        if now_ms < self._store_ms:
            now_ms = self._store_ms
        offset = 0 if sys_flag & _NOT_IN_QUEUE else queue.next_offset
        try:
            head = pack(
                size,
                queue.magic,
                crc32(body) & _CRC_MASK,
                queue_id,
                flag,
                offset,
                position,
                sys_flag,
                born_ms,
                born_host,
                now_ms,
                self._store_host,
                reconsume_times,
                prepared_offset,
                body_size,
            )
        except struct.error as error:
            raise InvalidArgument(f"a message field is out of range: {error}") from None
        self._store_ms = now_ms
        pending = self._pending
        pending += head
        pending += body
        pending += queue.topic_field
        pending += properties_size.to_bytes(2, "big")
        pending += properties
        self._log_end = position + size
        if sys_flag & _NOT_IN_QUEUE:
            shown_in = None
        else:
            shown_in = queue
            queue.next_offset = offset + 1
        self._records.append(
            _new_arrival(Arrival, (topic, queue_id, offset, tag_code, now_ms, shown_in, position, size, keys))
        )
        return position, offset

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int,
        items: Sequence[tuple[int, bytes | memoryview, bytes | memoryview]],
        now_ms: int,
    ) -> tuple[list[int], int]:
        """Add the records of a batch (flag, body, properties of each) to one queue and one log file.

        Tells their positions in the log and the queue offset of the first.
        """
        if not self.writable:
            raise StoreFull(self.refusal)
        queue = self.queues.get((topic, queue_id)) or self.add_queue(topic, queue_id)
        overhead = queue.overhead + self._host_extra
        pack = self._pack_v4
        sys_flag |= self._host_flag
        if len(born_host) != _HOST_BYTES:
            overhead += _V6_EXTRA_BYTES
            pack = self._pack_v6
            sys_flag |= BORN_V6
        total = 0
        for _, body, properties in items:
            if len(body) > self._max_body or len(properties) > MAX_PROPERTIES_BYTES:
                raise _too_large(len(body), self._max_body, len(properties))
            total += overhead + len(body) + len(properties)
        position = self._log_end
        if position + total + _BLANK_BYTES > self._segment_end:
            position = self._roll(total)
        store_ms = self._store_ms = max(now_ms, self._store_ms)
        first = offset = queue.next_offset
        magic, topic_field, store_host = queue.magic, queue.topic_field, self._store_host
        encoded = bytearray()
        positions: list[int] = []
        records: list[Arrival] = []
        try:
            for flag, body, properties in items:
                text = bytes(properties)
                size = overhead + len(body) + len(text)
                encoded += pack(
                    size,
                    magic,
                    crc32(body) & _CRC_MASK,
                    queue_id,
                    flag,
                    offset,
                    position,
                    sys_flag,
                    born_ms,
                    born_host,
                    store_ms,
                    store_host,
                    reconsume_times,
                    0,
                    len(body),
                )
                encoded += body
                encoded += topic_field
                encoded += len(text).to_bytes(2, "big")
                encoded += text
                fields = (topic, queue_id, offset, tag_code_of(text), store_ms, queue, position, size, text)
                records.append(_new_arrival(Arrival, fields))
                positions.append(position)
                position += size
                offset += 1
        except struct.error as error:
            raise InvalidArgument(f"a message field is out of range: {error}") from None
        self._pending += encoded
        self._records += records
        self._log_end = position
        queue.next_offset = offset
        return positions, first

    def add_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        if not topic or topic in (".", "..") or "/" in topic or "\0" in topic or queue_id < 0:
            raise InvalidArgument(f"{topic!r} queue {queue_id} is not a topic name and queue id")
        queue = ConsumeQueue(topic, queue_id, self.settings.consume_queue_file_entries, self.queue_files)
        self.queues[topic, queue_id] = queue
        return queue

    def _roll(self, size: int) -> int:
        """Close the segment with a filler and go on in the next; tells where."""
        file_size = self.log.file_size
        if size + _BLANK_BYTES > file_size:
            raise MessageTooLarge(f"a record of {size} bytes does not fit a commit log file of {file_size}")
        if self._segment_end != self._log_end:
            self._pending += blank_record(self._segment_end - self._log_end)
        self._log_end = self._segment_end
        self._begin_piece()
        return self._log_end

    def _begin_piece(self) -> None:
        self._pending = bytearray()
        self._pieces.append((self._log_end, self._pending))
        self._segment_end = self.log.next_segment(self._log_end)

    def _begin_group(self) -> None:
        self._pieces = []
        self._records = []
        self._begin_piece()

    # ---- group commit ---------------------------------------------------------------------------

    @property
    def flushing(self) -> bool:
        """Whether a group is being written."""
        return self._flush is not None

    def take_flush(self) -> Flush | None:
        """The group gathered so far, to be written; None if there is none or one is being written."""
        if self._flush is not None:
            return None
        journal = self.journal.take()
        pieces = [piece for piece in self._pieces if piece[1]]
        if not pieces and journal is None:
            return None
        self._flush = Flush(self.log, pieces, self._records, self._log_end, self.end, journal)
        self._begin_group()
        return self._flush

    def flushed(self, flush: Flush, error: OSError | None = None) -> list[Arrival]:
        """A flush is back: tells the records that are visible now.

        After an error it and everything since is undone, and writes are refused until space returns: the
        caller fails all that waits.
        """
        assert flush is self._flush
        self._flush = None
        for base, file in flush.created:
            self.log.added(base, file)
        if error is not None:
            self._undo(flush, error)
            return []
        if flush.journal is not None:
            self.journal.written(flush.journal)
        self.log.durable = flush.log_end
        self.durable = flush.end
        arrivals = flush.records
        if not arrivals:
            return arrivals
        dirty = self.dirty
        hidden = False
        for _, _, offset, tag_code, _, queue, position, size, _ in arrivals:
            if queue is None:
                hidden = True
                continue
            queue.tail += _pack_entry(position, size, tag_code)
            queue.max_offset = offset + 1
            queue.max_physical = position + size
            dirty[queue] = None
        self.visible_ms = arrivals[-1].store_ms
        self.index.add(arrivals)
        return [arrival for arrival in arrivals if arrival.queue is not None] if hidden else arrivals

    def _undo(self, flush: Flush, error: OSError) -> None:
        for arrival in (*flush.records, *self._records):
            if arrival.queue is not None:
                arrival.queue.next_offset = arrival.queue.max_offset
        self._failed = flush
        self.refuse("flush", f"{self.disk.name}: {error.strerror or error}")
        self._log_end = self.log.durable
        self.journal.forget_since(flush.journal, self.durable - self.log.durable)
        self._begin_group()
        self.cut_back()

    def cut_back(self) -> bool:
        """Wipe what a failed flush left on disk; False if that fails, too."""
        if self._failed is not None:
            try:
                self.log.cut(self.log.durable)
                self.log.open_last()
                self.journal.cut_back(self._failed.journal)
            except OSError:
                return False
            self._failed = None
        return True

    def log_sync(self) -> Callable[[], None]:
        """Work that forces the log to the medium where flushes do not."""
        if self.settings.flush == "sync":
            return lambda: None
        paths = [segment_path(start) for start in self.log.starts[-1:]] + self.journal.paths()
        return lambda: sync_files(self.disk, paths)

    def live_dirty(self) -> list[ConsumeQueue]:
        """Queues to be written; those of topics that were deleted meanwhile are dropped."""
        queues = self.queues
        live = [queue for queue in self.dirty if queues.get((queue.topic, queue.queue_id)) is queue]
        self.dirty = dict.fromkeys(live)
        return live

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


def _too_large(body_size: int, max_body: int, properties_size: int) -> MessageTooLarge:
    if body_size > max_body:
        return MessageTooLarge(f"the message body has {body_size} bytes, more than {max_body}")
    return MessageTooLarge(f"the properties have {properties_size} bytes, more than {MAX_PROPERTIES_BYTES}")
