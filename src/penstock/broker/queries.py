"""Looking messages and positions up: by key, by place, by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import limits
from penstock.broker.replies import Refusal
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import RESPONSE_FLAG, Command, encode_head
from penstock.wire.headers import (
    GetEarliestMsgStoretimeHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetHeader,
    GetMinOffsetResponseHeader,
    QueryMessageHeader,
    QueryMessageResponseHeader,
    SearchOffsetByTimestampHeader,
    SearchOffsetByTimestampResponseHeader,
    ViewMessageByIdHeader,
)
from penstock.wire.headers.base import HeaderStruct
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler


class Queries:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self.handlers: dict[int, Handler] = {
            RequestCode.QUERY_MESSAGE: self.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
        }

    def query_message(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Different keys may share a hash: the client picks what it asked for."""
        header = command.header(QueryMessageHeader)
        settings = self._broker.settings
        most = settings.default_query_max_num if header.unique_key_query else header.max_num
        records, last_ms, last_offset = self._store.query_keys(
            header.topic,
            header.key,
            min(most, settings.max_msgs_num_batch),
            header.begin_timestamp,
            header.end_timestamp,
        )
        answer = QueryMessageResponseHeader(last_ms, last_offset)
        if not records:
            remark = "can not find message, maybe time range not correct"
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, remark, answer)
        self._send_records(peer, command, _first_bytes(records), answer)

    def view_message(self, peer: Peer, command: Command, now_ms: int) -> None:
        offset = command.header(ViewMessageByIdHeader).offset
        record = self._store.read_record(offset)
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        self._send_records(peer, command, [record], None)

    def _send_records(
        self, peer: Peer, command: Command, records: list[bytes | memoryview], ext: HeaderStruct | None
    ) -> None:
        if command.is_oneway:
            return
        head = encode_head(
            ResponseCode.SUCCESS,
            command.opaque,
            flag=RESPONSE_FLAG,
            ext=ext,
            body_size=sum(map(len, records)),
            binary=command.binary,
        )
        peer.send(head, *records)

    def search_offset(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(SearchOffsetByTimestampHeader)
        offset = self._store.offset_by_time(
            header.topic, header.queue_id, header.timestamp, upper=header.is_upper
        )
        self._broker.reply(peer, command, ext=SearchOffsetByTimestampResponseHeader(offset))

    def max_offset(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(GetMaxOffsetHeader)
        offset = self._store.max_offset(header.topic, header.queue_id)
        self._broker.reply(peer, command, ext=GetMaxOffsetResponseHeader(offset))

    def min_offset(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(GetMinOffsetHeader)
        offset = self._store.min_offset(header.topic, header.queue_id)
        self._broker.reply(peer, command, ext=GetMinOffsetResponseHeader(offset))

    def earliest_time(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(GetEarliestMsgStoretimeHeader)
        timestamp = self._store.earliest_time(header.topic, header.queue_id)
        self._broker.reply(peer, command, ext=GetEarliestMsgStoretimeResponseHeader(timestamp))


def _first_bytes(records: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """As many records, at least one, as may go into one answer."""
    size = 0
    for count, record in enumerate(records):
        size += len(record)
        if size > limits.QUERY_MAX_BYTES and count:
            return records[:count]
    return records
