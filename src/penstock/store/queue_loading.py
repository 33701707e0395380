"""Consume queues as they are found on disk: which entries to believe, and how to drop the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.errors import CorruptRecord
from penstock.message.record import RecordView
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import DIRECTORY, ENTRY, ENTRY_SIZE, ConsumeQueue
from penstock.store.disk import Buffer, Disk
from penstock.store.files import OpenFiles
from penstock.store.segments import check_segments, segment_name, segment_starts

_FILL_SIZE: Final = 0x7FFF_FFFF


def queue_directories(disk: Disk) -> Iterator[tuple[str, int]]:
    for topic in disk.list_dir(DIRECTORY):
        for name in disk.list_dir(f"{DIRECTORY}/{topic}"):
            if name.isdecimal() and str(int(name)) == name:
                yield topic, int(name)


def check_queue_files(disk: Disk, per_file: int, *, clean: bool) -> dict[tuple[str, int], list[int]]:
    """Start offsets of the files of every queue that are there. Changes nothing."""
    return {
        (topic, queue_id): [
            start // ENTRY_SIZE
            for start in check_segments(
                disk,
                f"{DIRECTORY}/{topic}/{queue_id}",
                per_file * ENTRY_SIZE,
                "mappedFileSizeConsumeQueue",
                f"delete the directory {DIRECTORY} to have it built again from the commit log",
                one_empty=clean,
                gaps=True,
            )
        ]
        for topic, queue_id in queue_directories(disk)
    }


def load_queue(
    queue: ConsumeQueue, log: CommitLog, files: OpenFiles, starts: list[int], limit: int | None
) -> None:
    """Find the end of a queue. With `limit` only entries are believed whose records lie before it, and the
    last one only if its record says the same."""
    queue.begin_at(starts[0])
    for start in reversed(starts):
        file = files.get(queue.path(start // queue.per_file))
        if file is None:
            continue
        data = file.read(0, queue.per_file * ENTRY_SIZE)
        count = _count_entries(data, limit)
        while count and limit is not None and not _agrees(log, queue, start + count - 1, data, count - 1):
            count -= 1
        if count:
            position, size, _ = ENTRY.unpack_from(data, (count - 1) * ENTRY_SIZE)
            queue.max_physical = 0 if size == _FILL_SIZE else position + size
            _ends_at(queue, start + count)
            return


def _ends_at(queue: ConsumeQueue, offset: int) -> None:
    queue.next_offset = queue.max_offset = offset
    queue.tail_start = queue.written = queue.synced = offset


def _count_entries(data: Buffer, limit: int | None) -> int:
    count = end = 0
    for position, size, _ in ENTRY.iter_unpack(data):
        if size != _FILL_SIZE or position != 0:
            if size <= 0 or position < end or (limit is not None and position >= limit):
                break
            end = position + size
        count += 1
    return count


def _agrees(log: CommitLog, queue: ConsumeQueue, offset: int, data: Buffer, at: int) -> bool:
    position, size, _ = ENTRY.unpack_from(data, at * ENTRY_SIZE)
    if position < log.min_offset:
        return True
    try:
        record = RecordView(log.read_raw(position, size))
    except CorruptRecord:
        return False
    return (
        record.physical_offset == position
        and record.queue_offset == offset
        and record.queue_id == queue.queue_id
        and record.topic == queue.topic
    )


def drop_from(queue: ConsumeQueue, end: int) -> None:
    """Drop entries of a loaded queue whose records do not lie before the log's end."""
    while queue.max_offset > queue.first_file * queue.per_file and queue.max_physical > end:
        _ends_at(queue, queue.max_offset - 1)
        last = queue.read(queue.max_offset - 1, 1)
        position, size, _ = ENTRY.unpack(last) if last else (0, _FILL_SIZE, 0)
        queue.max_physical = 0 if size == _FILL_SIZE else position + size


def clear_behind(disk: Disk, queue: ConsumeQueue, files: OpenFiles) -> None:
    """Make everything behind a loaded queue's end zeros, and files that begin there go."""
    files.forget(queue.directory)
    end = queue.max_offset
    for start in reversed(segment_starts(disk, queue.directory)):
        path = f"{queue.directory}/{segment_name(start)}"
        if start >= end * ENTRY_SIZE:
            disk.remove(path)
        elif start + queue.per_file * ENTRY_SIZE > end * ENTRY_SIZE:
            file = disk.open(path)
            try:
                file.clear(end * ENTRY_SIZE - start)
            finally:
                file.close()
