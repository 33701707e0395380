"""How far a group is: what waits, what is with whom and until when, what was put off, how old it all is.

The figures of a POP group cannot be had from its offsets: those run ahead of what is acked, and what comes
back waits in another topic.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from penstock import limits
from penstock.broker.admin_common import unknown_topic
from penstock.broker.pop.frontier import Frontier
from penstock.broker.pop.leases import CHANGED, Lease, LeaseQueue, Leases
from penstock.broker.pop.orderly import OrderInfo, OrderInfos
from penstock.broker.replies import Refusal
from penstock.message.ids import unpack_host
from penstock.message.names import normal_topic, pop_retry_topic_v1, pop_retry_topic_v2
from penstock.wire.bodies import GroupLag, GroupLags, LeaseInfo, LeaseList
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import GetGroupLagHeader, ListLeasesHeader
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler
    from penstock.broker.pop.assignment import RequestModes


class Lags:
    def __init__(
        self, broker: Broker, leases: Leases, orders: OrderInfos, modes: RequestModes, frontier: Frontier
    ) -> None:
        self._broker = broker
        self._leases = leases
        self._orders = orders
        self._modes = modes
        self._frontier = frontier
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_GROUP_LAG: self.group_lag,
            RequestCode.LIST_LEASES: self.list_leases,
        }

    def _check(self, group: str | None, topic: str | None) -> None:
        if group and self._broker.groups.get(group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no group {group}")
        if topic and self._broker.topics.get(topic) is None:
            raise unknown_topic(f"there is no topic {topic}")

    # ---- lag ------------------------------------------------------------------------------------

    def group_lag(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(GetGroupLagHeader)
        self._check(header.consumer_group, header.topic)
        pairs = {(group, normal_topic(topic, group)) for topic, group in self._broker.offsets.pairs()}
        lags = [
            self.lag(group, topic, now_ms)
            for group, topic in sorted(pairs)
            if (not header.consumer_group or group == header.consumer_group)
            and (not header.topic or topic == header.topic)
            and self._broker.topics.get(topic) is not None
        ]
        self._broker.reply(peer, command, body=GroupLags(lags).encode())

    def lag(self, group: str, topic: str, now_ms: int) -> GroupLag:
        """Over all queues of a topic and of the group's retry topics for it."""
        lag = GroupLag(group, topic, self._modes.find(topic, group).mode or "PULL")
        time_ms = self._leases.clock(now_ms)
        for name in (topic, pop_retry_topic_v1(group, topic), pop_retry_topic_v2(group, topic)):
            config = self._broker.topics.get(name)
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                self._add_queue(lag, name, queue_id, time_ms)
        return lag

    def _add_queue(self, lag: GroupLag, topic: str, queue_id: int, time_ms: int) -> None:
        store, group = self._broker.store, lag.group
        start = max(self._frontier.look(group, topic, queue_id), store.min_offset(topic, queue_id))
        waiting = store.max_offset(topic, queue_id) - start
        info = self._orders.held(topic, group, queue_id, time_ms)
        if info is not None:
            waiting -= sum(offset >= start for offset in info.o)
            unacked = info.unacked()
            delayed = sum(info.o[index] in (info.ot or ()) for index in unacked)
            lag.in_flight += len(unacked) - delayed
            lag.delayed += delayed
        if waiting > 0:
            lag.ready += waiting
        if waiting > 0 or info is not None:
            self._note_age(lag, topic, queue_id, start)
        queue = self._leases.find_queue(topic, group, queue_id)
        if queue is not None and queue.leases:
            lag.in_flight += queue.in_flight - queue.delayed
            lag.delayed += queue.delayed
            self._note_age(lag, topic, queue_id, self._leases.lowest_offset(queue))

    def _note_age(self, lag: GroupLag, topic: str, queue_id: int, offset: int) -> None:
        stored_ms = self._broker.store.store_time(topic, queue_id, offset)
        if stored_ms >= 0 and (lag.oldest_timestamp is None or stored_ms < lag.oldest_timestamp):
            lag.oldest_timestamp = stored_ms

    # ---- leases ---------------------------------------------------------------------------------

    def list_leases(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(ListLeasesHeader)
        group = header.consumer_group
        self._check(group, header.topic)
        most = min(max(0, header.max_nums), limits.LEASES_LISTED)
        time_ms = self._leases.clock(now_ms)

        def concerns(topic: str, name: str) -> bool:
            return name == group and (not header.topic or normal_topic(topic, group) == header.topic)

        members = self._broker.clients.consumer_group(group)
        clients = {
            member.remote_host: client.client_id
            for member, client in (members.members.items() if members is not None else ())
        }
        found = [
            self._lease_info(queue, lease, clients.get(lease.holder))
            for queue, lease in islice(
                self._leases.in_order(lambda queue: concerns(queue.topic, queue.group)), most
            )
        ]
        total = sum(queue.in_flight for queue in self._leases.queues() if concerns(queue.topic, queue.group))
        for topic, name, queue_id in list(self._orders.table):
            info = self._orders.held(topic, name, queue_id, time_ms) if concerns(topic, name) else None
            if info is not None:
                found.append(self._order_info(topic, queue_id, info))
                total += len(info.unacked())
        found.sort(key=lambda lease: lease.visible_timestamp)
        self._broker.reply(peer, command, body=LeaseList(found[:most], total).encode())

    def _lease_info(self, queue: LeaseQueue, lease: Lease, client_id: str | None) -> LeaseInfo:
        host, port = unpack_host(lease.holder)
        topic = normal_topic(queue.topic, queue.group)
        return LeaseInfo(
            topic=topic,
            broker_name=self._broker.settings.broker_name,
            queue_id=queue.queue_id,
            offsets=list(lease.offsets()),
            retry=topic != queue.topic,
            order=False,
            delayed=bool(lease.flags & CHANGED),
            holder=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            pop_timestamp=lease.pop_ms,
            visible_timestamp=lease.visible_ms,
            client_id=client_id,
        )

    def _order_info(self, topic: str, queue_id: int, info: OrderInfo) -> LeaseInfo:
        unacked = info.unacked()
        return LeaseInfo(
            topic=topic,
            broker_name=self._broker.settings.broker_name,
            queue_id=queue_id,
            offsets=[info.o[index] for index in unacked],
            retry=False,
            order=True,
            delayed=any(info.o[index] in (info.ot or ()) for index in unacked),
            holder="",
            pop_timestamp=info.pop_ms,
            visible_timestamp=max(info.visible_ms(index) or info.pop_ms for index in unacked),
        )
