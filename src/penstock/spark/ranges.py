"""Cutting the offsets of a batch into tasks: big ranges are split, small ones share a task."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.message.queue import MessageQueue


class OffsetRange(NamedTuple):
    """Offsets `start` up to but not including `end` of one queue, and the broker that serves them."""

    queue: MessageQueue
    start: int
    end: int
    address: str

    @property
    def size(self) -> int:
        return self.end - self.start


Task = tuple[OffsetRange, ...]


def plan_tasks(
    ranges: Sequence[OffsetRange],
    *,
    max_records: int | None = None,
    min_tasks: int | None = None,
    max_tasks: int,
) -> list[Task]:
    """The same ranges always give the same tasks, since a retried task must read the same."""
    pieces = [piece for piece in sorted(ranges) if piece.size > 0]
    if max_records is not None:
        pieces = [part for piece in pieces for part in _split(piece, -(-piece.size // max_records))]
    if min_tasks is not None and len(pieces) < min_tasks:
        total = sum(piece.size for piece in pieces)
        pieces = [part for piece in pieces for part in _split(piece, round(piece.size * min_tasks / total))]
    count = max_tasks
    if max_records is not None:
        count = max(count, -(-sum(piece.size for piece in pieces) // max_records))  # fewer cannot be enough
    while count < len(pieces):
        tasks = _merge(pieces, count)
        if max_records is None or max(sum(piece.size for piece in task) for task in tasks) <= max_records:
            return tasks
        count += 1 + count // 8  # merging must not undo the split by records
    return [(piece,) for piece in pieces]


def _split(piece: OffsetRange, parts: int) -> list[OffsetRange]:
    parts = min(max(parts, 1), piece.size)
    cuts = [piece.start + piece.size * i // parts for i in range(parts + 1)]
    return [piece._replace(start=start, end=end) for start, end in pairwise(cuts)]


def _merge(pieces: Sequence[OffsetRange], tasks: int) -> list[Task]:
    """Largest piece to the emptiest task; inside a task the order of each queue is kept."""
    heap = [(0, number) for number in range(tasks)]
    bins: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    for piece in sorted(pieces, key=lambda piece: (-piece.size, piece)):
        size, number = heapq.heappop(heap)
        bins[number].append(piece)
        heapq.heappush(heap, (size + piece.size, number))
    return [tuple(sorted(merged)) for merged in bins if merged]
