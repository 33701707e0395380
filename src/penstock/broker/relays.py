"""Questions that only a client can answer: passed on over its connection, the answer passed back."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from penstock import limits
from penstock.broker.clients import Client
from penstock.broker.replies import Refusal
from penstock.errors import InvalidArgument
from penstock.message.ids import parse_offset_id
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command, Ext, encode_command, encode_response
from penstock.wire.headers import ConsumeMessageDirectlyHeader, GetConsumerRunningInfoHeader
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

RELAY_MS = 10_000
OLDEST_VERSION = 62
"""Clients before 3.1.8 cannot answer."""

Answered = Callable[[Command | None], None]
"""Gets the client's response; None if there was none in time or the connection was lost."""


class _Question:
    __slots__ = ("answered", "deadline_ms", "done", "key")

    def __init__(self, key: tuple[Peer, int], deadline_ms: int, answered: Answered) -> None:
        self.key = key
        self.deadline_ms = deadline_ms
        self.answered = answered
        self.done = False

    def __lt__(self, other: _Question) -> bool:
        return self.deadline_ms < other.deadline_ms


class Relays:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._numbers = count(1)
        self._open: dict[tuple[Peer, int], _Question] = {}
        self._deadlines: list[_Question] = []
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    # ---- asking a client ------------------------------------------------------------------------

    def ask(
        self,
        peer: Peer,
        code: int,
        ext: Ext,
        body: bytes,
        answered: Answered,
        now_ms: int,
        *,
        timeout_ms: int = RELAY_MS,
    ) -> None:
        """Sends a request to a client; `answered` is called exactly once."""
        if len(self._open) >= limits.RELAYED_REQUESTS:
            raise Refusal(ResponseCode.SYSTEM_BUSY, "too many requests to clients are not answered yet")
        opaque = next(self._numbers) & 0x7FFF_FFFF
        question = _Question((peer, opaque), now_ms + timeout_ms, answered)
        self._open[question.key] = question
        heapq.heappush(self._deadlines, question)
        peer.send(encode_command(code, opaque, ext=ext, body=body))

    def answered(self, peer: Peer, response: Command) -> None:
        question = self._open.get((peer, response.opaque))
        if question is not None:
            self._close(question, response)

    def tick(self, now_ms: int) -> None:
        deadlines = self._deadlines
        while deadlines and (deadlines[0].done or deadlines[0].deadline_ms <= now_ms):
            question = heapq.heappop(deadlines)
            if not question.done:
                self._close(question, None)

    def disconnected(self, peer: Peer) -> None:
        for question in [question for key, question in self._open.items() if key[0] is peer]:
            self._close(question, None)

    def _close(self, question: _Question, response: Command | None) -> None:
        question.done = True
        del self._open[question.key]
        question.answered(response)

    # ---- the two relayed requests ---------------------------------------------------------------

    def running_info(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(GetConsumerRunningInfoHeader)
        client = self._client(header.consumer_group, header.client_id)
        self._relay(peer, command, client, command.ext, b"", now_ms)

    def consume_directly(self, peer: Peer, command: Command, now_ms: int) -> None:
        """The message is looked up here, so that a tool needs to know only its id."""
        header = command.header(ConsumeMessageDirectlyHeader)
        client = self._client(header.consumer_group, header.client_id)
        ext = {**command.ext, "brokerName": self._broker.settings.broker_name}
        topic = self._broker.topics.get(header.topic) if header.topic else None
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._broker.groups.get(header.consumer_group)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        try:
            offset = parse_offset_id(header.msg_id or "")[2]
        except InvalidArgument as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = self._broker.store.read_record(offset)
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no message with the id {header.msg_id}")
        self._relay(peer, command, client, ext, bytes(record), now_ms)

    def _client(self, group: str, client_id: str | None) -> Client:
        """The named member of the group, or any."""
        live = self._broker.clients.consumer_group(group)
        found = None
        if live is not None:
            found = live.find_client(client_id) if client_id else next(iter(live.members.values()))
        if found is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if found.version < OLDEST_VERSION:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{found.client_id}> is too old to answer"
            )
        return found

    def _relay(
        self, peer: Peer, command: Command, client: Client, ext: Ext, body: bytes, now_ms: int
    ) -> None:
        def answered(response: Command | None) -> None:
            if response is None:
                self._broker.reply(
                    peer,
                    command,
                    ResponseCode.CONSUME_MSG_TIMEOUT,
                    f"consumer <{client.client_id}> did not answer in time",
                )
            elif not command.is_oneway:
                ext = response.ext or None
                body = response.body or b""
                peer.send(encode_response(command, response.code, response.remark, ext, body))

        self.ask(client.peer, command.code, ext, body, answered, now_ms)
