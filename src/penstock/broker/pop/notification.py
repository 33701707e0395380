"""NOTIFICATION: would a pop find something, now or soon? And POLLING_INFO: how many pops are waiting?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.filters import EVERYTHING, PullFilter
from penstock.broker.pop.checks import check_broker, check_filter, check_queue
from penstock.broker.pop.frontier import Frontier
from penstock.broker.pop.held_pops import ALL_QUEUES, HeldPop, HeldPops, Verdict
from penstock.broker.pop.leases import Leases
from penstock.broker.pop.orderly import OrderInfos
from penstock.broker.replies import Refusal
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import (
    NotificationHeader,
    NotificationResponseHeader,
    PollingInfoHeader,
    PollingInfoResponseHeader,
)
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

NO_ANSWER: Final = NotificationResponseHeader()


class Notifications:
    def __init__(
        self, broker: Broker, leases: Leases, orders: OrderInfos, frontier: Frontier, pops: HeldPops
    ) -> None:
        self._broker = broker
        self._leases = leases
        self._orders = orders
        self._frontier = frontier
        self._pops = pops
        self.held = HeldPops(broker.store, broker.offsets, broker.settings, self._resume)
        self.handlers: dict[int, Handler] = {
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.POLLING_INFO: self.polling_info,
        }

    def notify(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(NotificationHeader)
        if not 0 < header.born_time <= now_ms:
            header.born_time = now_ms
        self._notify(peer, command, header, now_ms)

    def _resume(self, held: HeldPop, now_ms: int) -> None:
        assert isinstance(held.header, NotificationHeader)
        try:
            self._notify(held.peer, held.command, held.header, now_ms)
        except Refusal as refusal:
            self._broker.reply(held.peer, held.command, refusal.code, refusal.remark, refusal.ext)

    def _notify(self, peer: Peer, command: Command, header: NotificationHeader, now_ms: int) -> None:
        check_broker(self._broker, NO_ANSWER)
        check_queue(self._broker, peer, header, NO_ANSWER, now_ms)
        wanted = check_filter(header.exp, header.exp_type, NO_ANSWER)
        found = self._finds(header, wanted, now_ms)
        verdict = Verdict.TIMEOUT
        if not found:
            verdict = self.held.hold(HeldPop(peer, command, header, wanted), now_ms)
        if verdict is not Verdict.HELD:
            answer = NotificationResponseHeader(found, verdict is Verdict.FULL)
            self._broker.reply(peer, command, ext=answer)

    def _finds(self, header: NotificationHeader, wanted: PullFilter, now_ms: int) -> bool:
        topic, group, frontier = header.topic, header.consumer_group, self._frontier
        time_ms = self._leases.clock(now_ms)
        for queue_id in frontier.visit(topic, header.queue_id, 0):
            blocked = header.order and self._orders.is_blocked(
                group, topic, queue_id, header.attempt_id, time_ms
            )
            if not blocked and self._has(group, topic, queue_id, wanted):
                return True
        return not header.order and any(
            self._has(group, name, queue_id, wanted)
            for name in frontier.retry_topics(topic, group)
            for queue_id in frontier.visit(name, ALL_QUEUES, 0)
        )

    def _has(self, group: str, topic: str, queue_id: int, wanted: PullFilter) -> bool:
        """Where a filter has not seen everything yet the answer is yes: the pop will take it further."""
        store = self._broker.store
        start = self._frontier.look(group, topic, queue_id)
        newest = store.max_offset(topic, queue_id)
        if newest <= start or wanted == EVERYTHING:
            return newest > start
        result = store.get(topic, queue_id, start, 1, wanted.by_code, wanted.by_record)
        return result.count > 0 or result.next_offset < newest

    def polling_info(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(PollingInfoHeader)
        topic = header.topic
        if self._broker.topics.get(topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! ")
        waiting = self._pops.waiting(topic, header.consumer_group, header.queue_id)
        self._broker.reply(peer, command, ext=PollingInfoResponseHeader(waiting))
