"""PEEK_MESSAGE: what a pop would find, without taking it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.broker.pop.checks import check_broker, check_queue
from penstock.broker.pop.frontier import Frontier
from penstock.broker.pop.held_pops import ALL_QUEUES
from penstock.message.record import Buffer
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import ONEWAY_FLAG, Command, encode_response_head
from penstock.wire.headers import PeekMessageHeader, PopResponseHeader
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

NO_ANSWER: Final = PopResponseHeader(0, 0, 0, 0)
RETRY_FIRST_ONE_IN: Final = 5


class Peeks:
    def __init__(self, broker: Broker, frontier: Frontier) -> None:
        self._broker = broker
        self._frontier = frontier
        self.handlers: dict[int, Handler] = {RequestCode.PEEK_MESSAGE: self.peek}

    def peek(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(PeekMessageHeader)
        broker, frontier = self._broker, self._frontier
        check_broker(broker, NO_ANSWER)
        check_queue(broker, peer, header, NO_ANSWER, now_ms)
        topic, group = header.topic, header.consumer_group
        turn = broker.random.randrange(100)
        queues = [(topic, queue_id) for queue_id in frontier.visit(topic, header.queue_id, turn)]
        retries = [
            (name, queue_id)
            for name in frontier.retry_topics(topic, group)
            for queue_id in frontier.visit(name, ALL_QUEUES, turn)
        ]
        parts: list[Buffer] = []
        count = size = rest = 0
        for name, queue_id in retries + queues if turn % RETRY_FIRST_ONE_IN == 0 else queues + retries:
            start = frontier.look(group, name, queue_id)
            rest += max(0, broker.store.max_offset(name, queue_id) - start)
            if count < header.max_msg_nums and size < limits.POP_MAX_BYTES:
                most = min(header.max_msg_nums - count, limits.PULL_MAX_MESSAGES)
                result = broker.store.get(name, queue_id, start, most)
                parts += result.parts
                count += result.count
                size += result.bytes
        answer = PopResponseHeader(0, 0, 0, rest)
        if not count:
            broker.reply(peer, command, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", answer)
        elif not command.flag & ONEWAY_FLAG:
            head = encode_response_head(command, ResponseCode.SUCCESS, "FOUND", answer, size)
            peer.send(head, *parts)
