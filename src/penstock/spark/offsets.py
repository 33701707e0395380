"""Offsets as Spark's checkpoint keeps them, and the share of them that one batch reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from penstock.errors import InvalidArgument
from penstock.message.queue import MessageQueue

QueueOffsets = Mapping[MessageQueue, int]
VERSION: Final = 1
MANY_QUEUES: Final = 20_000
"""Names of queues that a reader remembers, some megabytes of them."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset to read in every queue.

    Spark stores no start for its first batch and asks for it again after a crash. So queues whose start was
    decided while this offset was made (all of the first batch, new ones, those that retention has passed)
    carry it along in `first`: a replay reads the same.
    """

    queues: QueueOffsets
    first: QueueOffsets

    def to_json(self) -> dict[str, Any]:
        """Sorted keys, because Spark compares offsets as texts."""
        document: dict[str, Any] = {}
        if self.first:
            document["from"] = _texts(self.first)
        return document | {"q": _texts(self.queues), "v": VERSION}


def initial_offset(description: str) -> dict[str, Any]:
    """A symbol for the start: it must not depend on what the broker holds at the moment."""
    return {"init": description, "v": VERSION}


def is_initial(document: Mapping[str, Any]) -> bool:
    return "init" in document


def parse_offset(document: Mapping[str, Any]) -> StreamOffset:
    if document.get("v") != VERSION or not isinstance(document.get("q"), dict):
        raise InvalidArgument(f"the checkpoint holds no offset of this source: {str(document)[:200]}")
    return StreamOffset(_queues(document["q"]), _queues(document.get("from", {})))


def batch_start(start: Mapping[str, Any], end: StreamOffset) -> QueueOffsets:
    """Where a batch starts in each queue of its end: where the end says, but not before the start."""
    known = {} if is_initial(start) else parse_offset(start).queues
    lost = [queue for queue in end.queues if queue not in known and queue not in end.first]
    if lost:
        raise InvalidArgument(f"the checkpoint holds an end but no start for {lost[0]}")
    return {queue: max(end.first.get(queue, 0), known.get(queue, 0)) for queue in end.queues}


def _texts(offsets: QueueOffsets) -> dict[str, int]:
    return {_text(queue): offset for queue, offset in sorted(offsets.items())}


@lru_cache(MANY_QUEUES)
def _text(queue: MessageQueue) -> str:
    return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"


def _queues(texts: Mapping[str, Any]) -> dict[MessageQueue, int]:
    queues = {}
    for text, offset in texts.items():
        queue = _queue(text)
        if queue is None or type(offset) is not int:
            raise InvalidArgument(f"the checkpoint holds a broken offset: {text!r}: {offset!r}")
        queues[queue] = offset
    return queues


@lru_cache(MANY_QUEUES)
def _queue(text: str) -> MessageQueue | None:
    """Remembered, because Spark hands over the same thousands of names with every batch."""
    topic, _, rest = text.partition("@")
    broker_name, _, queue_id = rest.rpartition("@")
    return MessageQueue(topic, broker_name, int(queue_id)) if broker_name and queue_id.isdecimal() else None


def share_out(backlog: QueueOffsets, limit: int) -> dict[MessageQueue, int]:
    """At most `limit` messages over the queues, in proportion to their backlog, at least one each.

    The one each comes first: with more queues than `limit` the total is the number of queues, so that
    no queue starves.
    """
    waiting = {queue: count for queue, count in sorted(backlog.items()) if count > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    spare = max(0, limit - len(waiting))
    rest = total - len(waiting)
    shares = {}
    remainders = []
    for queue, count in waiting.items():
        share, remainder = divmod(spare * (count - 1), rest)
        shares[queue] = 1 + share
        remainders.append((-remainder, queue))
    for _, queue in sorted(remainders)[: max(0, limit - sum(shares.values()))]:
        shares[queue] += 1
    return shares
