"""The JSON dialect of bodies: a tolerant reader and an exact writer.

Java peers write maps keyed by integers with bare numeric keys, maps keyed by objects with the object itself
as key, and the second occurrence of an object as a reference. Text that is plain JSON goes through msgspec;
only the rest is read by the parser here.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from penstock.errors import PenstockError
from penstock.limits import MAX_JSON_DEPTH, MAX_JSON_REFERENCED
from penstock.message.queue import MessageQueue


class DialectError(PenstockError, ValueError):
    """A body is not JSON, not in this dialect either, or does not have the members it must have."""


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object used as a key: its members as sorted pairs, so that it can be hashed."""

    __slots__ = ()

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> ObjectKey:
        try:
            key = cls(sorted(members.items()))
            hash(key)
        except TypeError:
            raise DialectError("an object used as a key must have plain members") from None
        return key

    def members(self) -> dict[str, Any]:
        return dict(self)


# ---- reading -------------------------------------------------------------------------------------------


def loads(data: bytes | str) -> Any:
    """Read a body. Integer keys arrive as strings, object keys as ObjectKey, references resolved."""
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise DialectError(f"body is not UTF-8: {error}") from None
    if '"$ref"' not in text:
        try:
            return msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            pass
    return _Reader(text).read()


class _Reference:
    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")
_STRINGS: Final = json.JSONDecoder(strict=False)
_WORD: Final = re.compile(r"true|false|null")
_WORDS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "null": None}


class _Reader:
    """Recursive descent over the text; `_position` is the next character to look at."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._references = False

    def read(self) -> Any:
        value = self._value(0)
        if self._next():
            raise self._error("nothing more")
        return _Resolver(value).resolved() if self._references else value

    def _next(self) -> str:
        """The next character that is not white space, not consumed; empty at the end."""
        match = _SPACE.match(self._text, self._position)
        if match:
            self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _error(self, expected: str) -> DialectError:
        found = self._text[self._position : self._position + 16]
        return DialectError(f"expected {expected} at character {self._position}, found {found!r}")

    def _value(self, depth: int) -> Any:
        start = self._next()
        if start == '"':
            return self._string()
        if start == "{":
            return self._object(depth + 1)
        if start == "[":
            return self._array(depth + 1)
        match = _WORD.match(self._text, self._position)
        if match:
            self._position = match.end()
            return _WORDS[match.group()]
        return self._number()

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._position)
        if not match:
            raise self._error("a value")
        self._position = match.end()
        return float(match.group()) if match.group(1) or match.group(2) else int(match.group())

    def _string(self) -> str:
        try:
            value, self._position = _STRINGS.raw_decode(self._text, self._position)
        except json.JSONDecodeError as error:
            raise DialectError(f"bad string: {error}") from None
        # a lone surrogate could not be sent on, so it is replaced as Java would
        return str(value) if value.isascii() else value.encode("utf-8", "replace").decode()

    def _array(self, depth: int) -> list[Any]:
        self._enter(depth)
        items: list[Any] = []
        if self._next() == "]":
            self._position += 1
            return items
        while True:
            items.append(self._value(depth))
            if not self._more("]"):
                return items

    def _object(self, depth: int) -> Any:
        self._enter(depth)
        members: dict[Any, Any] = {}
        if self._next() == "}":
            self._position += 1
            return members
        while True:
            key = self._key(depth)
            if self._next() != ":":
                raise self._error("':'")
            self._position += 1
            members[key] = self._value(depth)
            if not self._more("}"):
                break
        path = members.get("$ref")
        if len(members) == 1 and isinstance(path, str):
            self._references = True
            return _Reference(path)
        return members

    def _enter(self, depth: int) -> None:
        if depth > MAX_JSON_DEPTH:
            raise DialectError(f"nested deeper than {MAX_JSON_DEPTH} levels at character {self._position}")
        self._position += 1

    def _more(self, close: str) -> bool:
        """Step over a comma (more follows) or over the closing bracket."""
        found = self._next()
        if found != "," and (found != close or not found):
            raise self._error(f"',' or '{close}'")
        self._position += 1
        return found == ","

    def _key(self, depth: int) -> Any:
        start = self._next()
        if start == '"':
            return self._string()
        if start == "{":
            key = self._object(depth + 1)
            return key if isinstance(key, _Reference) else ObjectKey.of(key)
        return str(self._number())


class _Resolver:
    """Replaces references by copies of what they point to, so that the result is a plain tree."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._added = 0

    def resolved(self) -> Any:
        return self._copy(self._root, 0, added=False)

    def _copy(self, value: Any, depth: int, added: bool) -> Any:
        self._added += added
        if depth > MAX_JSON_DEPTH or self._added > MAX_JSON_REFERENCED:
            raise DialectError("references make the body endless or too large")
        if isinstance(value, _Reference):
            target = self._find(value.path, depth)
            return target.members() if isinstance(target, ObjectKey) else self._copy(target, depth + 1, True)
        if isinstance(value, list):
            return [self._copy(item, depth + 1, added) for item in value]
        if isinstance(value, dict):
            return {self._key(key, depth): self._copy(item, depth + 1, added) for key, item in value.items()}
        return value

    def _key(self, key: Any, depth: int) -> Any:
        if not isinstance(key, _Reference):
            return key
        target = self._find(key.path, depth)
        if isinstance(target, dict):
            return ObjectKey.of(target)
        if isinstance(target, str | ObjectKey):
            return target
        raise DialectError(f"reference {key.path!r} is used as a key but is not an object")

    def _find(self, path: str, depth: int) -> Any:
        if depth > MAX_JSON_DEPTH:
            raise DialectError(f"reference {path!r} goes round in circles")
        value = self._root
        for segment in _segments(path):
            if isinstance(value, _Reference):
                value = self._find(value.path, depth + 1)
            if isinstance(value, list) and isinstance(segment, int) and segment < len(value):
                value = value[segment]
            elif isinstance(value, dict) and str(segment) in value:
                value = value[str(segment)]
            elif isinstance(value, dict) and segment == "null":
                value = next((key for key in value if isinstance(key, ObjectKey)), None)
            else:
                value = None
            if value is None:
                raise DialectError(f"reference {path!r} points nowhere")
        return value


