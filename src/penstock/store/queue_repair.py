"""Queue files that were lost, built again from the log: a queue has none missing between its first and its
last one, and where the log goes back to its very beginning, none before the first."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ENTRY, ENTRY_SIZE, FILL, ConsumeQueue
from penstock.store.disk import Disk
from penstock.store.dispatch import NOT_IN_QUEUE, DelayLevels, queue_tag_code
from penstock.store.files import OpenFiles
from penstock.store.log_scan import records

log = logging.getLogger("penstock.store")


@dataclass
class _Gap:
    """Files that are missing in a row, and where in the log the records of their entries can be."""

    queue: ConsumeQueue
    first: int
    end: int
    log_from: int
    log_to: int
    found: bool = False

    def paths(self) -> list[str]:
        return [self.queue.path(number) for number in range(self.first, self.end)]


def rebuild_lost_files(
    disk: Disk,
    commit_log: CommitLog,
    queues: Mapping[tuple[str, int], ConsumeQueue],
    tombstones: Mapping[str, int],
    delay_level_ms: DelayLevels | None,
) -> None:
    """Fill the gaps of loaded queues. A crash in between leaves them as they were."""
    gaps = [gap for queue in queues.values() for gap in _gaps(disk, commit_log, queue)]
    if not gaps:
        return
    files = OpenFiles(disk, limit=64)
    try:
        _fill(disk, commit_log, files, gaps, tombstones, delay_level_ms)
    finally:
        files.close()
    for gap in gaps:
        _put_in_place(disk, gap)


def _gaps(disk: Disk, commit_log: CommitLog, queue: ConsumeQueue) -> list[_Gap]:
    gaps: list[_Gap] = []
    last = (queue.max_offset - 1) // queue.per_file
    first = 0 if commit_log.min_offset == 0 else queue.first_file
    number = first
    while number <= last:
        end = number
        while end <= last and not disk.exists(queue.path(end)):
            end += 1
        if end > number:
            before = queue.read(number * queue.per_file - 1, 1) if number > first else None
            behind = queue.read(end * queue.per_file, 1) if end <= last else None
            log_from = ENTRY.unpack(before)[0] if before else commit_log.min_offset
            log_to = ENTRY.unpack(behind)[0] if behind else commit_log.durable
            gaps.append(_Gap(queue, number, end, max(log_from, commit_log.min_offset), log_to))
        number = end + 1
    return gaps


def _fill(
    disk: Disk,
    commit_log: CommitLog,
    files: OpenFiles,
    gaps: list[_Gap],
    tombstones: Mapping[str, int],
    delay_level_ms: DelayLevels | None,
) -> None:
    of_queue: dict[tuple[str, int], list[_Gap]] = {}
    for gap in gaps:
        of_queue.setdefault((gap.queue.topic, gap.queue.queue_id), []).append(gap)
        for path in gap.paths():
            disk.make_dirs(gap.queue.directory, sync=False)
            disk.remove_tree(f"{path}.new")
            file = disk.open(f"{path}.new", size=gap.queue.per_file * ENTRY_SIZE, create=True)
            file.write(0, FILL * gap.queue.per_file)
            file.close()
    start, end = min(gap.log_from for gap in gaps), max(gap.log_to for gap in gaps)
    for record in records(commit_log, start, end):
        for gap in of_queue.get((record.topic, record.queue_id), ()):
            position, number = record.physical_offset, record.queue_offset // gap.queue.per_file
            if (
                gap.first <= number < gap.end
                and gap.log_from <= position < gap.log_to
                and position >= tombstones.get(record.topic, 0)
                and not record.sys_flag & NOT_IN_QUEUE
            ):
                tag_code = queue_tag_code(record.topic, record.properties, record.store_ms, delay_level_ms)
                file_ = files.get(f"{gap.queue.path(number)}.new")
                assert file_ is not None
                at = record.queue_offset % gap.queue.per_file * ENTRY_SIZE
                file_.write(at, ENTRY.pack(position, record.size, tag_code))
                gap.found = True


def _put_in_place(disk: Disk, gap: _Gap) -> None:
    """Only files with something in them: a queue may well begin late."""
    if gap.found:
        disk.sync_paths([f"{path}.new" for path in gap.paths()])
    for path in gap.paths():
        if gap.found:
            disk.rename(f"{path}.new", path)
            log.warning("%s/%s was missing and was built again from the commit log", disk.name, path)
        else:
            disk.remove(f"{path}.new")
    if gap.found:
        disk.sync_dir(gap.queue.directory)
        if gap.first < gap.queue.first_file:
            gap.queue.first_file = gap.first
            gap.queue.min_offset = gap.first * gap.queue.per_file
