"""A look into queue files, cleaning them, and the state of replication."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import limits
from penstock.broker.filters import PullFilter, registered_filter
from penstock.broker.sql92 import SqlError
from penstock.errors import CorruptRecord
from penstock.message.record import RecordView
from penstock.wire.bodies import ConsumeQueueData, HARuntimeInfo, QueryConsumeQueueResponseBody
from penstock.wire.codes import RequestCode
from penstock.wire.command import Command
from penstock.wire.headers import QueryConsumeQueueHeader
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

Evaluate = Callable[[int, int], bool]
"""(physical offset, tag code) → whether the group's subscription wants the message."""


class QueueAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.handlers: dict[int, Handler] = {
            RequestCode.QUERY_CONSUME_QUEUE: self.entries,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
            RequestCode.GET_BROKER_HA_STATUS: self.replication,
        }

    def entries(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Queue entries as they are stored, and whether a group would be given their messages."""
        header = command.header(QueryConsumeQueueHeader)
        broker, topic, queue_id = self._broker, header.topic, header.queue_id
        oldest, newest = broker.store.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)
        body = QueryConsumeQueueResponseBody(max_queue_index=newest, min_queue_index=oldest)
        evaluate: Evaluate = _nobody
        if header.consumer_group:
            evaluate = self._subscribe(body, header.consumer_group, topic)
        remark = None
        if oldest <= header.index < newest:
            count = min(header.count, newest - header.index, limits.CONSUME_QUEUE_ENTRIES_SHOWN)
            body.queue_data = [
                ConsumeQueueData(position, size, tag_code, eval=evaluate(position, tag_code))
                for position, size, tag_code in broker.store.entries(
                    topic, queue_id, header.index, max(0, count)
                )
            ]
        else:
            remark = f"Index {header.index} of {queue_id}@{topic} is not exist!"
        broker.reply(peer, command, remark=remark, body=body.encode())

    def _subscribe(self, body: QueryConsumeQueueResponseBody, group: str, topic: str) -> Evaluate:
        found = self._broker.clients.find_subscription(group, topic)
        if found is None:
            body.filter_data = f"{group}@{topic} is not online!"
            return _nobody
        body.subscription_data = found
        try:
            wanted = registered_filter(found)
        except SqlError as error:
            body.filter_data = str(error)
            return _nobody
        return lambda position, tag_code: self._is_wanted(wanted, position, tag_code)

    def _is_wanted(self, wanted: PullFilter, position: int, tag_code: int) -> bool:
        by_code, by_record = wanted
        if by_code is not None and not by_code(tag_code):
            return False
        if by_record is None:
            return True
        record = self._broker.store.read_record(position)
        try:
            return record is not None and by_record(RecordView(record))
        except CorruptRecord:
            return False

    def clean_expired(self, peer: Peer, command: Command, now_ms: int) -> None:
        self._broker.store.clean_expired_consume_queues()
        self._broker.reply(peer, command)

    def delete_expired(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Log files past their time go at the next occasion instead of at the appointed hour."""
        self._broker.store.delete_expired_files()
        self._broker.reply(peer, command)

    def replication(self, peer: Peer, command: Command, now_ms: int) -> None:
        """A master without slaves."""
        body = HARuntimeInfo(master=True, master_commit_log_max_offset=self._broker.store.max_physical_offset)
        self._broker.reply(peer, command, body=body.encode())


def _nobody(physical_offset: int, tag_code: int) -> bool:
    return False
