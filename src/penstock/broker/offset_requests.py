"""QUERY_CONSUMER_OFFSET and UPDATE_CONSUMER_OFFSET."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.replies import Refusal
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import (
    QueryConsumerOffsetHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetHeader,
)
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler


class OffsetRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.handlers: dict[int, Handler] = {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
        }

    def query(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Neither group nor topic is checked. A missing offset counts as 0 only if the queue still starts
        there with a message: then nothing was lost yet, and a new group may begin at the beginning."""
        header = command.header(QueryConsumerOffsetHeader)
        offset = self._broker.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False:
                raise _not_found("Not found, do not set to zero, maybe this group boot first")
            store = self._broker.store
            if (
                store.min_offset(header.topic, header.queue_id) > 0
                or store.max_offset(header.topic, header.queue_id) <= 0
            ):
                raise _not_found("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
            offset = 0
        self._broker.reply(peer, command, ext=QueryConsumerOffsetResponseHeader(offset))

    def update(self, peer: Peer, command: Command, now_ms: int) -> None:
        """No value is checked: a group may be moved anywhere. Answered when the commit is durable."""
        header = command.header(UpdateConsumerOffsetHeader)
        broker = self._broker
        if broker.groups.get(header.consumer_group) is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!", {}
            )
        if broker.topics.get(header.topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!", {})
        broker.check_backlog()
        position = broker.offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset, now_ms
        )
        if position is None:
            raise Refusal(ResponseCode.SYSTEM_BUSY, "no room for another consumer offset", {})
        broker.reply(peer, command, ext={}, position=position)


def _not_found(remark: str) -> Refusal:
    return Refusal(ResponseCode.QUERY_NOT_FOUND, remark, {})
