"""What POP_MESSAGE, NOTIFICATION and PEEK_MESSAGE check, in the protocol's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.broker import filters
from penstock.broker.filters import EVERYTHING, SQL92, PullFilter
from penstock.broker.replies import Refusal
from penstock.broker.sql92 import SqlError
from penstock.broker.topics import PERM_READ
from penstock.errors import InvalidArgument
from penstock.wire.bodies import TopicConfig
from penstock.wire.codes import ResponseCode
from penstock.wire.command import Ext
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class QueueRequest(Protocol):
    """What the headers have in common."""

    consumer_group: str
    topic: str
    queue_id: int


def check_broker(broker: Broker, no_answer: Ext) -> None:
    """`no_answer` is the response header that refusals carry."""
    settings = broker.settings
    if settings.broker_role == "SLAVE":
        raise Refusal(ResponseCode.SYSTEM_ERROR, "a slave hands out no messages by POP", no_answer)
    if not settings.broker_permission & PERM_READ:
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"the broker[{settings.broker_ip1}] pop message is forbidden",
            no_answer,
        )


def check_queue(broker: Broker, peer: Peer, header: QueueRequest, no_answer: Ext, now_ms: int) -> TopicConfig:
    """Topic, queue and group; an unknown group is created where that is allowed."""
    topic, name = header.topic, header.consumer_group
    config = broker.topics.get(topic)
    if config is None:
        raise Refusal(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! ", no_answer
        )
    if not config.perm & PERM_READ:
        raise Refusal(
            ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden", no_answer
        )
    if header.queue_id >= config.read_queue_nums:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER, bad_queue(peer, topic, header.queue_id, config), no_answer
        )
    group = broker.groups.find(name, now_ms)
    if group is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{name}] does not exist, ",
            no_answer,
        )
    if not group.consume_enable:
        raise Refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}", no_answer)
    return config


def bad_queue(peer: Peer, topic: str, queue_id: int, config: TopicConfig) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic}] "
        f"topicConfig.readQueueNums:[{config.read_queue_nums}] consumer:[/{peer.remote[0]}:{peer.remote[1]}]"
    )


def check_filter(expression: str | None, expression_type: str | None, no_answer: Ext) -> PullFilter:
    """SQL92 is served whatever enablePropertyFilter says: that switch is about pulls."""
    if not expression:
        return EVERYTHING
    try:
        if filters.is_tag_type(expression_type):
            return filters.tag_filter(expression)
        if expression_type == SQL92:
            return filters.sql_filter(expression)
        reason = f"{expression_type} is no kind of expression"
    except (InvalidArgument, SqlError) as error:
        reason = str(error)
    raise Refusal(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"parse the consumer's subscription failed: {reason}",
        no_answer,
    )
