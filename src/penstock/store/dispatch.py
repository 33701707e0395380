"""What queue and index entries take from a record's properties."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from penstock.message.hashing import java_hash
from penstock.message.properties import find_property_bytes
from penstock.message.sysflag import PREPARED

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
NOT_IN_QUEUE: Final = PREPARED
"""The sysFlag bit that prepared and rolled-back records have, and no others: no queue shows them."""
_UNKNOWN_LEVEL_MS: Final = 1000

DelayLevels = Callable[[int], int]


@lru_cache(maxsize=4096)
def _tag_hash(tag: bytes) -> int:
    return java_hash(tag.decode(errors="replace"))


def tag_code_of(properties: bytes) -> int:
    if b"TAGS\x01" not in properties:
        return 0
    # Nearly always the tag is one piece among others: this finds it in half the time.
    _, found, rest = properties.rpartition(b"\x02TAGS\x01")
    tag = rest.partition(b"\x02")[0] if found else b""
    return _tag_hash(tag or find_property_bytes(properties, b"TAGS") or b"")


def keys_of(properties: bytes) -> list[str]:
    """What a message is indexed under: its unique key, then each of its keys."""
    keys = []
    unique = find_property_bytes(properties, b"UNIQ_KEY")
    if unique:
        keys.append(unique.decode(errors="replace"))
    if b"KEYS\x01" in properties:
        pieces = find_property_bytes(properties, b"KEYS")
        if pieces:
            keys += [key for key in pieces.decode(errors="replace").split(" ") if key]
    return keys


def queue_tag_code(topic: str, properties: bytes, store_ms: int, delay_level_ms: DelayLevels | None) -> int:
    """The tag code of a record found in the log; in the schedule topic it is the time of delivery."""
    if topic == SCHEDULE_TOPIC:
        level = _delay_level(properties)
        if level > 0:
            return store_ms + (delay_level_ms(level) if delay_level_ms is not None else _UNKNOWN_LEVEL_MS)
    return tag_code_of(properties)


def _delay_level(properties: bytes) -> int:
    text = find_property_bytes(properties, b"DELAY")
    try:
        return int(text) if text else 0
    except ValueError:
        return 0
