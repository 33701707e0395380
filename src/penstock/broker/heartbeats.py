"""Requests by which clients come, go and find each other, and the notice that a group has changed."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from penstock.broker import sql92
from penstock.broker.clients import Client, ConsumerGroup
from penstock.broker.filters import is_tag_type, unsupported_filter
from penstock.broker.replies import Refusal
from penstock.message.names import retry_topic
from penstock.wire.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import ONEWAY_FLAG, Command, encode_command
from penstock.wire.headers import (
    GetConsumerListByGroupHeader,
    HeartBeatResponseHeader,
    NotifyConsumerIdsChangedHeader,
    UnregisterClientHeader,
)
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

SCAN_MS = 10_000


class Heartbeats:
    def __init__(self, broker: Broker, *, now_ms: int) -> None:
        self._broker = broker
        self._clients = broker.clients
        self._numbers = count()
        self._next_scan_ms = now_ms + SCAN_MS
        self.handlers: dict[int, Handler] = {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_consumers,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    def heartbeat(self, peer: Peer, command: Command, now_ms: int) -> None:
        """A fingerprint asks whether the group's subscriptions are still what they were; without one the
        answer is always that they may have changed."""
        data = HeartbeatData.decode(command.body)
        client = Client(peer, data.client_id, command.language.name, command.version, now_ms)
        changed = data.heartbeat_fingerprint == 0
        for consumer in data.consumer_data_set:
            changed = self._register_consumer(consumer, client, data, now_ms) or changed
        for producer in data.producer_data_set:
            self._clients.register_producer(producer.group_name, client)
        self._broker.reply(peer, command, ext=HeartBeatResponseHeader(subscription_changed=changed))

    def _register_consumer(
        self, consumer: ConsumerData, client: Client, heartbeat: HeartbeatData, now_ms: int
    ) -> bool:
        """Whether the fingerprint of the group has changed. A group that may not be created is ignored."""
        broker = self._broker
        config = broker.groups.find(consumer.group_name, now_ms)
        if config is None:
            return False
        if config.retry_queue_nums > 0:
            topics = (broker.topics.get(wanted.topic) for wanted in consumer.subscription_data_set)
            broker.topics.ensure(
                retry_topic(consumer.group_name),
                config.retry_queue_nums,
                now_ms,
                order=any(topic is not None and topic.order for topic in topics),
            )
        registered = self._clients.register_consumer(
            consumer,
            client,
            fingerprint=heartbeat.heartbeat_fingerprint,
            keep_subscriptions=heartbeat.without_sub,
        )
        if registered is None:
            return False
        group, members_changed, fingerprint_changed = registered
        if members_changed:
            self.notify(group)
        return fingerprint_changed

    def unregister(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(UnregisterClientHeader)
        if header.producer_group:
            self._clients.unregister_producer(header.producer_group, peer)
        if header.consumer_group:
            # Before the reply: a client that has it may close its connection.
            self._broker.pop.left(peer, header.consumer_group)
            rest = self._clients.unregister_consumer(header.consumer_group, peer)
            if rest is not None:
                self.notify(rest)
        self._broker.reply(peer, command)

    def list_consumers(self, peer: Peer, command: Command, now_ms: int) -> None:
        name = command.header(GetConsumerListByGroupHeader).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        body = GetConsumerListByGroupResponseBody(group.client_ids)
        self._broker.reply(peer, command, body=body.encode())

    def check_config(self, peer: Peer, command: Command, now_ms: int) -> None:
        """A consumer asks before it starts whether its expression will work here."""
        subscription = CheckClientRequestBody.decode(command.body).subscription_data
        if not is_tag_type(subscription.expression_type):
            if not self._broker.settings.enable_property_filter:
                raise unsupported_filter(subscription.expression_type)
            try:
                sql92.compile(subscription.sub_string)
            except sql92.SqlError as error:
                raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        self._broker.reply(peer, command)

    # ---- leaving without a word -----------------------------------------------------------------

    def disconnected(self, peer: Peer) -> None:
        for group in self._clients.disconnected(peer):
            self.notify(group)

    def tick(self, now_ms: int) -> None:
        if now_ms < self._next_scan_ms:
            return
        self._next_scan_ms = now_ms + SCAN_MS
        settings = self._broker.settings
        for peer in self._clients.expired(now_ms - settings.channel_expired_timeout):
            self.disconnected(peer)
            peer.close()
        self._clients.forget_old_subscriptions(now_ms - settings.subscription_expired_timeout)
        self._broker.locks.drop_expired(now_ms)

    def notify(self, group: ConsumerGroup) -> None:
        """Tells every member to share out the queues anew."""
        config = self._broker.groups.get(group.name)
        if (
            group.broadcasting
            or not self._broker.settings.notify_consumer_ids_changed_enable
            or (config is not None and not config.notify_consumer_ids_changed_enable)
        ):
            return
        for peer in group.members:
            frame = encode_command(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                next(self._numbers) & 0x7FFF_FFFF,
                flag=ONEWAY_FLAG,
                ext=NotifyConsumerIdsChangedHeader(group.name),
            )
            peer.send(frame)
