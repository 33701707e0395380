"""What queue and index entries take from a record's properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from penstock.limits import REMEMBERED_TEXT_CHARS, REMEMBERED_TEXTS
from penstock.message.hashing import Key, java_hash
from penstock.message.properties import find_property_bytes
from penstock.message.sysflag import PREPARED

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
NOT_IN_QUEUE: Final = PREPARED
"""The sysFlag bit that prepared and rolled-back records have, and no others: no queue shows them."""
_UNKNOWN_LEVEL_MS: Final = 1000
_VALUE_END: Final = 2
_UNIQUE_KEY: Final = b"UNIQ_KEY\x01"

DelayLevels = Callable[[int], int]


@lru_cache(maxsize=4096)
def _tag_hash(tag: bytes) -> int:
    return java_hash(tag.decode(errors="replace"))


def tag_code_of(properties: bytes) -> int:
    at = properties.rfind(b"TAGS\x01")
    if at < 0:
        return 0
    # Nearly always the tag is a whole piece: found here in half the time.
    end = properties.find(b"\x02", at)
    if end > at + 5 and (at == 0 or properties[at - 1] == _VALUE_END):
        return _tag_hash(properties[at + 5 : end])
    return _tag_hash(find_property_bytes(properties, b"TAGS") or b"")


def keys_of(properties: bytes) -> list[str]:
    """What a message is indexed under: its unique key, then each of its keys."""
    unique = find_property_bytes(properties, b"UNIQ_KEY")
    keys = [unique.decode(errors="replace")] if unique else []
    if properties.find(b"KEYS\x01") >= 0:
        pieces = find_property_bytes(properties, b"KEYS")
        if pieces:
            keys += [key for key in pieces.decode(errors="replace").split(" ") if key]
    return keys


def take_apart(texts: Sequence[bytes]) -> tuple[list[int], list[Key], list[int]]:
    """Of the properties of a batch's messages: the tag codes, all keys, and the number of each key's message.

    Texts of one producer are mostly alike but for the unique key. If all are, none but the first is looked
    at; else each is compared with the one before, and only taken apart if it differs elsewhere.
    """
    alike = _take_apart_alike(texts)
    if alike is not None:
        code, unique_keys = alike
        count = len(texts)
        return [code] * count, unique_keys, list(range(count))
    codes: list[int] = []
    keys: list[Key] = []
    owners: list[int] = []
    code = start = end = 0
    before = after = b""
    for number, text in enumerate(texts):
        key = text[start:end]
        if key and text[:start] == before and text[end:] == after and _VALUE_END not in key:
            codes.append(code)
            keys.append(key)
            owners.append(number)
            continue
        code = tag_code_of(text)
        names = keys_of(text)
        codes.append(code)
        keys += names
        owners += [number] * len(names)
        start, end = unique_key_at(text)
        before, after = text[:start], text[end:]
        if len(names) != 1:
            start = end = 0
    return codes, keys, owners


def _take_apart_alike(texts: Sequence[bytes]) -> tuple[int, list[Key]] | None:
    """Tag code and unique keys of texts that differ in nothing else and have no other keys; else None."""
    first = texts[0] if texts else b""
    start, end = unique_key_at(first)
    if start == end or set(map(len, texts)) != {len(first)}:
        return None
    before, after = first[:start], first[end:]
    code = code_beside_unique_key(before, after)
    if code is None:
        return None
    together = b"".join(texts)
    keys = together[start : len(together) - len(after)].split(after + before)
    if (
        not together.endswith(after)
        or len(keys) != len(texts)
        or set(map(len, keys)) != {end - start}
        or together.count(b"\x02") != len(texts) * first.count(b"\x02")
    ):
        return None
    return code, list(keys)


def code_beside_unique_key(before: bytes, after: bytes) -> int | None:
    """The tag code of texts that have this on both sides of their unique key; None if there are other keys.

    A producer's texts are nearly all alike, so what was found is remembered, of short ones.
    """
    if len(before) + len(after) > REMEMBERED_TEXT_CHARS:
        return _find_code(before, after)
    return _remembered_code(before, after)


def _find_code(before: bytes, after: bytes) -> int | None:
    text = before + b"key" + after
    return tag_code_of(text) if keys_of(text) == ["key"] else None


_remembered_code: Final = lru_cache(REMEMBERED_TEXTS)(_find_code)


def unique_key_at(text: bytes) -> tuple[int, int]:
    """Start and end of the unique key's value; both 0 if it is no plain piece."""
    start = text.rfind(_UNIQUE_KEY) + len(_UNIQUE_KEY)
    end = text.find(b"\x02", start)
    before = text[:start]
    if end <= start or not (before == _UNIQUE_KEY or before.endswith(b"\x02" + _UNIQUE_KEY)):
        return 0, 0
    return start, end


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
