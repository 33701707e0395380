"""The tables of a name server: brokers, what they serve, and when they were last heard of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from penstock.errors import PenstockError
from penstock.wire.bodies import (
    BrokerData,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from penstock.wire.headers import RegisterBrokerHeader
from penstock.wire.peer import Peer

MASTER_ID: Final = 0
WRITE: Final = 2
READ_WRITE: Final = 6
DEFAULT_TIMEOUT_MS: Final = 120_000
UNIT: Final = 1
UNIT_SUBSCRIPTION: Final = 2


class BrokerKey(NamedTuple):
    cluster: str
    address: str


@dataclass(slots=True)
class LiveBroker:
    """One registered broker process."""

    broker_name: str
    broker_id: int
    heard_ms: int
    timeout_ms: int
    data_version: DataVersion
    peer: Peer
    ha_address: str


class MinBrokerChange(NamedTuple):
    """The lowest id of a broker name came or went; the others of that name want to know."""

    broker: BrokerData
    offline_address: str | None
    ha_address: str | None
    audience: list[Peer]


class Registered(NamedTuple):
    """What the registrant gets told, and who else must be."""

    ha_address: str | None = None
    master_address: str | None = None
    notice: MinBrokerChange | None = None


class RegistrationError(PenstockError):
    """The registration was not taken and has left no trace."""


class RouteTable:
    def __init__(self) -> None:
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live: dict[BrokerKey, LiveBroker] = {}
        self.filter_servers: dict[BrokerKey, list[str]] = {}
        self.mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}

    # ---- brokers come -------------------------------------------------------------------------------

    def register(
        self,
        header: RegisterBrokerHeader,
        body: RegisterBrokerBody,
        peer: Peer,
        now_ms: int,
        *,
        drop_missing_topics: bool = False,
    ) -> Registered:
        """Takes a broker's own account of itself. An outdated registrant for a taken id is ignored."""
        wrapper = body.topic_config_serialize_wrapper
        version = wrapper.data_version
        key = BrokerKey(header.cluster_name, header.broker_addr)
        name, broker_id, address = header.broker_name, header.broker_id, header.broker_addr
        broker = self.brokers.get(name) or BrokerData(header.cluster_name, name)
        addresses = {
            id_: held for id_, held in broker.broker_addrs.items() if held != address or id_ == broker_id
        }
        holder = addresses.get(broker_id)
        if holder is not None and holder != address:
            held = self.live.get(BrokerKey(header.cluster_name, holder))
            if held is not None and held.data_version.state_version > version.state_version:
                self.live.pop(key, None)
                self.filter_servers.pop(key, None)
                return Registered()
        if broker_id not in addresses and len(wrapper.topic_config_table) == 1:
            raise RegistrationError(f"a new broker must register more than one topic: {name} {address}")

        arrived_lower = bool(addresses) and broker_id < min(addresses)
        is_new = name not in self.brokers or not broker.broker_addrs
        addresses[broker_id] = address
        broker.broker_addrs = addresses
        broker.enable_acting_master = bool(header.enable_acting_master)
        broker.zone_name = header.zone_name
        self.brokers[name] = broker
        self.clusters.setdefault(header.cluster_name, set()).add(name)

        known = self.live.get(key)
        changed = is_new or known is None or known.data_version != version
        stands_in = (
            header.enable_acting_master is not None and broker_id != MASTER_ID and broker_id == min(addresses)
        )
        if broker_id == MASTER_ID or stands_in:
            topics = wrapper.topic_config_table
            if drop_missing_topics and not wrapper.topic_queue_mapping_info_map:
                for topic in [topic for topic in self._topics_of(name) if topic not in topics]:
                    self._drop_queues(topic, name)
            writable = not (stands_in and header.enable_acting_master)
            for config in topics.values():
                if changed or name not in self.topics.get(config.topic_name, ()):
                    self._put_queues(name, config, writable=writable)
            if changed:
                self._merge_mappings(wrapper.topic_queue_mapping_info_map)
        timeout_ms = header.heartbeat_timeout_millis
        self.live[key] = LiveBroker(
            name,
            broker_id,
            now_ms,
            DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms,
            version,
            peer,
            header.ha_server_addr,
        )
        if body.filter_server_list:
            self.filter_servers[key] = body.filter_server_list
        else:
            self.filter_servers.pop(key, None)

        notice = None
        if arrived_lower:
            notice = self._notice(broker, None, header.ha_server_addr, skip=peer)
        master = addresses.get(MASTER_ID)
        if broker_id != MASTER_ID and master is not None:
            live_master = self.live.get(BrokerKey(header.cluster_name, master))
            if live_master is not None:
                return Registered(live_master.ha_address, master, notice)
        return Registered(notice=notice)

    def _put_queues(self, broker_name: str, config: TopicConfig, *, writable: bool) -> None:
        perm = config.perm if writable else config.perm & ~WRITE
        self.topics.setdefault(config.topic_name, {})[broker_name] = QueueData(
            broker_name, config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag
        )

    def _merge_mappings(self, mappings: dict[str, TopicQueueMappingInfo]) -> None:
        for topic, info in mappings.items():
            if info.bname is not None:
                self.mappings.setdefault(topic, {})[info.bname] = info

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Stops at the first broker that is not known."""
        for queue_data in queues:
            if queue_data.broker_name not in self.brokers:
                return
            self.topics.setdefault(topic, {})[queue_data.broker_name] = queue_data

    def heard(self, key: BrokerKey, now_ms: int) -> LiveBroker | None:
        """Notes a sign of life; gives the broker if it is registered."""
        live = self.live.get(key)
        if live is not None:
            live.heard_ms = now_ms
        return live

    # ---- brokers go ---------------------------------------------------------------------------------

    def unregister(self, key: BrokerKey, broker_name: str, broker_id: int) -> MinBrokerChange | None:
        self.live.pop(key, None)
        self.filter_servers.pop(key, None)
        broker = self.brokers.get(broker_name)
        if broker is None:
            return None
        went_lowest = bool(broker.broker_addrs) and broker_id == min(broker.broker_addrs)
        if broker.broker_addrs.get(broker_id) == key.address:
            del broker.broker_addrs[broker_id]
        else:
            went_lowest = False
        if not broker.broker_addrs:
            self._forget_name(broker_name, key.cluster)
            return None
        if broker.enable_acting_master:
            if MASTER_ID not in broker.broker_addrs:
                for topic in self._topics_of(broker_name):
                    self.topics[topic][broker_name].perm &= ~WRITE
            if went_lowest:
                return self._notice(broker, key.address, None, skip=None)
        return None

    def _forget_name(self, broker_name: str, cluster: str) -> None:
        del self.brokers[broker_name]
        names = self.clusters.get(cluster, set())
        names.discard(broker_name)
        if not names:
            self.clusters.pop(cluster, None)
        for topic in self._topics_of(broker_name):
            self._drop_queues(topic, broker_name)

    def expired(self, now_ms: int) -> list[BrokerKey]:
        return [key for key, live in self.live.items() if live.heard_ms + live.timeout_ms < now_ms]

    def of_peer(self, peer: Peer) -> list[BrokerKey]:
        return [key for key, live in self.live.items() if live.peer is peer]

    def _notice(
        self, broker: BrokerData, offline_address: str | None, ha_address: str | None, *, skip: Peer | None
    ) -> MinBrokerChange:
        audience = [
            live.peer
            for live in self.live.values()
            if live.broker_name == broker.broker_name and live.peer is not skip
        ]
        return MinBrokerChange(broker, offline_address, ha_address, audience)

    # ---- topics -------------------------------------------------------------------------------------

    def _topics_of(self, broker_name: str) -> list[str]:
        return [topic for topic, queues in self.topics.items() if broker_name in queues]

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self.topics.get(topic)
        if queues is not None and queues.pop(broker_name, None) is not None and not queues:
            del self.topics[topic]

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Everywhere, or only on the brokers of one cluster."""
        if cluster is None:
            self.topics.pop(topic, None)
            return
        for broker_name in self.clusters.get(cluster, ()):
            self._drop_queues(topic, broker_name)

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Switches all topics of a broker; gives their number."""
        topics = self._topics_of(broker_name)
        for topic in topics:
            queue_data = self.topics[topic][broker_name]
            queue_data.perm = READ_WRITE if writable else queue_data.perm & ~WRITE
        return len(topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self.clusters.get(cluster, set())
        return [topic for topic, queues in self.topics.items() if not names.isdisjoint(queues)]

    def topics_by_flag(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics whose first broker gives them the wanted bit of the sys flag and not the unwanted one."""
        found = []
        for topic, queues in self.topics.items():
            flag = next(iter(queues.values())).topic_sys_flag
            if flag & wanted and not flag & unwanted:
                found.append(topic)
        return found

    # ---- answers ------------------------------------------------------------------------------------

    def route(self, topic: str, *, acting_master: bool = False) -> TopicRouteData | None:
        """Who serves a topic; None if nobody known does."""
        queues = self.topics.get(topic)
        if not queues:
            return None
        names = sorted(queues)
        brokers = [self.brokers[name] for name in names if name in self.brokers]
        if not brokers:
            return None
        if acting_master:
            brokers = [_with_acting_master(broker, queues[broker.broker_name or ""]) for broker in brokers]
        filter_servers = {
            key.address: servers
            for key, servers in self.filter_servers.items()
            if self.live[key].broker_name in queues
        }
        return TopicRouteData(
            None, [queues[name] for name in names], brokers, filter_servers, self.mappings.get(topic)
        )


def _with_acting_master(broker: BrokerData, queue_data: QueueData) -> BrokerData:
    """Where the master is away, its lowest replica is shown in its place, for reading."""
    if MASTER_ID in broker.broker_addrs or not broker.enable_acting_master or queue_data.perm & WRITE:
        return broker
    addresses = dict(broker.broker_addrs)
    addresses[MASTER_ID] = addresses.pop(min(addresses))
    return msgspec.structs.replace(broker, broker_addrs=addresses)


def in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Only the brokers of a zone, and those without a master, which may be needed for reading."""
    brokers = [
        broker
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()
    ]
    names = {broker.broker_name for broker in brokers}
    addresses = {address for broker in brokers for address in broker.broker_addrs.values()}
    return TopicRouteData(
        route.order_topic_conf,
        [queues for queues in route.queue_datas if queues.broker_name in names],
        brokers,
        {address: servers for address, servers in route.filter_server_table.items() if address in addresses},
        route.topic_queue_mapping_by_broker,
    )
