"""What the client takes out of an answer itself, before any listener sees it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar

from penstock.client.listener import FilterHook
from penstock.client.pulled import PulledMessage
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import SubscriptionData

log = logging.getLogger("penstock.client")

M = TypeVar("M", bound=PulledMessage)


def by_tag(messages: list[M], subscription: SubscriptionData) -> list[M]:
    """Those whose tag is subscribed to: the broker compares hashes of tags, which may collide."""
    if not subscription.tags_set or subscription.class_filter_mode:
        return list(messages)
    tags = frozenset(subscription.tags_set)
    return [message for message in messages if message.record.tag in tags]


def by_hooks(messages: list[M], hooks: Iterable[FilterHook], group: str, queue: MessageQueue) -> None:
    """Lets hooks take messages out of the list."""
    for hook in hooks:
        try:
            hook.filter(group, queue, messages)  # type: ignore[arg-type]  # a hook only takes out
        except Exception:
            log.exception("filter hook %r failed and is ignored", hook)
