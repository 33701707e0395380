"""Headers of broker administration."""

from __future__ import annotations

from msgspec import field

from penstock.wire.headers.base import I32, I64, HeaderStruct, RpcHeader


class UpdateAndCreateTopicHeader(RpcHeader):
    """UPDATE_AND_CREATE_TOPIC and UPDATE_AND_CREATE_STATIC_TOPIC."""

    topic: str
    default_topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str
    topic_sys_flag: I32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class GetAllTopicConfigHeader(RpcHeader):
    topic_seq: I32 | None = None
    data_version: str | None = None
    max_topic_num: I32 | None = None


class GetAllTopicConfigResponseHeader(HeaderStruct):
    total_topic_num: I32 | None = None


class GetBrokerConfigResponseHeader(HeaderStruct):
    version: str


class GetAllSubscriptiongroupConfigHeader(RpcHeader):
    group_seq: I32 | None = None
    data_version: str | None = None
    max_group_num: I32 | None = None


class GetAllSubscriptiongroupConfigResponseHeader(HeaderStruct):
    total_group_num: I32 | None = None


class GetSubscriptiongroupConfigHeader(RpcHeader):
    group: str


class DeleteSubscriptiongroupHeader(RpcHeader):
    group_name: str
    clean_offset: bool = False


class GetTopicStatsInfoHeader(RpcHeader):
    topic: str


class GetConsumerConnectionListHeader(RpcHeader):
    consumer_group: str


class GetProducerConnectionListHeader(RpcHeader):
    producer_group: str


class GetConsumeStatsHeader(RpcHeader):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetBrokerConsumeStatsHeader(RpcHeader):
    is_order: bool = False


class DeleteTopicInBrokerHeader(RpcHeader):
    topic: str


class InvokeBrokerToResetOffsetHeader(RpcHeader):
    group: str
    topic: str
    timestamp: I64
    is_force: bool = False
    queue_id: I32 = -1
    offset: I64 | None = None


class InvokeBrokerToGetConsumerStatusHeader(RpcHeader):
    topic: str
    group: str
    client_addr: str | None = None


class QueryTopicConsumeByWhoHeader(RpcHeader):
    topic: str


class QueryTopicsByConsumerHeader(RpcHeader):
    group: str


class QuerySubscriptionByConsumerHeader(RpcHeader):
    group: str
    topic: str | None = None


class QueryConsumeTimeSpanHeader(RpcHeader):
    topic: str
    group: str


class QueryCorrectionOffsetHeader(RpcHeader):
    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffsetHeader(RpcHeader):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ViewBrokerStatsDataHeader(RpcHeader):
    stats_name: str
    stats_key: str


class QueryConsumeQueueHeader(RpcHeader):
    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None


class ResumeCheckHalfMessageHeader(RpcHeader):
    topic: str | None = None
    msg_id: str | None = None


class GetTopicConfigHeader(RpcHeader):
    topic: str
    logical: bool | None = field(default=None, name="lo")


class UpdateAndGetGroupForbiddenHeader(RpcHeader):
    group: str
    topic: str
    readable: bool | None = None


class CheckRocksdbCqWriteProgressHeader(RpcHeader):
    topic: str | None = None
    check_store_time: I64 = 0


class ExportRocksdbConfigToJsonHeader(RpcHeader):
    config_type: str


class SetCommitlogReadModeHeader(HeaderStruct):
    read_ahead_mode: I32 = field(name="READ_AHEAD_MODE")


class AuthUserHeader(RpcHeader):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER and AUTH_GET_USER."""

    username: str


class AuthListUserHeader(RpcHeader):
    filter: str | None = None


class AuthAclHeader(RpcHeader):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL and AUTH_GET_ACL."""

    subject: str


class AuthDeleteAclHeader(RpcHeader):
    subject: str
    policy_type: str | None = None
    resource: str | None = None


class AuthListAclHeader(RpcHeader):
    subject_filter: str | None = None
    resource_filter: str | None = None


class GetGroupLagHeader(HeaderStruct):
    """Ours. Without a group: all groups; without a topic: all topics of the group."""

    consumer_group: str | None = None
    topic: str | None = None


class ListLeasesHeader(HeaderStruct):
    """Ours. The leases of a group that end first, at most `max_nums` of them."""

    consumer_group: str
    topic: str | None = None
    max_nums: I32 = 1_000
