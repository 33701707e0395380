"""What all bodies have in common: reading and writing in the dialect."""

from __future__ import annotations

from typing import Any, Final, Self, TypeVar, cast

import msgspec

from penstock.message.queue import MessageQueue
from penstock.wire import dialect
from penstock.wire.dialect import DialectError, ObjectKey

T = TypeVar("T")

_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_QUEUE_MEMBERS: Final = frozenset(("brokerName", "queueId", "topic"))


class Part(msgspec.Struct, rename="camel"):
    """An object inside a body; members have the names and defaults that peers give them."""


class Body(Part):
    """A body that travels on its own."""

    def encode(self, *, strict: bool = False) -> bytes:
        """JSON in the form peers write it; `strict` gives standard JSON for readers that need it."""
        return dialect.dumps(self, int_keys_bare=not strict, ascii_only=strict)

    @classmethod
    def decode(cls, data: bytes | None) -> Self:
        """Read a body; unknown members are ignored, missing and null ones take their default.

        Raises DialectError if it cannot be read, lacks a required member or has one of the wrong type.
        """
        return decode_as(cls, data)

    @classmethod
    def decode_list(cls, data: bytes | None) -> list[Self]:
        """Read a body that is an array of these."""
        return decode_as(list[cls], data)  # type: ignore[valid-type]


def decode_as(wanted: type[T], data: bytes | None) -> T:
    if not data:
        raise DialectError("body is missing")
    if b'"$ref"' not in data:
        try:
            decoder = _DECODERS.get(wanted)
            if decoder is None:
                decoder = _DECODERS[wanted] = msgspec.json.Decoder(wanted, strict=False)
            return cast(T, decoder.decode(data))
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            pass  # not plain JSON, or with members that only the slow way forgives
    try:
        return msgspec.convert(_with_queues(dialect.loads(data)), wanted, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        name = getattr(wanted, "__name__", str(wanted))
        raise DialectError(f"body is not a {name}: {error}") from None


def _with_queues(value: Any) -> Any:
    """Drop null members, and turn objects that are queues, also as keys, into MessageQueue."""
    if isinstance(value, dict):
        members = {
            _queue_or(key, dict(key)) if isinstance(key, ObjectKey) else key: _with_queues(item)
            for key, item in value.items()
            if item is not None
        }
        return _queue_or(members, members)
    if isinstance(value, list):
        return [_with_queues(item) for item in value]
    return value


def _queue_or(otherwise: Any, members: dict[Any, Any]) -> Any:
    if members.keys() == _QUEUE_MEMBERS:
        return MessageQueue(members["topic"], members["brokerName"], members["queueId"])
    return otherwise
