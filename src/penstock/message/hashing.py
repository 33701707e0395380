"""The hash that RocketMQ stores on disk and compares on the wire: 31-polynomial over UTF-16 units, 32 bit."""

from __future__ import annotations

import sys
from typing import Final

_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000
_NATIVE_UTF16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"

# A hash is a number in base 31 whose digits are character codes. Splitting each code into two real digits
# of base 31 lets int() do the sum in C, many times faster than a step in Python for each character.
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_LOW_DIGIT: Final = bytes(_DIGITS[code % 31] for code in range(256))
_HIGH_DIGIT: Final = bytes(_DIGITS[code // 31] for code in range(256))

_POWERS: Final = tuple(pow(31, size, _MASK + 1) for size in range(513))
"""Also the longest text taken in one go, since int() slows down for very long ones."""


def java_hash(text: str) -> int:
    """The signed 32-bit hash of a text."""
    return extend_hash(0, text)


def extend_hash(prefix_hash: int, text: str) -> int:
    """The hash of `prefix + text`, given the hash of the prefix: an index keeps that of `topic#`."""
    size = len(text)
    if 0 < size < len(_POWERS) and text.isascii():
        codes = text.encode()
        value = (
            prefix_hash * _POWERS[size]
            + int(codes.translate(_LOW_DIGIT), 31)
            + int(codes.translate(_HIGH_DIGIT), 31) * 31
        )
    else:
        value = prefix_hash
        for unit in memoryview(text.encode(_NATIVE_UTF16, "surrogatepass")).cast("H"):
            value = value * 31 + unit & _MASK
    value &= _MASK
    return value - (_MASK + 1) if value & _SIGN else value


def slot_hash(value: int) -> int:
    """The non-negative form kept in index files; the one hash without a positive twin becomes 0."""
    return 0 if value == -_SIGN else abs(value)


class KeyHasher:
    """Index hashes of `topic#key` for a stream of keys.

    Every message has a unique key, and those of one producer count up: what comes before the last digits
    repeats, and so do the last digits. Both parts are looked up instead of computed.
    """

    TAIL: Final = 3
    REMEMBERED: Final = 8_192

    def __init__(self) -> None:
        self._prefixes: dict[str, int] = {}
        self._parts: dict[str, int] = {}

    def hash(self, topic: str, key: str) -> int:
        prefix = self._prefixes.get(topic)
        if prefix is None:
            prefix = self._remember(self._prefixes, topic, java_hash(topic + "#"))
        size = len(key)
        if size <= self.TAIL or size >= len(_POWERS) or not key.isascii():
            return slot_hash(extend_hash(prefix, key))
        parts = self._parts
        head_text, tail_text = key[:-3], key[-3:]
        head = parts.get(head_text)
        if head is None:
            head = self._remember(parts, head_text, java_hash(head_text))
        tail = parts.get(tail_text)
        if tail is None:
            tail = self._remember(parts, tail_text, java_hash(tail_text))
        value = prefix * _POWERS[size] + head * _TAIL_POWER + tail & _MASK
        if value >= _SIGN:
            return _MASK + 1 - value if value > _SIGN else 0
        return value

    def _remember(self, table: dict[str, int], text: str, value: int) -> int:
        if len(table) >= self.REMEMBERED:
            table.clear()
        table[text] = value
        return value


_TAIL_POWER: Final = _POWERS[KeyHasher.TAIL]


def key_hash(text: str) -> int:
    """The index hash of a full key text (`topic#key`)."""
    return slot_hash(java_hash(text))
