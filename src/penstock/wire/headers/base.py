"""Typed headers: how a Struct becomes ext fields (all strings) and back.

The fast way in is a msgspec decoder in lax mode. It is stricter than the protocol in places (an unknown word
for a boolean, a number where text belongs), so what it refuses is read again field by field by the
protocol's own rules, which also finds the field to blame. In one place it is more generous: "1" counts as
true, where Java peers know only the word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from penstock.errors import BadHeader

I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)


class HeaderStruct(msgspec.Struct, rename="camel", gc=False):
    """Base of all headers. A field that is None is not sent; every other one is, also at its default."""

    long_names: ClassVar[Mapping[str, str]] = {}
    """Readable names for headers whose wire names are single letters."""

    def to_ext(self) -> dict[str, str]:
        ext: dict[str, str] = {}
        for attribute, name, write in codec_of(type(self)).writers:
            value = getattr(self, attribute)
            if value is not None:
                ext[name] = write(value)
        return ext

    def json_ext(self) -> bytes:
        """The ext fields as a JSON object; headers of busy answers override this with something faster."""
        return msgspec.json.encode(self.to_ext())


class RpcHeader(HeaderStruct, kw_only=True):
    """A header that may name the broker it is meant for, which proxies need."""

    broker_name: str | None = msgspec.field(default=None, name="bname")


H = TypeVar("H", bound=HeaderStruct)


class _Field:
    """One field as the slow reader sees it."""

    __slots__ = ("attribute", "default", "kind", "limit", "name")

    def __init__(self, attribute: str, name: str, annotation: Any, default: Any) -> None:
        self.attribute = attribute
        self.name = name
        self.default = default
        self.limit = 0
        if get_origin(annotation) in (Union, UnionType):
            (annotation,) = (member for member in get_args(annotation) if member is not NoneType)
        if get_origin(annotation) is Annotated:
            annotation, meta = get_args(annotation)
            self.limit = meta.le + 1
        if annotation not in (int, bool, str):
            raise TypeError(f"header field {attribute} has a type that headers do not know: {annotation}")
        self.kind: type = annotation

    def read(self, ext: Mapping[str, str], label: str) -> Any:
        text = ext.get(self.name)
        if text is None:
            if self.default is msgspec.NODEFAULT:
                raise BadHeader(self.name, f"header field {label} is missing")
            return self.default
        if self.kind is str:
            return text
        if self.kind is bool:
            return text.lower() in ("true", "1")
        if _DECIMAL.fullmatch(text):
            value = int(text)
            if -self.limit <= value < self.limit:
                return value
        bits = self.limit.bit_length()
        raise BadHeader(
            self.name, f"header field {label}: expected a decimal {bits}-bit integer, got {text[:64]!r}"
        )


class Codec(Generic[H]):
    """What is worth computing once for a header class."""

    def __init__(self, header_type: type[H]) -> None:
        self.header_type = header_type
        hints = get_type_hints(header_type, include_extras=True)
        self._fields = [
            _Field(field.name, field.encode_name, hints[field.name], field.default)
            for field in msgspec.structs.fields(header_type)
        ]
        self.writers: list[tuple[str, str, Callable[[Any], str]]] = [
            (field.attribute, field.name, _WRITERS[field.kind]) for field in self._fields
        ]
        self.decode = msgspec.json.Decoder(header_type, strict=False).decode
        self._convert = partial(msgspec.convert, type=header_type, strict=False)

    def from_ext(self, ext: Mapping[str, str]) -> H:
        """A header from strings; raises BadHeader for the first field that is missing or wrong."""
        try:
            header: H = self._convert(ext)
        except msgspec.ValidationError:
            return self._read_fields(ext)
        return header

    def _read_fields(self, ext: Mapping[str, str]) -> H:
        values = {}
        for field in self._fields:
            long_name = self.header_type.long_names.get(field.name)
            label = f'"{field.name}" ({long_name})' if long_name else f'"{field.name}"'
            values[field.attribute] = field.read(ext, label)
        return self.header_type(**values)


def _write_bool(value: bool) -> str:
    return "true" if value else "false"


def _write_str(value: str) -> str:
    return value


_WRITERS: Final[Mapping[type, Callable[[Any], str]]] = {int: str, bool: _write_bool, str: _write_str}
_CODECS: Final[dict[type[HeaderStruct], Codec[Any]]] = {}


def codec_of(header_type: type[H]) -> Codec[H]:
    codec = _CODECS.get(header_type)
    if codec is None:
        codec = _CODECS[header_type] = Codec(header_type)
    return codec
