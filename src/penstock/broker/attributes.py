"""Attributes of topics and groups: named values that requests add (`+key=value`) or remove (`-key`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penstock.errors import InvalidArgument

MESSAGE_TYPE: Final = "message.type"


class Attribute(NamedTuple):
    check: Callable[[str], str | None]
    """What is wrong with a value, or None."""
    changeable: bool = True


def _one_of(*values: str) -> Callable[[str], str | None]:
    return lambda text: None if text in values else f"expected one of {', '.join(values)}"


def _number(low: int, high: int) -> Callable[[str], str | None]:
    def check(text: str) -> str | None:
        digits = text.removeprefix("-")
        if len(digits) < 20 and digits.isascii() and digits.isdecimal() and low <= int(text) <= high:
            return None
        return f"expected a number from {low} to {high}"

    return check


_LONG_MAX: Final = (1 << 63) - 1

TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    # this broker keeps plain queues and deletes by age; what it would not do, it does not promise
    "queue.type": Attribute(_one_of("SimpleCQ"), changeable=False),
    "cleanup.policy": Attribute(_one_of("DELETE"), changeable=False),
    MESSAGE_TYPE: Attribute(_one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")),
    "reserve.time": Attribute(_number(-1, _LONG_MAX)),
}

GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {"priority.factor": Attribute(_number(0, 100))}


def parse(text: str | None) -> dict[str, str]:
    """`+a=1,-b` as {"+a": "1", "-b": ""}; raises InvalidArgument."""
    changes: dict[str, str] = {}
    for piece in (text or "").split(","):
        piece = piece.strip()
        if not piece:
            continue
        key, equals, value = (part.strip() for part in piece.partition("="))
        if key in changes:
            raise InvalidArgument(f"key duplication: {key}")
        if key.startswith("-") and equals:
            raise InvalidArgument(f"delete attribute format is wrong: {piece}")
        if not key.startswith("-") and not (key.startswith("+") and value):
            raise InvalidArgument(f"add/alter attribute format is wrong: {key}")
        changes[key] = value
    return changes


def merge(
    known: Mapping[str, Attribute],
    kind: str,
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
) -> dict[str, str]:
    """`current` with the signed changes made; None when the topic or group is new. Raises InvalidArgument."""
    merged = dict(current or {})
    touched: set[str] = set()
    for signed, value in changes.items():
        key = signed[1:]
        if not signed.startswith(("+", "-")):
            raise InvalidArgument(f"add/alter attribute format is wrong: {signed}")
        if key in touched:
            raise InvalidArgument(f"alter duplication key. key: {key}")
        touched.add(key)
        attribute = known.get(key)
        if attribute is None:
            raise InvalidArgument(f"unsupported key: {key}")
        if signed.startswith("-"):
            if current is None:
                raise InvalidArgument(f"only add attribute is supported while creating {kind}. key: {key}")
            if key not in current:
                raise InvalidArgument(f"attempt to delete a nonexistent key: {key}")
        if current is not None and not attribute.changeable and current.get(key) != value:
            raise InvalidArgument(f"attempt to update an unchangeable attribute. key: {key}")
        if signed.startswith("-"):
            del merged[key]
            continue
        wrong = attribute.check(value)
        if wrong is not None:
            raise InvalidArgument(f"{key}={value}: {wrong}")
        merged[key] = value
    return merged
