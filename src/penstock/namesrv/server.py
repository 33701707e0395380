"""The name server's requests. One thread, no sockets, no clock: peers and the time are given."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final
from zlib import crc32

from penstock.errors import BadHeader, InvalidArgument
from penstock.namesrv.kv_config import ORDER_TOPICS, Files, KvConfig
from penstock.namesrv.routes import (
    UNIT,
    UNIT_SUBSCRIPTION,
    BrokerKey,
    MinBrokerChange,
    RegistrationError,
    RouteTable,
    in_zone,
)
from penstock.namesrv.settings import NamesrvSettings
from penstock.wire.bodies import (
    BrokerMemberGroup,
    ClusterInfo,
    DataVersion,
    GetBrokerMemberGroupResponseBody,
    KVTable,
    RegisterBrokerBody,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import ONEWAY_FLAG, Command, Ext, encode_command, encode_response
from penstock.wire.dialect import DialectError
from penstock.wire.headers import (
    AddWritePermOfBrokerHeader,
    AddWritePermOfBrokerResponseHeader,
    BrokerHeartbeatHeader,
    DeleteKvConfigHeader,
    DeleteTopicInNamesrvHeader,
    GetBrokerMemberGroupHeader,
    GetKvConfigHeader,
    GetKvConfigResponseHeader,
    GetKvlistByNamespaceHeader,
    GetRouteinfoByTopicHeader,
    GetTopicsByClusterHeader,
    NotifyMinBrokerIdChangeHeader,
    PutKvConfigHeader,
    QueryDataVersionHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicInNamesrvHeader,
    UnregisterBrokerHeader,
    WipeWritePermOfBrokerHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from penstock.wire.peer import Peer
from penstock.wire.properties_text import format_properties, parse_properties

log = logging.getLogger("penstock.namesrv")

SETTINGS_FILE: Final = "namesrv.properties"
REGISTER_BODY_VERSION: Final = 37
"""Brokers of older protocol versions send only their topic table."""
STANDARD_JSON_VERSION: Final = 401
"""Clients from this protocol version on are answered in standard JSON."""
SYNC_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Replicas look each other up by these topics and need to see who really is the master."""
ROUTE_HINT: Final = "The topic does not exist, or no broker that serves it is registered here."

Answer = tuple[int, str | None, Ext | None, bytes]
Handler = Callable[[Peer, Command, int], Answer]


def _ok(ext: Ext | None = None, body: bytes = b"", remark: str | None = None) -> Answer:
    return ResponseCode.SUCCESS, remark, ext, body


def _error(code: int, remark: str) -> Answer:
    return code, remark, None, b""


