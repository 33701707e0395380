"""A consumer's subscriptions, and the version of each that brokers have been told."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.rebalance import wall_ms
from penstock.errors import InvalidArgument
from penstock.message.names import check_topic
from penstock.message.tags import parse_subscription
from penstock.wire.bodies import SubscriptionData

TAG = "TAG"
ALL = "*"
SQL92 = "SQL92"


def subscription_data(
    topic: str, tags: str | None, sql: str | None, *, class_filter: bool = False
) -> SubscriptionData:
    """By tags (`a || b`, everything if there are none) or by an SQL92 expression, which the broker reads."""
    check_topic(topic)
    for expression in (tags, sql):
        if expression is not None and not isinstance(expression, str):
            raise InvalidArgument(f"what is wanted of topic {topic} must be text, not {expression!r}")
    if sql is not None:
        if tags not in (None, "*"):
            raise InvalidArgument(f"subscribe to {topic} either by tags or by sql, not both")
        if not sql.strip():
            raise InvalidArgument("the sql expression is empty")
        return SubscriptionData(topic=topic, sub_string=sql, sub_version=wall_ms(), expression_type=SQL92)
    parsed = parse_subscription(topic, tags)
    return SubscriptionData(
        topic=topic,
        sub_string=parsed.expression,
        tags_set=sorted(parsed.tags),
        code_set=sorted(parsed.codes),
        sub_version=wall_ms(),
        class_filter_mode=class_filter,
    )


def everything_of(topic: str) -> SubscriptionData:
    """For topics that the protocol made: their names need not be legal for users."""
    return SubscriptionData(topic=topic, sub_string=ALL, sub_version=wall_ms())


class Subscriptions:
    """Pulls carry the version that brokers know: a newer one would be refused until it is announced."""

    def __init__(self) -> None:
        self._by_topic: dict[str, SubscriptionData] = {}
        self._announced: dict[str, int] = {}

    def put(self, data: SubscriptionData) -> None:
        self._by_topic[data.topic] = data
        self._announced[data.topic] = data.sub_version

    def discard(self, topic: str) -> None:
        self._by_topic.pop(topic, None)
        self._announced.pop(topic, None)

    def get(self, topic: str) -> SubscriptionData | None:
        return self._by_topic.get(topic)

    def topics(self) -> list[str]:
        return list(self._by_topic)

    def all(self) -> Iterable[SubscriptionData]:
        return list(self._by_topic.values())

    def bump(self, topic: str) -> None:
        """Makes a new version, to be announced with the next heartbeats."""
        data = self._by_topic.get(topic)
        if data is not None:
            data.sub_version = max(wall_ms(), data.sub_version + 1)

    def announced(self, topic: str) -> None:
        data = self._by_topic.get(topic)
        if data is not None:
            self._announced[topic] = data.sub_version

    def announced_version(self, topic: str) -> int:
        return self._announced.get(topic, 0)
