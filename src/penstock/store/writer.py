"""Appending: records gather in a group, a flush carries it to the disk, then its records are visible."""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from penstock.errors import InvalidArgument, MessageTooLarge, StoreFull
from penstock.limits import MAX_PROPERTIES_BYTES
from penstock.message.sysflag import BORN_V6, ROLLBACK, STORE_V6
from penstock.store.batches import Batch, Place
from penstock.store.commit_log import V6_EXTRA_BYTES, CommitLog, Flush, blank_record
from penstock.store.consume_queue import ENTRY, ConsumeQueue, is_queue_name
from penstock.store.disk import Disk
from penstock.store.dispatch import NOT_IN_QUEUE
from penstock.store.files import OpenFiles
from penstock.store.journal import Journal
from penstock.store.key_index import KeyIndex
from penstock.store.results import Arrival
from penstock.store.settings import StoreSettings

_CRC_MASK: Final = 0x7FFF_FFFF
_BLANK_BYTES: Final = 8
_HOST_BYTES: Final = 8
OPEN_QUEUE_FILES: Final = 256
"""Only consumers that lag read files. A mapped file costs two descriptors, of which there may be 1024."""

_new_arrival: Final = tuple.__new__
_pack_entry: Final = ENTRY.pack


class Writer:
    """The writing half of a store, and the tables both halves use."""

    def __init__(self, disk: Disk, settings: StoreSettings, *, store_host: bytes) -> None:
        self.disk = disk
        self.settings = settings
        self.log = CommitLog(disk, settings.commit_log_file_size)
        self.journal = Journal(disk, lambda: self._log_end + self.journal.end)
        self.index = KeyIndex(disk, settings)
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.queue_files = OpenFiles(disk, OPEN_QUEUE_FILES)
        self.dirty: dict[ConsumeQueue, None] = {}
        """Queues with entries that are not on the medium yet; a dict because it keeps their order."""
        self.writable = True
        self.refusals: dict[str, str] = {}
        """Why writes are refused, by cause."""
        self.durable = 0
        """Position up to which everything appended or noted in the journal is durable."""
        self.visible_ms = 0
        """Store time of the newest visible record."""

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
        self._host_extra = V6_EXTRA_BYTES if v6 else 0
        self._pack_v4 = struct.Struct(f">iIiiiqqiq8sq{len(store_host)}siqi").pack
        self._pack_v6 = struct.Struct(f">iIiiiqqiq20sq{len(store_host)}siqi").pack
        self._pack_shared_v4 = struct.Struct(f">iq8sq{len(store_host)}siq").pack
        self._pack_shared_v6 = struct.Struct(f">iq20sq{len(store_host)}siq").pack
        """What the records of a batch have in common, from the sysFlag to the prepared offset."""
        self._max_body = settings.max_message_bytes
        self._entries_per_file = settings.consume_queue_file_entries

    def _write_from(self, position: int, store_ms: int) -> None:
        """Go on behind a log that ends here, never with store times before this one."""
        self.durable = self._log_end = position
        self._store_ms = self.visible_ms = store_ms
        self._begin_group()

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
            size += V6_EXTRA_BYTES
            pack = self._pack_v6
            sys_flag |= BORN_V6
        position = self._log_end
        if position + size + _BLANK_BYTES > self._segment_end:
            position = self._roll(size)
        if now_ms < self._store_ms:
            now_ms = self._store_ms
        offset = 0 if sys_flag & NOT_IN_QUEUE else queue.next_offset
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
        if sys_flag & NOT_IN_QUEUE:
            shown, entry = 0, b""
            if sys_flag & ROLLBACK == ROLLBACK:
                keys = ()
        else:
            shown, entry = 1, _pack_entry(position, size, tag_code)
            queue.next_offset = offset + 1
        self._records.append(
            _new_arrival(Arrival, (queue, offset, shown, now_ms, position, size, entry, keys, None))
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
        batch: Batch,
        now_ms: int,
    ) -> tuple[list[int], int]:
        """Add the records of a batch to one queue and one log file.

        Tells their positions in the log and the queue offset of the first.
        """
        if not self.writable:
            raise StoreFull(self.refusal)
        queue = self.queues.get((topic, queue_id)) or self.add_queue(topic, queue_id)
        overhead = queue.overhead + self._host_extra
        pack_shared = self._pack_shared_v4
        sys_flag |= self._host_flag
        if len(born_host) != _HOST_BYTES:
            overhead += V6_EXTRA_BYTES
            pack_shared = self._pack_shared_v6
            sys_flag |= BORN_V6
        first = queue.next_offset
        count = batch.messages
        if not count:
            return [], first
        if batch.body_size > self._max_body or batch.text_size > MAX_PROPERTIES_BYTES:
            raise _too_large(batch.body_size, self._max_body, batch.text_size)
        total = batch.total_size(overhead)
        position = self._log_end
        if position + total + _BLANK_BYTES > self._segment_end:
            position = self._roll(total)
        store_ms = max(now_ms, self._store_ms)
        try:
            shared = pack_shared(sys_flag, born_ms, born_host, store_ms, self._store_host, reconsume_times, 0)
            place = Place(queue_id, queue.magic, queue.topic_field, first, position, overhead, shared)
            positions, records, entries, keys, key_positions = batch.encode(place)
        except struct.error as error:
            raise InvalidArgument(f"a message field is out of range: {error}") from None
        self._pending += records
        self._store_ms = store_ms
        self._log_end = position + total
        queue.next_offset = first + count
        fields = (queue, first, count, store_ms, position, total, entries, keys, key_positions)
        self._records.append(_new_arrival(Arrival, fields))
        return positions, first

    def add_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        if not is_queue_name(topic, queue_id):
            raise InvalidArgument(f"{topic!r} queue {queue_id} is not a topic name and queue id")
        queue = ConsumeQueue(topic, queue_id, self._entries_per_file, self.queue_files)
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
        """The group gathered so far, to be written; None if there is none or one is being written.

        What a failed one left on disk must be wiped first: later it would take this one with it.
        """
        if self._flush is not None or not self.cut_back():
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
        for queue, offset, shown, _, position, size, entries, _, _ in arrivals:
            if not shown:
                hidden = True
                continue
            queue.tail += entries
            queue.max_offset = offset + shown
            queue.max_physical = position + size
            dirty[queue] = None
        self.visible_ms = arrivals[-1].store_ms
        self.index.add(arrivals)
        return [arrival for arrival in arrivals if arrival.shown] if hidden else arrivals

    def _undo(self, flush: Flush, error: OSError) -> None:
        for arrival in (*flush.records, *self._records):
            if arrival.shown:
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
                self._wipe(self._failed)
            except OSError:
                return False
            self._failed = None
        return True

    def _wipe(self, failed: Flush) -> None:
        self.log.cut(self.log.durable)
        self.log.open_last()
        self.journal.cut_back(failed.journal)


def _too_large(body_size: int, max_body: int, properties_size: int) -> MessageTooLarge:
    if body_size > max_body:
        return MessageTooLarge(f"the message body has {body_size} bytes, more than {max_body}")
    return MessageTooLarge(f"the properties have {properties_size} bytes, more than {MAX_PROPERTIES_BYTES}")