class NameServer:
    def __init__(self, settings: NamesrvSettings, files: Files, *, now_ms: int) -> None:
        self.settings = settings
        self.routes = RouteTable()
        self._files = files
        self._kv = KvConfig(files)
        self._started_ms = now_ms
        self._scan_ms = now_ms
        saved = files.load(SETTINGS_FILE)
        if saved is not None:
            properties = parse_properties(saved.decode())
            settings.update({key: text for key, text in properties.items() if key != "listenPort"})
        self._handlers: dict[int, Handler] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._cluster_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }

    # ---- what comes in ------------------------------------------------------------------------------

    def handle(self, peer: Peer, command: Command, now_ms: int) -> None:
        if command.is_response:
            return
        handler = self._handlers.get(command.code)
        try:
            if handler is None:
                answer = _error(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
                )
            else:
                answer = handler(peer, command, now_ms)
        except (BadHeader, DialectError, RegistrationError) as error:
            answer = _error(ResponseCode.SYSTEM_ERROR, str(error))
        except OSError as error:
            log.error("settings cannot be saved: %s", error)
            answer = _error(ResponseCode.SYSTEM_ERROR, f"settings cannot be saved: {error}")
        if not command.flag & ONEWAY_FLAG:
            peer.send(encode_response(command, *answer))

    def disconnected(self, peer: Peer, now_ms: int) -> None:
        """A broker whose connection is gone gets no more clients until it registers again."""
        for key in self.routes.of_peer(peer):
            log.info(
                "broker %s at %s is gone: its connection closed",
                self.routes.live[key].broker_name,
                key.address,
            )
            self._remove(key)

    def tick(self, now_ms: int) -> None:
        """Takes out brokers that have been silent too long."""
        if now_ms - self._scan_ms < self.settings.scan_not_active_broker_interval:
            return
        self._scan_ms = now_ms
        for key in self.routes.expired(now_ms):
            live = self.routes.live[key]
            log.warning(
                "broker %s at %s is gone: silent for %d ms", live.broker_name, key.address, live.timeout_ms
            )
            self._remove(key)
            live.peer.close()

    def _remove(self, key: BrokerKey) -> None:
        live = self.routes.live[key]
        self._notify(self.routes.unregister(key, live.broker_name, live.broker_id))

    # ---- brokers ------------------------------------------------------------------------------------

    def _register(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        header = command.header(RegisterBrokerHeader)
        body = command.body or b""
        if header.body_crc32 and header.body_crc32 != crc32(body) & 0x7FFF_FFFF:
            return _error(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        known = BrokerKey(header.cluster_name, header.broker_addr) in self.routes.live
        result = self.routes.register(
            header,
            _registration(command.version, body),
            peer,
            now_ms,
            drop_missing_topics=self.settings.delete_topic_with_broker_registration,
        )
        if not known:
            log.info("broker %s registered from %s", header.broker_name, header.broker_addr)
        self._notify(result.notice)
        order_topics = self._kv.namespace(ORDER_TOPICS)
        tell_order = order_topics is not None and self.settings.return_order_topic_config_to_broker
        return _ok(
            RegisterBrokerResponseHeader(ha_server_addr=result.ha_address, master_addr=result.master_address),
            KVTable(order_topics or {}).encode() if tell_order else b"",
        )

    def _unregister(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        header = command.header(UnregisterBrokerHeader)
        key = BrokerKey(header.cluster_name, header.broker_addr)
        if key in self.routes.live:
            log.info("broker %s at %s unregistered", header.broker_name, header.broker_addr)
        self._notify(self.routes.unregister(key, header.broker_name, header.broker_id))
        return _ok()

    def _heartbeat(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        header = command.header(BrokerHeartbeatHeader)
        self.routes.heard(BrokerKey(header.cluster_name, header.broker_addr), now_ms)
        return _ok()

    def _query_data_version(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        header = command.header(QueryDataVersionHeader)
        live = self.routes.heard(BrokerKey(header.cluster_name, header.broker_addr), now_ms)
        if live is None:
            return _ok(QueryDataVersionResponseHeader(changed=True))
        changed = live.data_version != DataVersion.decode(command.body)
        return _ok(QueryDataVersionResponseHeader(changed=changed), live.data_version.encode())

    def _notify(self, change: MinBrokerChange | None) -> None:
        if change is None or not self.settings.notify_min_broker_id_changed or not change.broker.broker_addrs:
            return
        lowest = min(change.broker.broker_addrs)
        header = NotifyMinBrokerIdChangeHeader(
            min_broker_id=lowest,
            broker_name=change.broker.broker_name,
            min_broker_addr=change.broker.broker_addrs[lowest],
            offline_broker_addr=change.offline_address,
            ha_broker_addr=change.ha_address,
        )
        frame = encode_command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, 0, flag=ONEWAY_FLAG, ext=header)
        for peer in change.audience:
            peer.send(frame)

    # ---- routes -------------------------------------------------------------------------------------

    def _route(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        settings = self.settings
        if (
            settings.need_wait_for_service
            and now_ms - self._started_ms < settings.wait_seconds_for_service * 1000
        ):
            return _error(ResponseCode.SYSTEM_ERROR, "name server not ready")
        if "topic" not in command.ext:
            return _no_route("null")
        header = command.header(GetRouteinfoByTopicHeader)
        topic = header.topic
        acting_master = settings.support_acting_master and not topic.startswith(SYNC_TOPIC_PREFIX)
        route = self.routes.route(topic, acting_master=acting_master)
        if route is None:
            return _no_route(topic)
        if settings.order_message_enable:
            route.order_topic_conf = self._kv.get(ORDER_TOPICS, topic)
        if header.zone_mode and header.zone_name and header.zone_name.strip():
            return _ok(body=in_zone(route, header.zone_name).encode())
        strict = command.version >= STANDARD_JSON_VERSION or bool(header.accept_standard_json_only)
        return _ok(body=route.encode(strict=strict))

    def _cluster_info(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        clusters = {cluster: sorted(names) for cluster, names in self.routes.clusters.items()}
        return _ok(body=ClusterInfo(self.routes.brokers, clusters).encode())

    def _member_group(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        header = command.header(GetBrokerMemberGroupHeader)
        broker = self.routes.brokers.get(header.broker_name)
        group = BrokerMemberGroup(header.cluster_name, header.broker_name)
        if broker is not None:
            group.broker_addrs = broker.broker_addrs
        return _ok(body=GetBrokerMemberGroupResponseBody(group).encode())

    def _wipe_write(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        broker_name = command.header(WipeWritePermOfBrokerHeader).broker_name
        count = self.routes.set_writable(broker_name, False)
        return _ok(WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    def _add_write(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        broker_name = command.header(AddWritePermOfBrokerHeader).broker_name
        count = self.routes.set_writable(broker_name, True)
        return _ok(AddWritePermOfBrokerResponseHeader(add_topic_count=count))

    # ---- topics -------------------------------------------------------------------------------------

    def _all_topics(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        if not self.settings.enable_all_topic_list:
            return _error(ResponseCode.SYSTEM_ERROR, "disable")
        return _ok(body=TopicList(sorted(self.routes.topics)).encode())

    def _cluster_topics(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        if not self.settings.enable_topic_list:
            return _error(ResponseCode.SYSTEM_ERROR, "disable")
        topics = self.routes.topics_of_cluster(command.header(GetTopicsByClusterHeader).cluster)
        return _ok(body=TopicList(sorted(topics)).encode())

    def _unit_topics(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        if not self.settings.enable_topic_list:
            return _error(ResponseCode.SYSTEM_ERROR, "disable")
        wanted, unwanted = {
            RequestCode.GET_UNIT_TOPIC_LIST: (UNIT, 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (UNIT_SUBSCRIPTION, 0),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (UNIT_SUBSCRIPTION, UNIT),
        }[RequestCode(command.code)]
        return _ok(body=TopicList(sorted(self.routes.topics_by_flag(wanted, unwanted))).encode())

    def _system_topics(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        """Names that topics share with clusters and brokers, and a broker to ask for the rest."""
        routes = self.routes
        addresses = [
            address
            for _, broker in sorted(routes.brokers.items())
            for address in broker.broker_addrs.values()
        ]
        names = sorted(routes.clusters) + sorted(routes.brokers)
        return _ok(body=TopicList(names, addresses[0] if addresses else None).encode())

    def _delete_topic(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        header = command.header(DeleteTopicInNamesrvHeader)
        self.routes.delete_topic(header.topic, header.cluster_name or None)
        return _ok()

    def _register_topic(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        header = command.header(RegisterTopicInNamesrvHeader)
        self.routes.register_topic(header.topic, TopicRouteData.decode(command.body).queue_datas)
        return _ok()

    # ---- settings -----------------------------------------------------------------------------------

    def _put_kv(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        header = command.header(PutKvConfigHeader)
        self._kv.put(header.namespace, header.key, header.value)
        return _ok()

    def _get_kv(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        header = command.header(GetKvConfigHeader)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            return _error(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return _ok(GetKvConfigResponseHeader(value=value))

    def _delete_kv(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        header = command.header(DeleteKvConfigHeader)
        self._kv.delete(header.namespace, header.key)
        return _ok()

    def _list_kv(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        namespace = command.header(GetKvlistByNamespaceHeader).namespace
        table = self._kv.namespace(namespace)
        if table is None:
            return _error(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return _ok(body=KVTable(table).encode())

    def _update_config(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        if not command.body:
            return _ok()
        try:
            properties = parse_properties(command.body.decode())
        except UnicodeDecodeError:
            return _error(ResponseCode.SYSTEM_ERROR, "the body is not UTF-8 text")
        if not self.settings.locked_keys().isdisjoint(properties):
            return _error(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        try:
            self.settings.update(properties)
        except InvalidArgument as error:
            return _error(ResponseCode.INVALID_PARAMETER, str(error))
        self._files.save(SETTINGS_FILE, format_properties(self.settings.properties()).encode())
        return _ok()

    def _get_config(self, peer: Peer, command: Command, now_ms: int) -> Answer:
        return _ok(body=format_properties(self.settings.properties()).encode())


def _registration(version: int, body: bytes) -> RegisterBrokerBody:
    if not body:
        return RegisterBrokerBody()
    if version >= REGISTER_BODY_VERSION:
        return RegisterBrokerBody.decode(body)
    old = TopicConfigSerializeWrapper.decode(body)
    return RegisterBrokerBody(TopicConfigAndMappingSerializeWrapper(old.topic_config_table, old.data_version))


def _no_route(topic: str) -> Answer:
    return _error(
        ResponseCode.TOPIC_NOT_EXIST,
        f"No topic route info in name server for the topic: {topic}\n{ROUTE_HINT}",
    )
