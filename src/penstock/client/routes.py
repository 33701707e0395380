"""From a topic's route to queues and addresses, by the protocol's rules."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.message.queue import MessageQueue
from penstock.wire.bodies import BrokerData, TopicRouteData

MASTER_ID: Final = 0
PERM_READ: Final = 4
PERM_WRITE: Final = 2


def publish_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Queues to send to, in the order that all producers share.

    An order configuration names brokers and counts itself; otherwise only writable queues of brokers that
    have a master are listed, by broker name.
    """
    if route.order_topic_conf:
        queues = []
        for item in filter(None, route.order_topic_conf.split(";")):
            broker_name, _, count = item.partition(":")
            queues += [MessageQueue(topic, broker_name, queue_id) for queue_id in range(int(count))]
        return queues
    with_master = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    return [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERM_WRITE and data.broker_name in with_master
        for queue_id in range(data.write_queue_nums)
    ]


def subscribe_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Queues to consume, sorted; a master is not needed, replicas serve reads, too."""
    return sorted(
        {
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        }
    )


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    address: str
    is_slave: bool
    version: int = 0


@dataclass(slots=True)
class RouteTable:
    """Routes by topic and broker addresses by name, as one client instance knows them."""

    routes: dict[str, TopicRouteData] = field(default_factory=dict)
    addresses: dict[str, dict[int, str]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    """By address, from heartbeat responses."""

    def put(self, topic: str, route: TopicRouteData) -> bool:
        """Notes a route; False if it says what was known already."""
        known = self.routes.get(topic)
        if known is not None and _comparable(known) == _comparable(route):
            return False
        self.routes[topic] = route
        for broker in route.broker_datas:
            if broker.broker_name is not None:
                self.addresses[broker.broker_name] = dict(broker.broker_addrs)
        return True

    def master(self, broker_name: str) -> str | None:
        """Where to send, and everything else that only a master does."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def replica(self, broker_name: str, broker_id: int, *, only: bool = False) -> BrokerAddress | None:
        """Where to read: this replica, the next one if it is not there, else any."""
        replicas = self.addresses.get(broker_name)
        if not replicas:
            return None
        if broker_id not in replicas and broker_id != MASTER_ID:
            broker_id += 1
        if broker_id not in replicas:
            if only:
                return None
            broker_id = next(iter(replicas))
        address = replicas[broker_id]
        return BrokerAddress(address, broker_id != MASTER_ID, self.versions.get(address, 0))

    def any_of_topic(self, topic: str) -> str | None:
        """A broker that serves a topic: a random one's master, or a replica of it if it has none."""
        route = self.routes.get(topic)
        brokers = [broker for broker in route.broker_datas if broker.broker_addrs] if route else []
        if not brokers:
            return None
        return broker_address(random.choice(brokers))

    def drop_unrouted(self) -> list[str]:
        """Forgets brokers that no route names any more; their addresses."""
        named = {
            (broker.broker_name, address)
            for route in self.routes.values()
            for broker in route.broker_datas
            for address in broker.broker_addrs.values()
        }
        gone: list[str] = []
        for broker_name, replicas in list(self.addresses.items()):
            for broker_id, address in list(replicas.items()):
                if (broker_name, address) not in named:
                    del replicas[broker_id]
                    gone.append(address)
            if not replicas:
                del self.addresses[broker_name]
        still_used = set(self.all_addresses())
        gone = [address for address in gone if address not in still_used]
        for address in gone:
            self.versions.pop(address, None)
        return gone

    def all_addresses(self, *, masters_only: bool = False) -> Iterable[str]:
        for replicas in self.addresses.values():
            for broker_id, address in replicas.items():
                if broker_id == MASTER_ID or not masters_only:
                    yield address


def broker_address(broker: BrokerData) -> str:
    master = broker.broker_addrs.get(MASTER_ID)
    return master if master is not None else random.choice(list(broker.broker_addrs.values()))


def _comparable(route: TopicRouteData) -> tuple[object, ...]:
    def by_name(items: Iterable[object]) -> list[str]:
        return sorted(repr(item) for item in items)

    filters: Mapping[str, list[str]] = route.filter_server_table
    return (
        route.order_topic_conf,
        by_name(route.queue_datas),
        by_name(route.broker_datas),
        sorted((address, tuple(servers)) for address, servers in filters.items()),
    )
