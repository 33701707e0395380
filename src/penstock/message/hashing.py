"""The hash that RocketMQ stores on disk and compares on the wire: 31-polynomial over UTF-16 units, 32 bit."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

Key: TypeAlias = str | bytes
"""A message key, or what a record holds of it: UTF-8."""

_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000
_POSITIVE: Final = 0x7FFF_FFFF
"""`-value & _POSITIVE` of a negative hash, as 32 bits, is its `slot_hash`."""
_MAX_TAIL: Final = 127 * (31 * 31 + 31 + 1)
"""What three ASCII characters add at most."""
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
    return _signed(value & _MASK)


def _signed(value: int) -> int:
    return value - (_MASK + 1) if value & _SIGN else value


def slot_hash(value: int) -> int:
    """The non-negative form kept in index files; the one hash without a positive twin becomes 0."""
    return 0 if value == -_SIGN else abs(value)


class KeyHasher:
    """Index hashes of `topic#key` for a stream of keys.

    Every message has a unique key, and those of one producer count up: what comes before the last digits
    repeats, and so do the last three. Both parts are looked up instead of computed.
    """

    REMEMBERED: Final = 8_192

    def __init__(self) -> None:
        self._prefixes: dict[tuple[str, int], int] = {}
        """What `topic#` adds to the hash of a key of this length."""
        self._heads: dict[Key, int] = {}
        """What the text before the last digits adds."""
        self._tails: dict[Key, int] = {}

    def hash_all(self, topics: Iterable[str], keys: Iterable[Key]) -> list[int]:
        """The hash of every topic and key. One for every message: the loop is kept tight."""
        prefixes, heads, tails = self._prefixes, self._heads, self._tails
        hashes: list[int] = []
        for topic, key in zip(topics, keys, strict=True):
            size = len(key)
            head_text, tail_text = key[:-3], key[-3:]
            prefix, head, tail = prefixes.get((topic, size)), heads.get(head_text), tails.get(tail_text)
            if prefix is None or head is None or tail is None:
                if not 3 < size < len(_POWERS) or not key.isascii():
                    hashes.append(key_hash(f"{topic}#{_text(key)}"))
                    continue
                if prefix is None:
                    prefix = java_hash(topic + "#") * _POWERS[size] & _MASK
                    self._remember(prefixes, (topic, size), prefix)
                if head is None:
                    head = java_hash(_text(head_text)) * _POWERS[3] & _MASK
                    self._remember(heads, head_text, head)
                if tail is None:
                    tail = java_hash(_text(tail_text)) & _MASK
                    self._remember(tails, tail_text, tail)
            value = prefix + head + tail & _MASK
            hashes.append(value if value < _SIGN else -value & _POSITIVE)
        return hashes

    def hash_batch(self, topic: str, keys: Sequence[Key]) -> list[int]:
        """As hash_all, in a fraction of the time for keys that differ only in the last digits."""
        return self._hash_alike(topic, keys) or self.hash_all([topic] * len(keys), keys)

    def _hash_alike(self, topic: str, keys: Sequence[Key]) -> list[int]:
        """Empty if the keys are not alike, or parts of them are not known yet."""
        head_text = keys[0][:-3]
        prefix, head = self._prefixes.get((topic, len(keys[0]))), self._heads.get(head_text)
        if not head_text or prefix is None or head is None:
            return []
        try:
            _, *last = b"".join(keys).split(head_text)  # type: ignore[arg-type]  # text raises
            ends = list(map(self._tails.__getitem__, last))  # so each has three digits
        except (KeyError, TypeError):
            return []
        if len(ends) != len(keys) or set(map(len, keys)) != {len(keys[0])}:
            return []
        start = prefix + head & _MASK
        # Mostly all of them are positive, or all negative.
        if start < _SIGN - _MAX_TAIL:
            return [start + end for end in ends]
        if _SIGN < start < _MASK - _MAX_TAIL:
            start = _MASK + 1 - start
            return [start - end for end in ends]
        return [slot_hash(_signed(start + end & _MASK)) for end in ends]

    def _remember(self, table: dict[Any, int], part: tuple[str, int] | Key, value: int) -> None:
        if len(table) >= self.REMEMBERED:
            table.clear()
        table[part] = value


def _text(key: Key) -> str:
    return key if isinstance(key, str) else key.decode(errors="replace")


def key_hash(text: str) -> int:
    """The index hash of a full key text (`topic#key`)."""
    return slot_hash(java_hash(text))