_SEGMENT: Final = re.compile(r"\.((?:[^.\[\\]|\\.)+)|\[([0-9]{1,9})\]", re.DOTALL)


def _segments(path: str) -> Iterable[str | int]:
    if not path.startswith("$"):
        raise DialectError(f"reference {path!r} is of a kind that bodies do not use")
    position = 1
    while position < len(path):
        match = _SEGMENT.match(path, position)
        if not match:
            raise DialectError(f"reference {path!r} cannot be read")
        name, index = match.groups()
        yield int(index) if name is None else re.sub(r"\\(.)", r"\1", name)
        position = match.end()


# ---- writing -------------------------------------------------------------------------------------------


def dumps(value: Any, *, int_keys_bare: bool = True, ascii_only: bool = False) -> bytes:
    """Write a body: compact, keys sorted, members that are None left out.

    Values may be Structs, mappings, sequences, sets and plain values; queues become objects, bytes base64.
    With `int_keys_bare=False` and `ascii_only=True` the result is what peers call standard JSON.
    """
    writer = _Writer(int_keys_bare, _quote_ascii if ascii_only else _quote)
    writer.write(value)
    return b"".join(writer.parts)


_quote: Final = msgspec.json.Encoder().encode
_NON_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def _quote_ascii(text: str) -> bytes:
    quoted = _quote(text).decode().replace("/", "\\/")
    return _NON_ASCII.sub(_utf16_escape, quoted).encode()


def _utf16_escape(match: re.Match[str]) -> str:
    """Upper-case escapes, which json.dumps does not write."""
    units = match.group().encode("utf-16-be").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


class _Writer:
    def __init__(self, int_keys_bare: bool, quote: Callable[[str], bytes]) -> None:
        self.parts: list[bytes] = []
        self._int_keys_bare = int_keys_bare
        self._quote = quote

    def write(self, value: Any) -> None:
        if isinstance(value, str):
            self.parts.append(self._quote(value))
        elif value is None:
            self.parts.append(b"null")
        elif isinstance(value, bool):
            self.parts.append(b"true" if value else b"false")
        elif isinstance(value, int):
            self.parts.append(b"%d" % value)
        elif isinstance(value, float):
            self.parts.append(_float_text(value))
        elif isinstance(value, msgspec.Struct):
            self._members((name, getattr(value, attribute)) for attribute, name in _plan(type(value)))
        elif isinstance(value, MessageQueue | ObjectKey):
            self._members(_key_members(value))
        elif isinstance(value, Mapping):
            self._map(value)
        elif isinstance(value, bytes):
            self.parts.append(b'"%b"' % base64.b64encode(value))
        elif isinstance(value, Iterable):
            self._array(value)
        else:
            raise TypeError(f"{type(value).__name__} has no form in a body")

    def _members(self, members: Iterable[tuple[str, Any]]) -> None:
        parts = self.parts
        separator = b"{"
        for name, value in members:
            if value is not None:
                parts += (separator, self._quote(name), b":")
                self.write(value)
                separator = b","
        parts.append(b"{}" if separator == b"{" else b"}")

    def _map(self, value: Mapping[Any, Any]) -> None:
        parts = self.parts
        separator = b"{"
        for key in _sorted_keys(value):
            item = value[key]
            if item is None:
                continue
            parts.append(separator)
            if isinstance(key, str):
                parts.append(self._quote(key))
            elif isinstance(key, int):
                parts.append(b"%d" % key if self._int_keys_bare else b'"%d"' % key)
            else:
                self._members(_key_members(key))
            parts.append(b":")
            self.write(item)
            separator = b","
        parts.append(b"{}" if separator == b"{" else b"}")

    def _array(self, value: Iterable[Any]) -> None:
        separator = b"["
        for item in value:
            self.parts.append(separator)
            self.write(item)
            separator = b","
        self.parts.append(b"[]" if separator == b"[" else b"]")


def _sorted_keys(value: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(value)
    except TypeError:  # keys of several kinds
        return sorted(value, key=str)


def _key_members(key: MessageQueue | ObjectKey) -> Iterable[tuple[str, Any]]:
    if isinstance(key, MessageQueue):
        return (("brokerName", key.broker_name), ("queueId", key.queue_id), ("topic", key.topic))
    return key


@cache
def _plan(struct_type: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Attributes of a Struct in the order of their wire names."""
    fields = msgspec.structs.fields(struct_type)
    return sorted(((field.name, field.encode_name) for field in fields), key=lambda pair: pair[1])


def _float_text(value: float) -> bytes:
    """As Java prints a double: always with a fraction, with an exponent outside 0.001 to 10,000,000."""
    if not math.isfinite(value):
        return b"null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return b"%b" % repr(value).encode()
    mantissa, _, exponent = f"{value!r}".partition("e")
    digits = mantissa.lstrip("-").replace(".", "")
    point = len(mantissa.lstrip("-").partition(".")[0]) + int(exponent or 0)
    leading = len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - leading - 1}".encode()
