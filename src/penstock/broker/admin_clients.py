"""Who is connected, what they subscribe to, and how far they say they are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.clients import Client
from penstock.broker.replies import Refusal
from penstock.wire.bodies import (
    Connection,
    ConsumerConnection,
    GetConsumerStatusBody,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.dialect import DialectError
from penstock.wire.headers import (
    GetConsumerConnectionListHeader,
    GetConsumerStatusFromClientHeader,
    GetProducerConnectionListHeader,
    InvokeBrokerToGetConsumerStatusHeader,
    QuerySubscriptionByConsumerHeader,
)
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

STATUS_MS = 5_000
OLDEST_STATUS_VERSION = 28
"""Clients before 3.0.7 can neither tell their status nor be reset."""


class ClientAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
        }

    def consumers(self, peer: Peer, command: Command, now_ms: int) -> None:
        name = command.header(GetConsumerConnectionListHeader).consumer_group
        group = self._broker.clients.consumer_group(name)
        if group is None:
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connection_set=_connections(group.members.values()),
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        self._broker.reply(peer, command, body=body.encode())

    def producers(self, peer: Peer, command: Command, now_ms: int) -> None:
        name = command.header(GetProducerConnectionListHeader).producer_group
        members = self._broker.clients.producers.get(name)
        if members is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = ProducerConnection(_connections(members.values()))
        self._broker.reply(peer, command, body=body.encode())

    def all_producers(self, peer: Peer, command: Command, now_ms: int) -> None:
        body = ProducerTableInfo(
            {
                group: [
                    ProducerInfo(
                        client_id=client.client_id,
                        remote_ip=f"/{client.address}",
                        language=client.language,
                        version=client.version,
                        last_update_timestamp=client.last_update_ms,
                    )
                    for client in members.values()
                ]
                for group, members in self._broker.clients.producers.items()
            }
        )
        self._broker.reply(peer, command, body=body.encode())

    def subscription(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(QuerySubscriptionByConsumerHeader)
        found = self._broker.clients.find_subscription(header.group, header.topic or "")
        body = QuerySubscriptionResponseBody(header.group, header.topic, found)
        self._broker.reply(peer, command, body=body.encode())

    def consumer_status(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Every client of the group is asked for its offsets; those that do not answer are left out."""
        header = command.header(InvokeBrokerToGetConsumerStatusHeader)
        group = self._broker.clients.consumer_group(header.group)
        if group is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        asked = [
            client
            for client in group.members.values()
            if client.version >= OLDEST_STATUS_VERSION and header.client_addr in (None, "", client.client_id)
        ]
        collected = GetConsumerStatusBody()
        waiting = len(asked)

        def finish() -> None:
            self._broker.reply(peer, command, body=collected.encode())

        def take(client: Client, response: Command | None) -> None:
            nonlocal waiting
            waiting -= 1
            if response is not None and response.code == ResponseCode.SUCCESS:
                try:
                    answer = GetConsumerStatusBody.decode(response.body)
                    collected.consumer_table[client.client_id] = answer.message_queue_table
                except DialectError:
                    pass  # a client that answers nonsense counts as one that does not answer
            if waiting == 0:
                finish()

        question = GetConsumerStatusFromClientHeader(header.topic, header.group)
        for client in asked:
            self._broker.relays.ask(
                client.peer,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                question,
                b"",
                partial(take, client),
                now_ms,
                timeout_ms=STATUS_MS,
            )
        if not asked:
            finish()


def _connections(clients: Iterable[Client]) -> list[Connection]:
    return [
        Connection(client.client_id, client.address, client.language, client.version) for client in clients
    ]
