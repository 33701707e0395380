"""Topics, routes and registration."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final, Self

import msgspec
from msgspec import field

from penstock.limits import MAX_DECOMPRESSED_BYTES
from penstock.wire import dialect
from penstock.wire.bodies.base import Body, Part, decode_as
from penstock.wire.dialect import DialectError

ZLIB_START: Final = b"\x78"
_INT: Final = struct.Struct(">i")


class DataVersion(Body):
    """Tells name servers and replicas whether a table has changed; never altered, always replaced."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(self.state_version, now_ms, self.counter + 1)


class QueueData(Part):
    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


class BrokerData(Part):
    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False


class TopicQueueMappingInfo(Body):
    topic: str | None = None
    scope: str = "__global__"
    total_queues: int = 0
    bname: str | None = None
    epoch: int = 0
    dirty: bool = False
    curr_id_map: dict[int, int] = field(default_factory=dict)


class LogicQueueMappingItem(Part):
    gen: int = 0
    queue_id: int = 0
    bname: str | None = None
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


class TopicQueueMappingDetail(TopicQueueMappingInfo):
    hosted_queues: dict[int, list[LogicQueueMappingItem]] = field(default_factory=dict)


class TopicRouteData(Body):
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


class ClusterInfo(Body):
    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class BrokerMemberGroup(Part):
    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = field(default_factory=dict)


class GetBrokerMemberGroupResponseBody(Body):
    broker_member_group: BrokerMemberGroup = field(default_factory=BrokerMemberGroup)


class TopicConfig(Body):
    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicConfigAndQueueMapping(TopicConfig):
    """The answer to GET_TOPIC_CONFIG."""

    mapping_detail: TopicQueueMappingDetail | None = None


class CreateTopicListRequestBody(Body):
    topic_config_list: list[TopicConfig] = field(default_factory=list)


class TopicConfigSerializeWrapper(Body):
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class TopicConfigAndMappingSerializeWrapper(TopicConfigSerializeWrapper):
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = field(default_factory=dict)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)


class TopicList(Body):
    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class KVTable(Body):
    table: dict[str, str] = field(default_factory=dict)


class RegisterBrokerBody(Body):
    """What a broker tells a name server; it travels as JSON or as one zlib stream."""

    topic_config_serialize_wrapper: TopicConfigAndMappingSerializeWrapper = field(
        default_factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] = field(default_factory=list)

    @classmethod
    def decode(cls, data: bytes | None) -> Self:
        """Read either form: some brokers compress without saying so in the header, so the body decides."""
        if data and data[:1] == ZLIB_START:
            return cls._decode_compressed(data)
        return super().decode(data)

    def encode_compressed(self) -> bytes:
        """The compressed form, for peers of version 5.0.0 and later."""
        wrapper = self.topic_config_serialize_wrapper
        mappings = wrapper.topic_queue_mapping_info_map.values()
        parts = [_block(wrapper.data_version.encode()), _INT.pack(len(wrapper.topic_config_table))]
        parts += [_block(_topic_text(topic)) for topic in wrapper.topic_config_table.values()]
        parts += [_block(dialect.dumps(self.filter_server_list)), _INT.pack(len(mappings))]
        parts += [_block(mapping.encode()) for mapping in mappings]
        return zlib.compress(b"".join(parts), 9)

    @classmethod
    def _decode_compressed(cls, data: bytes) -> Self:
        blocks = _Blocks(_inflate(data))
        wrapper = TopicConfigAndMappingSerializeWrapper(data_version=DataVersion.decode(blocks.next()))
        for _ in range(blocks.count()):
            topic = _parse_topic(blocks.next())
            wrapper.topic_config_table[topic.topic_name] = topic
        filter_servers = decode_as(list[str], blocks.next())
        if blocks.left:  # senders before 5.0.0 end here
            for _ in range(blocks.count()):
                mapping = TopicQueueMappingInfo.decode(blocks.next())
                wrapper.topic_queue_mapping_info_map[mapping.topic or ""] = mapping
        return cls(wrapper, filter_servers)


def _block(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(data, MAX_DECOMPRESSED_BYTES)
    except zlib.error as error:
        raise DialectError(f"body is not a zlib stream: {error}") from None
    if not stream.eof:
        raise DialectError("compressed body is cut off or too large")
    return content


class _Blocks:
    """Reads counts and length-prefixed blocks."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> bool:
        return self._position < len(self._data)

    def count(self) -> int:
        if self._position + 4 > len(self._data):
            raise DialectError("compressed body ends too early")
        (value,) = _INT.unpack_from(self._data, self._position)
        self._position += 4
        return int(value)

    def next(self) -> bytes:
        size = self.count()
        start = self._position
        if size < 0 or start + size > len(self._data):
            raise DialectError(f"a block of {size} bytes does not fit in the compressed body")
        self._position = start + size
        return self._data[start : start + size]


def _topic_text(topic: TopicConfig) -> bytes:
    numbers = f"{topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
    attributes = dialect.dumps(topic.attributes).decode()
    return f"{topic.topic_name} {numbers} {topic.topic_filter_type} {attributes}".encode()


def _parse_topic(data: bytes) -> TopicConfig:
    try:
        name, read, write, perm, filter_type, *rest = data.decode().split(" ", 5)
        numbers = int(read), int(write), int(perm)
    except ValueError:
        raise DialectError(f"not a topic in text form: {data[:64]!r}") from None
    attributes: Any = dialect.loads(rest[0]) if rest else {}
    try:
        attributes = msgspec.convert(attributes, dict[str, str])
    except msgspec.ValidationError as error:
        raise DialectError(f"attributes of topic {name} cannot be read: {error}") from None
    return TopicConfig(name, *numbers, filter_type, attributes=attributes)
