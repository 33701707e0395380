"""POP's own strings: receipt handles (POP_CK, extraInfo) and the offset lists of a pop's answer.

A handle says by itself which lease it belongs to, so a broker keeps nothing per client to honour it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import InvalidArgument
from penstock.message.names import RETRY_PREFIX, pop_retry_topic_v1, pop_retry_topic_v2

NORMAL: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"
ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue in handles of orderly pops."""
_FIELDS: Final = 8
_MAX_DIGITS: Final = 19


class Handle(NamedTuple):
    """The receipt of one popped message."""

    start_offset: int
    """Queue offset at which the popped batch begins."""
    pop_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry_flag: str
    broker_name: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @property
    def is_orderly(self) -> bool:
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    def real_topic(self, topic: str, group: str) -> str:
        return real_topic(topic, group, self.retry_flag)


def parse_handle(text: str) -> Handle:
    """Raises InvalidArgument. What proxies append to a handle is ignored."""
    pieces = text.split(" ")
    if len(pieces) < _FIELDS:
        raise InvalidArgument(f"a handle has {_FIELDS} fields, this one {len(pieces)}")
    start, pop_ms, invisible_ms, revive, flag, broker, queue_id, offset = pieces[:_FIELDS]
    return Handle(
        _number(start),
        _number(pop_ms),
        _number(invisible_ms),
        _number(revive),
        flag,
        broker,
        _number(queue_id),
        _number(offset),
    )


def _number(text: str) -> int:
    if text.isdecimal() and text.isascii() and len(text) <= _MAX_DIGITS:
        return int(text)
    raise InvalidArgument(f"{text[:64]!r} in a handle is not a number")


def retry_flag(topic: str) -> str:
    """How handles tell a topic from its group's two POP retry topics."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def real_topic(topic: str, group: str, flag: str) -> str:
    """The topic that a flag stands for; an unknown flag stands for the topic itself."""
    if flag == RETRY_V1:
        return pop_retry_topic_v1(group, topic)
    return pop_retry_topic_v2(group, topic) if flag == RETRY_V2 else topic


def parse_start_offsets(text: str | None) -> dict[str, int]:
    """startOffsetInfo, by `flag@queueId`. This and the next two raise InvalidArgument."""
    return {key: _info_number(value) for key, value in _items(text).items()}


def parse_message_offsets(text: str | None) -> dict[str, list[int]]:
    """msgOffsetInfo, by `flag@queueId`."""
    return {key: [_info_number(piece) for piece in value.split(",")] for key, value in _items(text).items()}


def parse_order_counts(text: str | None) -> dict[str, int]:
    """orderCountInfo, by `flag@queueId` and, for single messages, by `flag@qo<queueId>%<offset>`."""
    return parse_start_offsets(text)


def _items(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in (text or "").split(";"):
        if not item:
            continue
        pieces = item.split(" ")
        if len(pieces) != 3:
            raise InvalidArgument(f"{item[:64]!r} is not an item of three parts")
        key = f"{pieces[0]}@{pieces[1]}"
        if key in found:
            raise InvalidArgument(f"{key} is there twice")
        found[key] = pieces[2]
    return found


def _info_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{text[:64]!r} is not a number") from None
