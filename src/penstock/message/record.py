"""The message record: one byte layout in the commit log and in every answer that carries messages."""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias
from zlib import crc32

from penstock.errors import CorruptRecord, InvalidArgument, MessageTooLarge
from penstock.limits import MAX_PROPERTIES_BYTES
from penstock.message.properties import Key, decode_properties, find_property, properties_damaged
from penstock.message.sysflag import BORN_V6, HOSTS_V6, STORE_V6

Buffer: TypeAlias = bytes | memoryview

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194

RECORD_HEAD: Final = struct.Struct(">iIiiiqqiq8sq8siqi")
"""All fields before the body, with IPv4 hosts: size, magic, body CRC, queue id, flag, queue offset, physical
offset, sysFlag, born ms, born host, store ms, store host, reconsume times, prepared offset, body length."""

_HEADS: Final = {
    0: RECORD_HEAD,
    BORN_V6: struct.Struct(">iIiiiqqiq20sq8siqi"),
    STORE_V6: struct.Struct(">iIiiiqqiq8sq20siqi"),
    HOSTS_V6: struct.Struct(">iIiiiqqiq20sq20siqi"),
}
_HOST_FLAGS: Final = {
    (8, 8): 0,
    (20, 8): BORN_V6,
    (8, 20): STORE_V6,
    (20, 20): HOSTS_V6,
}
_CRC_MASK: Final = 0x7FFF_FFFF
_MAX_TOPIC_V1: Final = 127
_MAX_TOPIC_V2: Final = 32_767
"""Version 1 has one signed byte for the topic's length; version 2, for long retry topics, has two."""

_HEAD_SIZE: Final = RECORD_HEAD.size
_SHORTEST: Final = _HEAD_SIZE + 3
_START_SIZE: Final = 8
_unpack_needed: Final = struct.Struct(">iI8xiq8xi32xi8xi").unpack_from
"""Size, magic, flag, queue offset, sysFlag, reconsume times, body length; the last two with IPv4 hosts."""
_unpack_start: Final = struct.Struct(">iI").unpack_from
_unpack_sizes: Final = struct.Struct(">8xi24xi44xi").unpack_from


def encode_record(
    *,
    topic: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    body: Buffer,
    properties: bytes,
) -> bytes:
    """A whole record. The body's CRC, the version and the host bits of sysFlag follow from the rest."""
    hosts = _HOST_FLAGS.get((len(born_host), len(store_host)))
    if hosts is None:
        raise InvalidArgument("a packed host has 8 or 20 bytes")
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise MessageTooLarge(f"properties of {len(properties)} bytes: at most {MAX_PROPERTIES_BYTES} fit")
    topic_size = len(topic)
    if topic_size <= _MAX_TOPIC_V1:
        magic = MAGIC_V1
        topic_length = topic_size.to_bytes()
    elif topic_size <= _MAX_TOPIC_V2:
        magic = MAGIC_V2
        topic_length = topic_size.to_bytes(2)
    else:
        raise MessageTooLarge(f"a topic of {topic_size} bytes: at most {_MAX_TOPIC_V2} fit")
    head = _HEADS[hosts]
    body_size = len(body)
    return b"".join(
        (
            head.pack(
                head.size + body_size + len(topic_length) + topic_size + 2 + len(properties),
                magic,
                crc32(body) & _CRC_MASK,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag & ~HOSTS_V6 | hosts,
                born_ms,
                born_host,
                store_ms,
                store_host,
                reconsume_times,
                prepared_offset,
                body_size,
            ),
            body,
            topic_length,
            topic,
            len(properties).to_bytes(2),
            properties,
        )
    )


