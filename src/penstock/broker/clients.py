"""Who is connected: producers and consumers by group, as their heartbeats say.

A client is known by its connection. When the members of a consumer group change, every member is told at
once (NOTIFY_CONSUMER_IDS_CHANGED), so that queues are shared out anew without waiting for a timer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock import limits
from penstock.wire.bodies import ConsumerData, SubscriptionData
from penstock.wire.peer import Peer

BROADCASTING = "BROADCASTING"


@dataclass(slots=True, eq=False)
class Client:
    """One connection's membership in one group."""

    peer: Peer
    client_id: str
    language: str
    version: int
    last_update_ms: int

    @property
    def address(self) -> str:
        return f"{self.peer.remote[0]}:{self.peer.remote[1]}"


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """A consumer group with at least one live member."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[Peer, Client] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    fingerprint: int = 0

    @property
    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.members.values()]

    @property
    def broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    def find_client(self, client_id: str) -> Client | None:
        return next((client for client in self.members.values() if client.client_id == client_id), None)


class Clients:
    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Peer, Client]] = {}
        self._groups_of: dict[Peer, set[tuple[bool, str]]] = {}
        """Per connection: (is consumer, group). What must be undone when it closes."""
        self._remembered: OrderedDict[tuple[str, str], tuple[int, SubscriptionData]] = OrderedDict()

    # ---- asking ---------------------------------------------------------------------------------

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        return self.consumers.get(group)

    def find_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Of a live group; else what a group without heartbeat sent with its pulls in the last minutes."""
        live = self.consumers.get(group)
        found = live.subscriptions.get(topic) if live is not None else None
        if found is None:
            remembered = self._remembered.get((group, topic))
            found = remembered[1] if remembered is not None else None
        return found

    def groups_subscribing(self, topic: str) -> list[str]:
        return sorted(name for name, group in self.consumers.items() if topic in group.subscriptions)

    def find_producer(self, client_id: str) -> Client | None:
        """Any live producer connection of that client."""
        for members in self.producers.values():
            for client in members.values():
                if client.client_id == client_id:
                    return client
        return None

    def is_member(self, group: str, peer: Peer) -> bool:
        live = self.consumers.get(group)
        return live is not None and peer in live.members

    # ---- heartbeats -----------------------------------------------------------------------------

    def register_producer(self, group: str, client: Client) -> None:
        if self._note_membership(client.peer, False, group):
            self.producers.setdefault(group, {})[client.peer] = client

    def register_consumer(
        self, data: ConsumerData, client: Client, *, fingerprint: int, keep_subscriptions: bool
    ) -> tuple[ConsumerGroup, bool, bool] | None:
        """(group, members or topics changed, fingerprint changed); None if it is one group too many.

        The latest heartbeat of any member sets the subscriptions of the whole group.
        """
        name = data.group_name
        if not self._note_membership(client.peer, True, name):
            return None
        group = self.consumers.get(name)
        if group is None:
            group = self.consumers[name] = ConsumerGroup(
                name, data.consume_type, data.message_model, data.consume_from_where
            )
        known = group.members.get(client.peer)
        changed = known is None or known.client_id != client.client_id
        group.members[client.peer] = client
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        fingerprint_changed = group.fingerprint != fingerprint
        group.fingerprint = fingerprint
        if not keep_subscriptions:
            changed = self._subscribe(group, data.subscription_data_set) or changed
        return group, changed, fingerprint_changed

    @staticmethod
    def _subscribe(group: ConsumerGroup, wanted: Iterable[SubscriptionData]) -> bool:
        """A newer version replaces the expression quietly; a new or missing topic is a change."""
        changed = False
        topics = set()
        for subscription in wanted:
            topics.add(subscription.topic)
            known = group.subscriptions.get(subscription.topic)
            if known is None:
                changed = True
            if known is None or subscription.sub_version > known.sub_version:
                group.subscriptions[subscription.topic] = subscription
        for topic in [topic for topic in group.subscriptions if topic not in topics]:
            del group.subscriptions[topic]
            changed = True
        return changed

    def _note_membership(self, peer: Peer, is_consumer: bool, group: str) -> bool:
        groups = self._groups_of.setdefault(peer, set())
        if (is_consumer, group) not in groups:
            if len(groups) >= limits.GROUPS_PER_CONNECTION:
                return False
            groups.add((is_consumer, group))
        return True

    def remember_subscription(self, group: str, subscription: SubscriptionData, now_ms: int) -> None:
        """What a pull carried, for groups that send no heartbeat (the tools ask for it)."""
        if group in self.consumers:
            return
        key = (group, subscription.topic)
        self._remembered[key] = (now_ms, subscription)
        self._remembered.move_to_end(key)
        if len(self._remembered) > limits.REMEMBERED_SUBSCRIPTIONS:
            self._remembered.popitem(last=False)

    # ---- leaving --------------------------------------------------------------------------------

    def unregister_producer(self, group: str, peer: Peer) -> None:
        members = self.producers.get(group)
        if members is not None and members.pop(peer, None) is not None and not members:
            del self.producers[group]
        self._forget_membership(peer, False, group)

    def unregister_consumer(self, group: str, peer: Peer) -> ConsumerGroup | None:
        """The group if it lost this member and others are left to be told."""
        self._forget_membership(peer, True, group)
        live = self.consumers.get(group)
        if live is None or live.members.pop(peer, None) is None:
            return None
        if not live.members:
            del self.consumers[group]
            return None
        return live

    def _forget_membership(self, peer: Peer, is_consumer: bool, group: str) -> None:
        groups = self._groups_of.get(peer)
        if groups is not None:
            groups.discard((is_consumer, group))
            if not groups:
                del self._groups_of[peer]

    def disconnected(self, peer: Peer) -> list[ConsumerGroup]:
        """Consumer groups that lost a member and have others to be told."""
        shrunk = []
        for is_consumer, group in list(self._groups_of.get(peer, ())):
            if is_consumer:
                rest = self.unregister_consumer(group, peer)
                if rest is not None:
                    shrunk.append(rest)
            else:
                self.unregister_producer(group, peer)
        return shrunk

    def expired(self, silent_since_ms: int) -> list[Peer]:
        """Connections with a group whose heartbeats stopped before that time."""
        late: dict[Peer, None] = {}
        for members in [*(group.members for group in self.consumers.values()), *self.producers.values()]:
            for peer, client in members.items():
                if client.last_update_ms < silent_since_ms:
                    late[peer] = None
        return list(late)

    def forget_old_subscriptions(self, before_ms: int) -> None:
        while self._remembered:
            key, (noted_ms, _) = next(iter(self._remembered.items()))
            if noted_ms >= before_ms:
                return
            del self._remembered[key]
