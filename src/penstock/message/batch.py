"""Batch bodies: several messages of one topic in one send, and, for inner batches, in one record."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import CorruptRecord, MessageTooLarge
from penstock.limits import MAX_PROPERTIES_BYTES
from penstock.message.compression import decompress
from penstock.message.record import Buffer, RecordView, encode_record, split_records
from penstock.message.rows import unpack_rows
from penstock.message.sysflag import COMPRESSED, INNER_BATCH_MASK

_ELEMENT: Final = struct.Struct(">i8xii")
"""Size, magic and CRC (both unused), flag, body length."""

_SHORT: Final = struct.Struct(">h")
_HEAD_SIZE: Final = _ELEMENT.size
_pack_element: Final = _ELEMENT.pack
_pack_short: Final = _SHORT.pack

ELEMENT_BYTES: Final = _HEAD_SIZE + _SHORT.size
"""What a message costs in a batch besides body and properties."""

BatchElement: TypeAlias = tuple[int, Buffer, bytes]
"""Flag, body and property bytes."""


def encode_batch(elements: Iterable[BatchElement]) -> bytes:
    """The body of a batch send, from (flag, body, property bytes)."""
    rows = list(elements)
    return encode_columns(
        [flag for flag, _, _ in rows],
        [bytes(body) for _, body, _ in rows],
        [properties for _, _, properties in rows],
    )


def encode_columns(flags: Sequence[int], bodies: Sequence[bytes], properties: Sequence[bytes]) -> bytes:
    """The body of a batch send, from the flags, bodies and property bytes of its messages."""
    body_sizes, properties_sizes = set(map(len, bodies)), set(map(len, properties))
    check_properties_size(max(properties_sizes, default=0))
    if len(body_sizes) == len(properties_sizes) == 1:  # as they mostly are: nothing is done for each
        (body_size,), (properties_size,) = body_sizes, properties_sizes
        pack = _alike(body_size, properties_size).pack
        size = ELEMENT_BYTES + body_size + properties_size
        return b"".join(
            map(pack, repeat(size), flags, repeat(body_size), bodies, repeat(properties_size), properties)
        )
    parts: list[bytes] = []
    for flag, body, text in zip(flags, bodies, properties, strict=True):
        size = ELEMENT_BYTES + len(body) + len(text)
        parts += (_pack_element(size, flag, len(body)), body, _pack_short(len(text)), text)
    return b"".join(parts)


def check_properties_size(size: int) -> None:
    """Raises MessageTooLarge where a record cannot hold so many bytes of properties."""
    if size > MAX_PROPERTIES_BYTES:
        raise MessageTooLarge(f"properties of {size} bytes: at most {MAX_PROPERTIES_BYTES} fit")


def split_batch(body: Buffer) -> list[BatchElement]:
    """Raises CorruptRecord, naming the position."""
    if type(body) is not bytes:
        body = bytes(body)
    return _split_alike(body) or _split_any(body)


def _split_alike(body: bytes) -> list[BatchElement]:
    """The elements if all have the same sizes, as they mostly do; else none. Nothing is done for each."""
    sizes = even_sizes(body)
    if sizes is None:
        return []
    body_size, properties_size, count = sizes
    rows = _alike(body_size, properties_size).iter_unpack(body)
    element_sizes, flags, body_sizes, bodies, properties_sizes, texts = zip(*rows, strict=True)
    if (
        element_sizes.count(element_sizes[0]) == count
        and body_sizes.count(body_size) == count
        and properties_sizes.count(properties_size) == count
    ):
        return list(zip(flags, bodies, texts, strict=True))
    return []


@lru_cache(256)
def _alike(body_size: int, properties_size: int) -> struct.Struct:
    return struct.Struct(f">i8xii{body_size}sh{properties_size}s")


def even_sizes(body: bytes) -> tuple[int, int, int] | None:
    """Sizes of body and properties, and number of elements, if all may have the sizes of the first."""
    if len(body) < _HEAD_SIZE:
        return None
    size, _, body_size = _ELEMENT.unpack_from(body)
    properties_size = size - ELEMENT_BYTES - body_size
    if body_size < 0 or not 0 <= properties_size <= MAX_PROPERTIES_BYTES or len(body) % size:
        return None
    return body_size, properties_size, len(body) // size


class EvenElements(NamedTuple):
    flag: bytes
    """As encoded."""
    bodies: Sequence[bytes]
    before: bytes
    """Of the properties what comes before the stretch, with their length field."""
    stretches: Sequence[bytes]
    after: bytes


def split_even(body: bytes, sizes: tuple[int, int, int], start: int, end: int) -> EvenElements | None:
    """The elements of these sizes if but for bodies and a stretch of the properties they are alike."""
    body_size, properties_size, count = sizes
    row = f"4s8x8s{body_size}s{start + _SHORT.size}s{end - start}s{properties_size - end}s"
    fields = unpack_rows(row, body, count)
    element_size, head, _, before, _, after = fields[:6]
    befores = fields[3::6]
    if (
        fields[0::6].count(element_size) == count
        and fields[1::6].count(head) == count
        and befores.count(before) == count
        and fields[5::6].count(after) == count
        and before.startswith(_pack_short(properties_size))
    ):
        return EvenElements(head[:4], fields[2::6], before, fields[4::6], after)
    return None


def _split_any(body: bytes) -> list[BatchElement]:
    elements: list[BatchElement] = []
    unpack = _ELEMENT.unpack_from
    position = 0
    limit = len(body)
    while position < limit:
        try:
            size, flag, body_size = unpack(body, position)
            start = position + _HEAD_SIZE
            end = start + body_size
            properties_size = body[end] << 8 | body[end + 1]
        except (struct.error, IndexError):
            raise CorruptRecord(f"the batch element at {position} is cut off") from None
        properties_start = end + 2
        next_position = properties_start + properties_size
        if (
            next_position - position != size
            or next_position > limit
            or body_size < 0
            or properties_size > MAX_PROPERTIES_BYTES
        ):
            raise CorruptRecord(
                f"the batch element at {position} does not add up to its size of {size} bytes"
            )
        elements.append((flag, body[start:end], body[properties_start:next_position]))
        position = next_position
    return elements


def split_messages(body: Buffer) -> list[RecordView]:
    """The messages of an answer's body, batches that are stored as one record taken apart."""
    records = split_records(body)
    flags = 0
    for record in records:
        flags |= record.sys_flag
    if flags & INNER_BATCH_MASK != INNER_BATCH_MASK:
        return records
    return [inner for record in records for inner in split_inner_batch(record)]


def split_inner_batch(record: RecordView) -> list[RecordView]:
    """The messages of a record that holds a whole batch; any other record is its own only message."""
    if record.sys_flag & INNER_BATCH_MASK != INNER_BATCH_MASK:
        return [record]
    elements = split_batch(decompress(record.body, record.sys_flag))
    topic = record.topic.encode()
    return [
        RecordView(
            encode_record(
                topic=topic,
                queue_id=record.queue_id,
                flag=flag,
                queue_offset=record.queue_offset + index,
                physical_offset=record.physical_offset,
                # Each element stands alone from here on: neither compressed nor a batch again.
                sys_flag=record.sys_flag & ~(COMPRESSED | INNER_BATCH_MASK),
                born_ms=record.born_ms,
                born_host=record.born_host,
                store_ms=record.store_ms,
                store_host=record.store_host,
                reconsume_times=record.reconsume_times,
                prepared_offset=record.prepared_offset,
                body=body,
                properties=properties,
            )
        )
        for index, (flag, body, properties) in enumerate(elements)
    ]
