"""Which messages a subscription wants: by the tag code in the queue entry, or by SQL92 on the properties."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker import sql92
from penstock.broker.replies import Refusal
from penstock.errors import CorruptRecord
from penstock.message.record import RecordView
from penstock.message.tags import ALL, parse_subscription
from penstock.wire.bodies import SubscriptionData
from penstock.wire.codes import ResponseCode

if TYPE_CHECKING:
    from penstock.store.results import ArrivedMessage
    from penstock.store.store import Store

TAG = "TAG"
SQL92 = "SQL92"


class PullFilter(NamedTuple):
    by_code: Callable[[int], bool] | None = None
    """On the tag code of a queue entry; None passes everything."""
    by_record: Callable[[RecordView], bool] | None = None
    """On the stored record; None passes everything."""


EVERYTHING = PullFilter()


def wants(wanted: PullFilter, message: ArrivedMessage, store: Store) -> bool:
    """Whether a message that has just arrived is one for whoever waits with this filter.

    One that is damaged counts: who reads it finds out.
    """
    by_code, by_record = wanted
    if by_code is not None and not by_code(message.tag_code):
        return False
    if by_record is None:
        return True
    record = store.read_record(message.physical_offset)
    try:
        return record is None or by_record(RecordView(record))
    except CorruptRecord:
        return True


def is_tag_type(expression_type: str | None) -> bool:
    return not expression_type or expression_type == TAG


def unsupported_filter(expression_type: str | None) -> Refusal:
    return Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {expression_type}",
    )


@lru_cache(4096)
def tag_filter(expression: str | None) -> PullFilter:
    """Raises InvalidArgument for an expression with no tag in it."""
    codes = parse_subscription("", expression).codes
    return PullFilter(by_code=codes.__contains__) if codes else EVERYTHING


@lru_cache(1024)
def sql_filter(text: str) -> PullFilter:
    """Raises SqlError for a text that is no expression."""
    wanted = sql92.compile(text)
    return PullFilter(by_record=lambda record: wanted(record.properties))


def registered_filter(subscription: SubscriptionData) -> PullFilter:
    """For a subscription from a heartbeat; its codes are the client's own. Raises SqlError."""
    if not is_tag_type(subscription.expression_type):
        return sql_filter(subscription.sub_string)
    if subscription.sub_string == ALL or not subscription.code_set:
        return EVERYTHING
    return _code_filter(tuple(subscription.code_set))


@lru_cache(4096)
def _code_filter(codes: tuple[int, ...]) -> PullFilter:
    return PullFilter(by_code=frozenset(codes).__contains__)


def request_filter(expression: str | None, expression_type: str | None) -> PullFilter:
    """For a subscription that came with the pull. Raises InvalidArgument for tags that are none.

    SQL92 that does not compile, or an unknown kind of expression, passes everything: the reference does
    so, and clients check for themselves.
    """
    if is_tag_type(expression_type):
        return tag_filter(expression)
    if expression_type == SQL92 and expression is not None:
        try:
            return sql_filter(expression)
        except sql92.SqlError:
            return EVERYTHING
    return EVERYTHING


@lru_cache(4096)
def request_subscription(topic: str, expression: str | None, expression_type: str | None) -> SubscriptionData:
    """What a pull carried, in the form of a heartbeat's subscription."""
    if not is_tag_type(expression_type):
        return SubscriptionData(
            topic=topic, sub_string=expression or "", expression_type=expression_type or TAG
        )
    parsed = parse_subscription(topic, expression)
    return SubscriptionData(
        topic=topic,
        sub_string=parsed.expression,
        tags_set=sorted(parsed.tags),
        code_set=sorted(parsed.codes),
    )
