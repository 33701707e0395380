"""Headers of the name server, and of brokers among themselves."""

from __future__ import annotations

from msgspec import field

from penstock.wire.headers.base import I32, I64, HeaderStruct


class PutKvConfigHeader(HeaderStruct):
    namespace: str
    key: str
    value: str


class GetKvConfigHeader(HeaderStruct):
    namespace: str
    key: str


class GetKvConfigResponseHeader(HeaderStruct):
    value: str | None = None


class DeleteKvConfigHeader(HeaderStruct):
    namespace: str
    key: str


class GetKvlistByNamespaceHeader(HeaderStruct):
    namespace: str


class RegisterBrokerHeader(HeaderStruct):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = field(default=0, name="bodyCrc32")
    zone_name: str | None = field(default=None, name="__ZONE_NAME")


class RegisterBrokerResponseHeader(HeaderStruct):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerHeader(HeaderStruct):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class GetRouteinfoByTopicHeader(HeaderStruct):
    topic: str
    accept_standard_json_only: bool | None = None
    zone_mode: bool | None = field(default=None, name="__ZONE_MODE")
    zone_name: str | None = field(default=None, name="__ZONE_NAME")


class WipeWritePermOfBrokerHeader(HeaderStruct):
    broker_name: str


class WipeWritePermOfBrokerResponseHeader(HeaderStruct):
    wipe_topic_count: I32


class AddWritePermOfBrokerHeader(HeaderStruct):
    broker_name: str


class AddWritePermOfBrokerResponseHeader(HeaderStruct):
    add_topic_count: I32


class DeleteTopicInNamesrvHeader(HeaderStruct):
    topic: str
    cluster_name: str | None = None


class RegisterTopicInNamesrvHeader(HeaderStruct):
    topic: str


class GetTopicsByClusterHeader(HeaderStruct):
    cluster: str


class QueryDataVersionHeader(HeaderStruct):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class QueryDataVersionResponseHeader(HeaderStruct):
    changed: bool


class GetBrokerMemberGroupHeader(HeaderStruct):
    cluster_name: str
    broker_name: str


class BrokerHeartbeatHeader(HeaderStruct):
    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: I64 | None = None
    epoch: I32 | None = None
    max_offset: I64 | None = None
    confirm_offset: I64 | None = None
    heartbeat_timeout_mills: I64 | None = None
    election_priority: I32 | None = None


class NotifyMinBrokerIdChangeHeader(HeaderStruct):
    min_broker_id: I64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class ExchangeBrokerHaInfoHeader(HeaderStruct):
    """Request and response are alike."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None


class ResetMasterFlushOffsetHeader(HeaderStruct):
    master_flush_offset: I64
