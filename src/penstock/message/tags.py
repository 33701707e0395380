"""Tags: the code kept in queue entries, and subscriptions to them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from penstock.errors import InvalidArgument
from penstock.message.hashing import java_hash

ALL: Final = "*"
_OR: Final = "||"


@lru_cache(4096)
def tag_code(tag: str | None) -> int:
    """The code of a tag in a queue entry; 0 where there is none."""
    return java_hash(tag) if tag else 0


@dataclass(frozen=True, slots=True)
class Subscription:
    """Tags wanted of a topic; no tags means all messages.

    Brokers compare codes, which may collide, so a client compares the tags themselves again.
    """

    topic: str
    expression: str
    tags: frozenset[str]
    codes: frozenset[int]

    def matches_code(self, code: int) -> bool:
        return not self.codes or code in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        return not self.tags or tag in self.tags


def parse_subscription(topic: str, expression: str | None) -> Subscription:
    """A subscription from `tag1 || tag2`; nothing or `*` means all."""
    if not expression or expression == ALL:
        return Subscription(topic, ALL, frozenset(), frozenset())
    tags = frozenset(tag.strip() for tag in expression.split(_OR)) - {""}
    if not tags:
        raise InvalidArgument(f"no tag in the subscription expression {expression!r}")
    return Subscription(topic, expression, tags, frozenset(map(tag_code, tags)))
