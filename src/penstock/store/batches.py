"""The messages of one send on their way into the log: records and entries of a whole batch in few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate, chain, repeat
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from penstock.message.batch import ELEMENT_BYTES, BatchElement, even_sizes, split_batch, split_even
from penstock.message.hashing import Key
from penstock.message.record import Buffer
from penstock.message.rows import pack_rows
from penstock.store.consume_queue import ENTRY
from penstock.store.dispatch import code_beside_unique_key, take_apart, unique_key_at

_CRC_MASK: Final = 0x7FFF_FFFF
_pack_entry: Final = ENTRY.pack
_pack_entry_end: Final = Struct(">iq").pack
_pack_short: Final = Struct(">H").pack
_pack_pair: Final = Struct(">iI").pack
_pack_int: Final = Struct(">i").pack
_without_sign: Final = _CRC_MASK.__and__
_VALUE_END: Final = b"\x02"


class Place(NamedTuple):
    """Where a batch goes, and what its records have in common because of that."""

    queue_id: int
    magic: int
    topic_field: bytes
    first: int
    """Queue offset of the first."""
    position: int
    """In the log, of the first."""
    overhead: int
    """A record's size without body and properties."""
    shared: bytes
    """The fields from the sysFlag to the prepared offset."""


class Stored(NamedTuple):
    positions: list[int]
    records: bytes
    entries: bytes
    keys: Sequence[Key]
    key_positions: Sequence[int]


class EvenBatch(NamedTuple):
    """Messages alike in everything but the body's content and a unique key, as producers mostly send them.

    All of them are packed by one call.
    """

    messages: int
    flag: bytes
    body_size: int
    text_size: int
    bodies: Sequence[bytes]
    before: bytes
    """What the properties have before the value of the unique key, with their length field."""
    unique_keys: Sequence[bytes]
    after: bytes
    tag_code: int

    def total_size(self, overhead: int) -> int:
        return (overhead + self.body_size + self.text_size) * self.messages

    def encode(self, place: Place) -> Stored:
        """Raises struct.error where a field is out of range."""
        count, bodies, keys, after = self.messages, self.bodies, self.unique_keys, self.after
        size = place.overhead + self.body_size + self.text_size
        positions = list(range(place.position, place.position + size * count, size))
        head = _pack_pair(size, place.magic)
        queue = _pack_int(place.queue_id) + self.flag
        shared = place.shared + _pack_int(self.body_size)
        topic = place.topic_field + self.before
        fields: list[Any] = [head, 0, queue, 0, 0, shared, b"", topic, b"", after] * count
        fields[1::10] = [crc32(body) & _CRC_MASK for body in bodies]
        fields[3::10] = range(place.first, place.first + count)
        fields[4::10] = positions
        fields[6::10] = bodies
        fields[8::10] = keys
        row = f"8sI8sqq{len(shared)}s{self.body_size}s{len(topic)}s{len(keys[0])}s{len(after)}s"
        records = pack_rows(row, fields, count)
        ends: list[Any] = [0, _pack_entry_end(size, self.tag_code)] * count
        ends[::2] = positions
        return Stored(positions, records, pack_rows("q12s", ends, count), keys, positions)


class MixedBatch:
    """Any messages, from (flag, body, properties) of each."""

    def __init__(self, items: Sequence[BatchElement]) -> None:
        self.messages = len(items)
        columns: Iterable[Sequence[Any]] = zip(*items, strict=True) if items else ((), (), ())
        self._flags, self._bodies, self._texts = columns
        self._body_sizes = list(map(len, self._bodies))
        self._text_sizes = list(map(len, self._texts))
        self.body_size = max(self._body_sizes, default=0)
        self.text_size = max(self._text_sizes, default=0)

    def total_size(self, overhead: int) -> int:
        return overhead * self.messages + sum(self._body_sizes) + sum(self._text_sizes)

    def encode(self, place: Place) -> Stored:
        """Raises struct.error where a field is out of range."""
        overhead, topic_field, texts = place.overhead, place.topic_field, self._texts
        count, size = self.messages, overhead + self.body_size + self.text_size
        topics: Iterable[bytes]
        if self.total_size(overhead) == size * count:
            sizes = [size] * count
            positions = list(range(place.position, place.position + size * count, size))
            topics = repeat(topic_field + _pack_short(self.text_size), count)
        else:
            body_and_text = zip(self._body_sizes, self._text_sizes, strict=True)
            sizes = [overhead + body + text for body, text in body_and_text]
            positions = list(accumulate(sizes[:-1], initial=place.position))
            topics = [topic_field + _pack_short(text) for text in self._text_sizes]
        heads = map(
            _pack_head(len(place.shared)),
            sizes,
            repeat(place.magic),
            map(_without_sign, map(crc32, self._bodies)),
            repeat(place.queue_id),
            self._flags,
            range(place.first, place.first + count),
            positions,
            repeat(place.shared),
            self._body_sizes,
        )
        records = b"".join(chain.from_iterable(zip(heads, self._bodies, topics, texts, strict=True)))
        codes, keys, owners = take_apart(texts)
        entries = b"".join(map(_pack_entry, positions, sizes, codes))
        return Stored(positions, records, entries, keys, list(map(positions.__getitem__, owners)))


Batch: TypeAlias = EvenBatch | MixedBatch


@cache
def _pack_head(shared_bytes: int) -> Callable[..., bytes]:
    """Packs what comes before a body."""
    return Struct(f">iIiiiqq{shared_bytes}si").pack


def read_batch(body: Buffer) -> Batch:
    """The messages of a batch send. Raises CorruptRecord, naming the position."""
    if type(body) is not bytes:
        body = bytes(body)
    return _read_even(body) or MixedBatch(split_batch(body))


def _read_even(body: bytes) -> EvenBatch | None:
    sizes = even_sizes(body)
    if sizes is None:
        return None
    body_size, text_size, count = sizes
    at = ELEMENT_BYTES + body_size
    text = body[at : at + text_size]
    start, end = unique_key_at(text)
    code = code_beside_unique_key(text[:start], text[end:]) if end else None
    if code is None:
        return None
    found = split_even(body, sizes, start, end)
    if found is None or _VALUE_END in b"".join(found.stretches):
        return None
    flag, bodies, before, keys, after = found
    return EvenBatch(count, flag, body_size, text_size, bodies, before, keys, after, code)
