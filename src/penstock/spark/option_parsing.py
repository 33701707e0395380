"""Reading option texts: Spark hands every option over as a string under a lower-cased name."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from penstock.errors import InvalidArgument
from penstock.message.queue import MessageQueue

T = TypeVar("T")
log = logging.getLogger("penstock.spark")

_DURATION_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class OptionError(InvalidArgument):
    """An option is missing, has a wrong value or does not go with another; the text names it."""


class Options:
    """Options by their documented names, whatever the case of the given ones, with aliases."""

    def __init__(self, given: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        self.given = {name.lower(): value for name, value in given.items()}
        for alias, name in aliases.items():
            value = self.given.pop(alias.lower(), None)
            if value is None:
                continue
            if self.given.setdefault(name.lower(), value) != value:
                raise OptionError(f"options {name} and {alias} mean the same but have different values")

    def has(self, name: str) -> bool:
        return name.lower() in self.given

    def get(self, name: str, parse: Callable[[str], T], default: T) -> T:
        text = self.given.get(name.lower())
        if text is None:
            return default
        try:
            return parse(text.strip())
        except ValueError as error:
            raise OptionError(f"option {name}={text!r}: {error}") from None

    def warn_unknown(self, known: Iterable[str], ignored_prefixes: Mapping[str, str]) -> None:
        """A misspelt option must not pass in silence; one of another source must not stop the query."""
        names = {name.lower(): name for name in known}
        for name in sorted(self.given.keys() - names.keys()):
            reason = next((why for prefix, why in ignored_prefixes.items() if name.startswith(prefix)), None)
            if reason is not None:
                log.warning("option %s is ignored: %s", name, reason)
                continue
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
            hint = f"; did you mean {names[near[0]]}?" if near else ""
            log.warning("unknown option %s is ignored%s", name, hint)


def text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


def positive(value: str) -> int:
    number = int(value) if re.fullmatch(r"\d{1,18}", value) else 0
    if number < 1:
        raise ValueError("must be a whole number above 0")
    return number


def not_negative(value: str) -> int:
    return 0 if re.fullmatch(r"0+", value) else positive(value)


def size_bytes(value: str) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", value.lower())
    if match is None or int(match[1]) < 1:
        raise ValueError("must be a size such as 4194304, 4m or 4MiB")
    return int(match[1]) * _BYTES[match[2]]


def duration_ms(value: str) -> int:
    match = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|h|d)", value.lower())
    if match is None:
        raise ValueError("must be a duration such as 500ms, 30s or 15m")
    return int(match[1]) * _DURATION_MS[match[2]]


def comma_list(value: str) -> tuple[str, ...]:
    names = tuple(piece.strip() for piece in value.split(","))
    if not all(names):
        raise ValueError("must be a comma list without empty entries")
    if len(set(names)) != len(names):
        raise ValueError("names an entry twice")
    return names


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise ValueError(f"must be one of {', '.join(choices)}")

    return parse


def queue_numbers(value: str) -> dict[MessageQueue, int]:
    """`{"topic":{"broker":{"0":23}}}` -> number for each queue."""
    numbers: dict[MessageQueue, int] = {}
    for topic, brokers in _json_object(value, "topics").items():
        for broker_name, queues in _as_object(brokers, f"brokers of topic {topic}").items():
            for queue_id, number in _as_object(queues, f"queues of {topic} on {broker_name}").items():
                if not queue_id.isdecimal() or type(number) is not int:
                    raise ValueError(f"{topic}/{broker_name}: needs queue ids with whole numbers")
                numbers[MessageQueue(topic, broker_name, int(queue_id))] = number
    return numbers


def queue_lists(value: str) -> tuple[MessageQueue, ...]:
    """`{"topic":{"broker":[0,1]}}` -> the queues named."""
    queues: set[MessageQueue] = set()
    for topic, brokers in _json_object(value, "topics").items():
        for broker_name, queue_ids in _as_object(brokers, f"brokers of topic {topic}").items():
            if not isinstance(queue_ids, list) or not all(type(i) is int and i >= 0 for i in queue_ids):
                raise ValueError(f"{topic}/{broker_name}: needs a list of queue ids")
            queues.update(MessageQueue(topic, broker_name, queue_id) for queue_id in queue_ids)
    return tuple(sorted(queues))


def _json_object(value: str, what: str) -> dict[str, object]:
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    return _as_object(parsed, what)


def _as_object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict) or not value:
        raise ValueError(f"needs a JSON object of {what}")
    return value
