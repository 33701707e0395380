"""Subscription groups, consumer offsets and their resets."""

from __future__ import annotations

from msgspec import field

from penstock.message.queue import MessageQueue
from penstock.wire.bodies.base import Body, Part
from penstock.wire.bodies.routing import DataVersion


class ExponentialRetryPolicy(Part):
    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int = 2


class CustomizedRetryPolicy(Part):
    next: list[int] = field(default_factory=list)


class GroupRetryPolicy(Part):
    type: str | None = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SimpleSubscriptionData(Part):
    topic: str
    expression_type: str | None = None
    expression: str | None = None
    version: int = 0


class SubscriptionGroupConfig(Body):
    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: GroupRetryPolicy = field(default_factory=GroupRetryPolicy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    attributes: dict[str, str] = field(default_factory=dict)


class SubscriptionGroupList(Body):
    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class SubscriptionGroupWrapper(Body):
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class GroupForbidden(Body):
    group: str
    topic: str
    readable: bool = True


class GroupList(Body):
    group_list: list[str] = field(default_factory=list)


class ConsumerOffsetSerializeWrapper(Body):
    """Offsets by `topic@group`; the tables that only newer brokers send are optional."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    pull_offset_table: dict[str, dict[int, int]] | None = None
    group_topic_map: dict[str, list[str]] | None = None


class DelayOffsetSerializeWrapper(Body):
    """Progress of each delay level."""

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class QueryCorrectionOffsetBody(Body):
    correction_offsets: dict[int, int] = field(default_factory=dict)


class ResetOffsetBody(Body):
    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


class QueueOffset(Part):
    broker_name: str
    queue_id: int
    topic: str
    offset: int


class ResetOffsetBodyForC(Body):
    """The same for C++ clients, which cannot read objects as keys."""

    offset_table: list[QueueOffset] = field(default_factory=list)


class GetConsumerStatusBody(Body):
    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
