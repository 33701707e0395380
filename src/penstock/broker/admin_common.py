"""What the administration requests share: refusals, paging, names of queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from penstock.broker.replies import Refusal
from penstock.broker.settings import BrokerSettings
from penstock.errors import IllegalName, InvalidArgument
from penstock.message.names import check_group, check_topic
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import DataVersion
from penstock.wire.codes import ResponseCode
from penstock.wire.dialect import DialectError

V = TypeVar("V")


def refuse_bad_topic(name: str) -> None:
    _refuse_bad_name(check_topic, name)


def refuse_bad_group(name: str) -> None:
    _refuse_bad_name(check_group, name)


def _refuse_bad_name(check: Callable[[str], None], name: str) -> None:
    try:
        check(name)
    except IllegalName as error:
        raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None


def as_refusal(error: InvalidArgument, code: ResponseCode = ResponseCode.SYSTEM_ERROR) -> Refusal:
    return Refusal(code, str(error))


def unknown_topic(remark: str) -> Refusal:
    return Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)


def broker_address(settings: BrokerSettings) -> str:
    host = settings.broker_ip1
    return f"[{host}]:{settings.listen_port}" if ":" in host else f"{host}:{settings.listen_port}"


def queue_of(settings: BrokerSettings, topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, settings.broker_name, queue_id)


def page(
    settings: BrokerSettings,
    table: Mapping[str, V],
    version: DataVersion,
    first: int | None,
    known_version: str | None,
    at_most: int | None,
) -> dict[str, V]:
    """The part of a table that was asked for; everything if the request names no part.

    Entries are in the order of their names. A reader that has seen another version starts anew.
    """
    if not settings.enable_split_metadata or (first is None and known_version is None and at_most is None):
        return dict(table)
    start = max(0, first or 0) if _is_version(known_version, version) else 0
    size = min(settings.split_metadata_size, at_most if at_most is not None and at_most > 0 else 1 << 31)
    return {name: table[name] for name in sorted(table)[start : start + size]}


def _is_version(text: str | None, version: DataVersion) -> bool:
    try:
        return text is not None and DataVersion.decode(text.encode()) == version
    except DialectError:
        return False
