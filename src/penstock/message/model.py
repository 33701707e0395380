"""Messages as users make them and as listeners get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.errors import InvalidArgument
from penstock.message.compression import decompress
from penstock.message.ids import offset_id, unpack_host
from penstock.message.names import check_topic
from penstock.message.properties import NAME_END, RESERVED, VALUE_END, Key
from penstock.message.queue import MessageQueue
from penstock.message.record import RecordView

_BYTES: Final = (bytes, bytearray, memoryview)


class Message:
    """A message to send. What the protocol forbids is refused here, before it is on its way.

    `properties` holds everything that travels as a property, the tag and the keys included;
    `user_properties` is the sender's own part of it.
    """

    __slots__ = ("_body", "_properties", "flag", "topic")

    topic: str
    flag: int
    _body: bytes
    _properties: dict[str, str]

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay_ms: int = 0,
        deliver_at_ms: int = 0,
        wait_stored: bool = True,
        flag: int = 0,
    ) -> None:
        check_topic(topic)
        if type(body) is not bytes:
            if not isinstance(body, _BYTES):
                raise InvalidArgument(f"the body must be bytes, not {type(body).__name__}; encode text first")
            body = bytes(body)
        if flag and not -0x8000_0000 <= flag <= 0x7FFF_FFFF:
            raise InvalidArgument(f"the flag {flag} does not fit 32 bits")
        self.topic = topic
        self.flag = flag
        self._body = body
        own: dict[str, str] = {}
        if properties:
            _check_user_properties(properties)
            own.update(properties)
        if tag:
            _check_value("tag", tag)
            own[Key.TAGS] = tag
        if keys:
            own[Key.KEYS] = _join_keys(keys)
        if delay_level or delay_ms or deliver_at_ms:
            name, value = _delay_property(delay_level, delay_ms, deliver_at_ms)
            own[name] = value
        own[Key.WAIT] = "true" if wait_stored else "false"
        self._properties = own

    @property
    def body(self) -> bytes:
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        return self._properties

    @property
    def user_properties(self) -> dict[str, str]:
        return {name: value for name, value in self.properties.items() if name not in RESERVED}

    @property
    def tag(self) -> str | None:
        return self.properties.get(Key.TAGS)

    @property
    def keys(self) -> list[str]:
        return [key for key in self.properties.get(Key.KEYS, "").split(" ") if key]

    @property
    def delay_level(self) -> int:
        """0 where the message has none."""
        text = self.properties.get(Key.DELAY, "")
        return int(text) if text.isdecimal() else 0

    @property
    def message_id(self) -> str | None:
        """The id that the producer gives a message when it is first sent."""
        return self.properties.get(Key.UNIQ_KEY)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic} {self.message_id or 'unsent'}: {len(self.body)} bytes>"


class ReceivedMessage(Message):
    """A message from a broker. The body is decompressed, and the properties are decoded, when asked for.

    `topic` and `reconsume_times` may be set: a client shows a retried message under its first topic, while
    `queue` goes on naming the queue it came from.
    """

    __slots__ = (
        "_plain_body",
        "_read_properties",
        "_shown_topic",
        "broker_name",
        "reconsume_times",
        "record",
    )

    def __init__(self, record: RecordView, broker_name: str) -> None:
        self.record = record
        self.broker_name = broker_name
        self.reconsume_times = record.reconsume_times
        self._shown_topic: str | None = None
        self._plain_body: bytes | None = None
        self._read_properties: dict[str, str] | None = None

    @property
    def flag(self) -> int:  # type: ignore[override]  # only who sends a message chooses its flag
        return self.record.flag

    @property
    def topic(self) -> str:
        if self._shown_topic is None:
            self._shown_topic = self.record.topic
        return self._shown_topic

    @topic.setter
    def topic(self, topic: str) -> None:
        self._shown_topic = topic

    @property
    def body(self) -> bytes:
        """Raises CorruptRecord if a compressed body cannot be read."""
        if self._plain_body is None:
            self._plain_body = decompress(self.record.body, self.record.sys_flag)
        return self._plain_body

    @property
    def properties(self) -> dict[str, str]:
        if self._read_properties is None:
            self._read_properties = self.record.properties
        return self._read_properties

    @property
    def message_id(self) -> str:
        """The id that the producer gave the message; the offset id if it gave none."""
        return self.properties.get(Key.UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id that tells where the message is stored."""
        return offset_id(self.record.store_host, self.record.physical_offset)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.record.topic, self.broker_name, self.record.queue_id)

    @property
    def queue_id(self) -> int:
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        return self.record.queue_offset

    @property
    def physical_offset(self) -> int:
        return self.record.physical_offset

    @property
    def sys_flag(self) -> int:
        """As stored, so with the compression bit, although `body` is plain."""
        return self.record.sys_flag

    @property
    def born_ms(self) -> int:
        return self.record.born_ms

    @property
    def born_host(self) -> str:
        return host_text(self.record.born_host)

    @property
    def store_ms(self) -> int:
        return self.record.store_ms

    @property
    def store_host(self) -> str:
        return host_text(self.record.store_host)

    @property
    def prepared_offset(self) -> int:
        return self.record.prepared_offset

    @property
    def store_size(self) -> int:
        """Bytes of the whole record."""
        return self.record.size

    def __repr__(self) -> str:
        queue = f"{self.record.topic} {self.broker_name} {self.queue_id}"
        return f"<ReceivedMessage {self.message_id} from {queue}, offset {self.queue_offset}>"


