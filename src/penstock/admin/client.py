"""The admin client: one request for each question, asked of the servers that can answer it.

Works with Apache's servers as with ours. Nothing is cached: every answer is what the servers say now.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from penstock.admin import topics
from penstock.admin.topics import TopicSettings, TopicSummary
from penstock.client.config import parse_addresses
from penstock.client.remoting import Remoting
from penstock.errors import BrokerNotFound, InvalidArgument, NoNameServer, ServerError, TopicNotFound
from penstock.message.names import is_system_topic, retry_topic
from penstock.transport.client import RpcHook
from penstock.wire.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerConnection,
    ConsumeStats,
    GroupLag,
    GroupLags,
    GroupList,
    KVTable,
    LeaseList,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigAndQueueMapping,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command, Ext
from penstock.wire.headers import (
    DeleteKvConfigHeader,
    DeleteSubscriptiongroupHeader,
    DeleteTopicInBrokerHeader,
    DeleteTopicInNamesrvHeader,
    GetAllSubscriptiongroupConfigHeader,
    GetAllTopicConfigHeader,
    GetConsumerConnectionListHeader,
    GetConsumeStatsHeader,
    GetGroupLagHeader,
    GetRouteinfoByTopicHeader,
    GetTopicConfigHeader,
    GetTopicStatsInfoHeader,
    InvokeBrokerToResetOffsetHeader,
    ListLeasesHeader,
    PutKvConfigHeader,
    QueryTopicConsumeByWhoHeader,
)
from penstock.wire.properties_text import format_properties, parse_properties

R = TypeVar("R")
T = TypeVar("T")

MASTER_ID = 0
TIMEOUT_MS = 5_000
PAGE = 2_000
"""Entries of a table asked for at once; servers give no more."""
ROUTE_WAIT_MS = 3_000
"""How long a broker may take to tell the name servers of a new topic."""
ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
CONCURRENT_REQUESTS = 64


class AdminClient:
    """Use it as an async context manager, on one loop."""

    def __init__(
        self,
        name_server: str | Sequence[str],
        *,
        timeout_ms: int = TIMEOUT_MS,
        tls: ssl.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
    ) -> None:
        """`name_server` is `host:port`, or several of them, as a list or separated by `;`."""
        self._name_servers = parse_addresses(
            name_server if isinstance(name_server, str) else ";".join(name_server)
        )
        if not self._name_servers:
            raise InvalidArgument("the address of a name server is needed, for example 127.0.0.1:9876")
        self._timeout_ms = timeout_ms
        self._tls = tls
        self._hooks = hooks

    async def __aenter__(self) -> Self:
        self._remoting = Remoting(tls=self._tls, hooks=self._hooks)
        self._remoting.set_name_servers(self._name_servers)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._remoting.close()

    # ---- asking ---------------------------------------------------------------------------------

    async def ask(
        self, address: str, code: int, header: Ext | None = None, body: bytes = b"", *, factor: int = 1
    ) -> Command:
        """The answer of one server; raises ServerError for any code but success."""
        response = await self._remoting.request(address, code, header, body, self._timeout_ms * factor)
        return _checked(response, address)

    async def ask_name_server(self, code: int, header: Ext | None = None, body: bytes = b"") -> Command:
        """The answer of whichever name server can be reached."""
        response = await self._remoting.name_server_request(code, header, body, self._timeout_ms)
        return _checked(response, "the name server")

    async def _tell_name_servers(self, code: int, header: Ext) -> None:
        """Every name server must know; those that cannot be reached are reported after trying all."""
        results = await asyncio.gather(
            *(self.ask(address, code, header) for address in self._name_servers), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if not isinstance(error, Exception):
                raise error
        if errors:
            raise NoNameServer("; ".join(str(error) for error in errors))

    # ---- clusters -------------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo.decode((await self.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """broker name → address of its master, of one cluster or of all."""
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise BrokerNotFound(f"there is no cluster {cluster}; known: {known}")
        names = info.cluster_addr_table[cluster] if cluster is not None else info.broker_addr_table
        found = {
            name: info.broker_addr_table[name].broker_addrs[MASTER_ID]
            for name in sorted(names)
            if MASTER_ID in info.broker_addr_table[name].broker_addrs
        }
        if not found:
            raise BrokerNotFound("no broker is registered" + (f" in cluster {cluster}" if cluster else ""))
        return found

    async def runtime_info(self, address: str) -> dict[str, str]:
        return KVTable.decode((await self.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)).body).table

    async def broker_config(self, address: str) -> dict[str, str]:
        response = await self.ask(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties((response.body or b"").decode())

    async def update_broker_config(self, address: str, changes: Mapping[str, str]) -> None:
        await self.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=format_properties(changes).encode())

    # ---- topics ---------------------------------------------------------------------------------

    async def topic_names(self) -> list[str]:
        response = await self.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(TopicList.decode(response.body).topic_list)

    async def topics(self, *, include_system: bool = False) -> list[TopicSummary]:
        """All topics with their routes; without `include_system` only those that users have made."""
        names = await self.topic_names()
        if not include_system:
            info = await self.cluster_info()
            own = {*info.broker_addr_table, *info.cluster_addr_table}
            names = [name for name in names if not (is_system_topic(name) or topics.is_internal(name, own))]
        return await self._each(names, self._summary)

    async def _summary(self, name: str) -> TopicSummary:
        try:
            return TopicSummary(name, (await self.route(name)).queue_datas)
        except TopicNotFound:  # deleted since the names were listed
            return TopicSummary(name, [])

    async def route(self, topic: str) -> TopicRouteData:
        header = GetRouteinfoByTopicHeader(topic, accept_standard_json_only=True)
        try:
            response = await self.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except ServerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFound(
                    f"there is no topic {topic}, or no broker that serves it is alive"
                ) from None
            raise
        return TopicRouteData.decode(response.body)

    async def topic_config(self, address: str, topic: str) -> TopicConfig | None:
        """None where this broker does not have the topic."""
        try:
            response = await self.ask(address, RequestCode.GET_TOPIC_CONFIG, GetTopicConfigHeader(topic))
        except ServerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise
        return TopicConfigAndQueueMapping.decode(response.body)

    async def create_topic(
        self, topic: str, settings: TopicSettings | None = None, *, cluster: str | None = None
    ) -> dict[str, TopicConfig]:
        """Creates the topic on every master, or changes what `settings` says where it exists.

        Gives the configs by broker name, once the name servers route the topic to all of them.
        """
        settings = settings or TopicSettings()
        made: dict[str, TopicConfig] = {}
        masters = await self.masters(cluster)
        if settings.order is False:  # while a name server lists it, brokers keep the topic ordered
            await self._tell_name_servers(
                RequestCode.DELETE_KV_CONFIG, DeleteKvConfigHeader(ORDER_TOPICS, topic)
            )
        for name, address in masters.items():
            wanted = settings.applied_to(await self.topic_config(address, topic), topic)
            await self.ask(
                address,
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topics.update_header(wanted, settings.attributes),
            )
            made[name] = await self.topic_config(address, topic) or wanted
        if any(config.order for config in made.values()):
            order = ";".join(f"{name}:{config.write_queue_nums}" for name, config in made.items())
            await self._tell_name_servers(
                RequestCode.PUT_KV_CONFIG, PutKvConfigHeader(ORDER_TOPICS, topic, order)
            )
        await self._wait_for_route(topic, made)
        return made

    async def _wait_for_route(self, topic: str, made: Mapping[str, TopicConfig]) -> None:
        """Brokers register a new topic at once, but after they have answered."""
        deadline = asyncio.get_running_loop().time() + ROUTE_WAIT_MS / 1000
        while True:
            try:
                routed = {data.broker_name: data for data in (await self.route(topic)).queue_datas}
            except TopicNotFound:
                routed = {}
            if all(
                name in routed and routed[name].write_queue_nums == config.write_queue_nums
                for name, config in made.items()
            ):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise TopicNotFound(
                    f"the topic {topic} was created, but the name server does not route it yet"
                )
            await asyncio.sleep(0.02)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Deletes the topic on every master that has it, then its routes; tells the broker names."""
        info = await self.cluster_info()
        holders = [
            (name, address)
            for name, address in (await self.masters(cluster)).items()
            if await self.topic_config(address, topic) is not None
        ]
        if not holders:
            await self.route(topic)  # a route without a broker is cleaned up; neither is an error
        for _, address in holders:
            await self.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBrokerHeader(topic))
        for name in [cluster] if cluster is not None else sorted(info.cluster_addr_table):
            await self._tell_name_servers(
                RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrvHeader(topic, name)
            )
        await self._tell_name_servers(RequestCode.DELETE_KV_CONFIG, DeleteKvConfigHeader(ORDER_TOPICS, topic))
        return [name for name, _ in holders]

    async def topic_stats(self, topic: str) -> TopicStatsTable:
        """Bounds of all queues on all brokers, and the sum of their rates."""
        merged = TopicStatsTable()
        for address in _addresses((await self.route(topic)).broker_datas):
            response = await self.ask(
                address, RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoHeader(topic)
            )
            stats = TopicStatsTable.decode(response.body)
            merged.offset_table |= stats.offset_table
            merged.topic_put_tps += stats.topic_put_tps
        return merged

    async def topic_groups(self, topic: str) -> list[str]:
        """Consumer groups that subscribe the topic now or have offsets for it."""
        groups: set[str] = set()
        for address in _addresses((await self.route(topic)).broker_datas):
            response = await self.ask(
                address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, QueryTopicConsumeByWhoHeader(topic)
            )
            groups.update(GroupList.decode(response.body).group_list)
        return sorted(groups)

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """All topics of one broker, page by page."""

        async def page(first: int, version: str) -> tuple[dict[str, TopicConfig], Any, Command]:
            header = GetAllTopicConfigHeader(first, version, PAGE)
            response = await self.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, header)
            body = TopicConfigAndMappingSerializeWrapper.decode(response.body)
            return body.topic_config_table, body.data_version, response

        return await _all_pages(page, "totalTopicNum")

    # ---- consumer groups ------------------------------------------------------------------------

    async def groups(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """All groups of one broker, page by page."""

        async def page(first: int, version: str) -> tuple[dict[str, SubscriptionGroupConfig], Any, Command]:
            header = GetAllSubscriptiongroupConfigHeader(first, version, PAGE)
            response = await self.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header)
            body = SubscriptionGroupWrapper.decode(response.body)
            return body.subscription_group_table, body.data_version, response

        return await _all_pages(page, "totalGroupNum")

    async def update_group(self, config: SubscriptionGroupConfig, *, cluster: str | None = None) -> None:
        for address in (await self.masters(cluster)).values():
            await self.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.encode())

    async def delete_group(
        self, group: str, *, clean_offset: bool = False, cluster: str | None = None
    ) -> None:
        for address in (await self.masters(cluster)).values():
            header = DeleteSubscriptiongroupHeader(group, clean_offset)
            await self.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Progress of a group in every queue, over all brokers, and the sum of its rates."""
        merged = ConsumeStats()
        for address in await self._brokers_of_group(group, topic):
            header = GetConsumeStatsHeader(group, topic)
            response = await self.ask(address, RequestCode.GET_CONSUME_STATS, header, factor=3)
            stats = ConsumeStats.decode(response.body)
            merged.offset_table |= stats.offset_table
            merged.consume_tps += stats.consume_tps
        return merged

    async def group_lags(self, group: str | None = None, topic: str | None = None) -> list[GroupLag]:
        """What waits and what is in flight, by group and topic, summed up over the brokers.

        Asked of Penstock's brokers: Apache's refuse it with code 3.
        """
        header = GetGroupLagHeader(group, topic)
        found: dict[tuple[str, str], GroupLag] = {}
        for body in await self._ask_masters(RequestCode.GET_GROUP_LAG, header):
            for lag in GroupLags.decode(body).lags:
                known = found.setdefault((lag.group, lag.topic), lag)
                if known is not lag:
                    known.ready += lag.ready
                    known.in_flight += lag.in_flight
                    known.delayed += lag.delayed
                    times = [known.oldest_timestamp, lag.oldest_timestamp]
                    known.oldest_timestamp = min((t for t in times if t is not None), default=None)
        return [found[key] for key in sorted(found)]

    async def leases(self, group: str, topic: str | None = None, *, at_most: int = 1_000) -> LeaseList:
        """What is in flight, by whom and until when: the leases that end first, over all brokers.

        Asked of Penstock's brokers: Apache's refuse it with code 3.
        """
        merged = LeaseList()
        for body in await self._ask_masters(RequestCode.LIST_LEASES, ListLeasesHeader(group, topic, at_most)):
            part = LeaseList.decode(body)
            merged.leases += part.leases
            merged.total += part.total
        merged.leases = sorted(merged.leases, key=lambda lease: lease.visible_timestamp)[:at_most]
        return merged

    async def _ask_masters(self, code: int, header: Ext) -> list[bytes | None]:
        """Bodies of all that know the group and topic in question; an error if none does."""
        bodies: list[bytes | None] = []
        unknown: ServerError | None = None
        for address in (await self.masters()).values():
            try:
                bodies.append((await self.ask(address, code, header)).body)
            except ServerError as error:
                if error.code not in (
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    ResponseCode.TOPIC_NOT_EXIST,
                ):
                    raise
                unknown = error
        if not bodies and unknown is not None:
            raise unknown
        return bodies

    async def consumer_connection(self, group: str, topic: str | None = None) -> ConsumerConnection | None:
        """The clients of a group, from the first broker that knows any; None if none is online."""
        for address in await self._brokers_of_group(group, topic):
            header = GetConsumerConnectionListHeader(group)
            try:
                response = await self.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except ServerError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    continue
                raise
            return ConsumerConnection.decode(response.body)
        return None

    async def reset_offset(self, group: str, topic: str, time_ms: int) -> ResetOffsetBody:
        """Moves a group to a time, or to the newest message for -1, on every broker of the topic."""
        merged = ResetOffsetBody()
        for address in _addresses((await self.route(topic)).broker_datas):
            header = InvokeBrokerToResetOffsetHeader(group, topic, time_ms, is_force=True)
            response = await self.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            merged.offset_table |= ResetOffsetBody.decode(response.body).offset_table
        return merged

    async def _brokers_of_group(self, group: str, topic: str | None) -> list[str]:
        """Brokers of the topic or of the group's retry topic; a group that never had one may be anywhere."""
        for name in (topic, retry_topic(group)):
            if name:
                try:
                    return _addresses((await self.route(name)).broker_datas)
                except TopicNotFound:
                    continue
        return list((await self.masters()).values())

    async def _each(self, items: Iterable[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
        """Results in the order of the items, a bounded number of requests at a time."""
        places = asyncio.Semaphore(CONCURRENT_REQUESTS)

        async def one(item: T) -> R:
            async with places:
                return await work(item)

        return await asyncio.gather(*(one(item) for item in items))


def _checked(response: Command, address: str) -> Command:
    if response.code != ResponseCode.SUCCESS:
        raise ServerError(response.code, response.remark, address=address)
    return response


def _addresses(brokers: Iterable[BrokerData]) -> list[str]:
    """One address for each broker: its master, else its first replica."""
    return [
        broker.broker_addrs[min(broker.broker_addrs)]
        for broker in sorted(brokers, key=lambda broker: broker.broker_name or "")
        if broker.broker_addrs
    ]


async def _all_pages(
    page: Callable[[int, str], Awaitable[tuple[dict[str, T], Any, Command]]], total_name: str
) -> dict[str, T]:
    """Reads a table to its end; starts anew when it changes meanwhile."""
    table: dict[str, T] = {}
    seen, version = 0, None
    while True:
        part, current, response = await page(seen, version.encode().decode() if version else "")
        if version is not None and current != version:
            table, seen, version = {}, 0, None
            continue
        version = current
        table |= part
        seen += len(part)
        total = response.ext.get(total_name)
        if total is None or seen >= int(total) or not part:
            return table