class RecordView:
    """A record inside a larger buffer. A view that could be made has a sound structure.

    What every consumer needs of every message are plain attributes; everything else is cut out, and
    decoded, at each access.
    """

    __slots__ = (
        "_body_end",
        "_body_start",
        "_properties_start",
        "_topic_start",
        "buffer",
        "flag",
        "offset",
        "queue_offset",
        "reconsume_times",
        "size",
        "sys_flag",
    )

    buffer: Buffer
    offset: int
    size: int
    flag: int
    queue_offset: int
    sys_flag: int
    reconsume_times: int

    def __init__(self, buffer: Buffer, offset: int = 0) -> None:
        try:
            size, magic, self.flag, self.queue_offset, sys_flag, self.reconsume_times, body_size = (
                _unpack_needed(buffer, offset)
            )
            body_start = offset + _HEAD_SIZE
            if sys_flag & HOSTS_V6:
                head = _HEADS[sys_flag & HOSTS_V6]
                body_start = offset + head.size
                self.reconsume_times, _, body_size = head.unpack_from(buffer, offset)[12:]
            body_end = body_start + body_size
            topic_size = first = buffer[body_end]
            topic_start = body_end + 1
            if magic == MAGIC_V2:
                topic_size = first << 8 | buffer[topic_start]
                topic_start += 1
            elif magic != MAGIC_V1:
                raise CorruptRecord(f"no message record at {offset}: magic {magic:08X}")
            start = topic_start + topic_size + 2
            second = buffer[start - 2]
            end = start + (second << 8 | buffer[start - 1])
        except (struct.error, IndexError):
            raise CorruptRecord(f"the record at {offset} is cut off") from None
        # Lengths are signed, so the first byte of each must leave the top bit clear.
        if end - offset != size or end > len(buffer) or body_size < 0 or (first | second) & 0x80:
            raise CorruptRecord(f"the record at {offset} does not add up to its size of {size} bytes")
        self.buffer = buffer
        self.offset = offset
        self.size = size
        self.sys_flag = sys_flag
        self._body_start = body_start
        self._body_end = body_end
        self._topic_start = topic_start
        self._properties_start = start

    @property
    def _head(self) -> tuple[Any, ...]:
        """In the order of RECORD_HEAD."""
        return _HEADS[self.sys_flag & HOSTS_V6].unpack_from(self.buffer, self.offset)

    @property
    def body_crc(self) -> int:
        return int(self._head[2])

    @property
    def queue_id(self) -> int:
        return int(self._head[3])

    @property
    def physical_offset(self) -> int:
        return int(self._head[6])

    @property
    def born_ms(self) -> int:
        return int(self._head[8])

    @property
    def born_host(self) -> bytes:
        return bytes(self._head[9])

    @property
    def store_ms(self) -> int:
        return int(self._head[10])

    @property
    def store_host(self) -> bytes:
        return bytes(self._head[11])

    @property
    def prepared_offset(self) -> int:
        return int(self._head[13])

    @property
    def topic(self) -> str:
        return str(self.buffer[self._topic_start : self._properties_start - 2], "utf-8", "replace")

    @property
    def body(self) -> Buffer:
        """As stored, so possibly compressed; of the same type as the buffer."""
        return self.buffer[self._body_start : self._body_end]

    @property
    def properties_bytes(self) -> bytes:
        return bytes(self.buffer[self._properties_start : self.offset + self.size])

    @property
    def properties_text(self) -> str:
        return str(self.buffer[self._properties_start : self.offset + self.size], "utf-8", "replace")

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.properties_text)

    @property
    def tag(self) -> str | None:
        return find_property(self.properties_text, Key.TAGS)

    def find(self, key: str) -> str | None:
        """One property."""
        return find_property(self.properties_text, key)

    def verify(self) -> None:
        """Raise CorruptRecord where the content is damaged although the structure is sound."""
        if crc32(self.body) & _CRC_MASK != self.body_crc:
            raise CorruptRecord(f"the body of the record at {self.offset} does not match its checksum")
        if properties_damaged(self.buffer, self._properties_start, self.offset + self.size):
            raise CorruptRecord(f"the properties of the record at {self.offset} are damaged")

    def __repr__(self) -> str:
        return (
            f"<RecordView {self.topic} queue {self.queue_id} offset {self.queue_offset}: {self.size} bytes>"
        )


def split_records(body: Buffer) -> list[RecordView]:
    """The records of an answer's body. Raises CorruptRecord, naming the position, if any is not sound."""
    records = []
    position = 0
    end = len(body)
    while position < end:
        record = RecordView(body, position)
        records.append(record)
        position += record.size
    return records


def check_record(buffer: Buffer, offset: int, limit: int, *, crc: bool) -> int:
    """What recovery finds at a place: the size of a valid record, 0 for the filler at a file's end, else -1.

    RecordView's walk with only the fields it needs, since recovery goes over GiBs of log.
    """
    try:
        size, magic = _unpack_start(buffer, offset)
        if magic == MAGIC_BLANK:
            return 0 if offset + _START_SIZE <= limit else -1
        end = offset + size
        if end > limit or size < _SHORTEST:
            return -1
        body_crc, sys_flag, body_size = _unpack_sizes(buffer, offset)
        body_start = offset + _HEAD_SIZE
        if sys_flag & HOSTS_V6:
            head = _HEADS[sys_flag & HOSTS_V6]
            body_start = offset + head.size
            body_size = head.unpack_from(buffer, offset)[-1]
        body_end = body_start + body_size
        topic_size = first = buffer[body_end]
        start = body_end + 3
        if magic == MAGIC_V2:
            topic_size = first << 8 | buffer[body_end + 1]
            start += 1
        elif magic != MAGIC_V1:
            return -1
        start += topic_size
        second = buffer[start - 2]
        properties_size = second << 8 | buffer[start - 1]
    except (struct.error, IndexError):
        return -1
    if start + properties_size != end or body_size < 0 or (first | second) & 0x80:
        return -1
    if crc and crc32(buffer[body_start:body_end]) & _CRC_MASK != body_crc:
        return -1
    return -1 if properties_damaged(buffer, start, end) else size