def _check_user_properties(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if not isinstance(name, str) or not name or name.isspace():
            raise InvalidArgument(f"a property name must be text that is not blank, not {name!r}")
        if name in RESERVED:
            raise InvalidArgument(f"the property name {name} is reserved")
        if NAME_END in name or VALUE_END in name:
            raise InvalidArgument(f"the property name {name!r} contains a separator, \\x01 or \\x02")
        _check_encodable("property name", name)
        _check_value(f"property {name}", value)


def _check_value(what: str, value: str) -> None:
    if not isinstance(value, str) or not value or value.isspace():
        raise InvalidArgument(f"the {what} must be text that is not blank, not {value!r}")
    if VALUE_END in value:
        raise InvalidArgument(f"the {what} contains the separator \\x02")
    _check_encodable(what, value)


def _check_encodable(what: str, text: str) -> None:
    """Text with half of a surrogate pair, as cut strings and undecodable file names have it, has no UTF-8."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(
                f"the {what} {text!r} cannot be sent: it has half of a surrogate pair"
            ) from None


def _join_keys(keys: Sequence[str] | str) -> str:
    """Keys travel separated by blanks, so no key may have one."""
    pieces = (keys,) if isinstance(keys, str) else keys
    for key in pieces:
        _check_value("key", key)
        if key.split() != [key]:
            raise InvalidArgument(f"the key {key!r} contains a blank")
    return " ".join(pieces)


def _delay_property(delay_level: int, delay_ms: int, deliver_at_ms: int) -> tuple[str, str]:
    given = [
        (name, value)
        for name, value in (
            (Key.DELAY, delay_level),
            (Key.TIMER_DELAY_MS, delay_ms),
            (Key.TIMER_DELIVER_MS, deliver_at_ms),
        )
        if value
    ]
    name, value = given[0]
    if len(given) > 1:
        raise InvalidArgument("give one of delay_level, delay_ms and deliver_at_ms")
    if not isinstance(value, int):
        raise InvalidArgument(f"a delay must be a whole number, not {value!r}")
    if value < 0:
        raise InvalidArgument(f"a delay must not be negative: {value}")
    return name, str(value)


def host_text(host: bytes) -> str:
    ip, port = unpack_host(host)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
