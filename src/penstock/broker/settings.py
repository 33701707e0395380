"""What a broker can be told, by the key names of Apache's broker.conf.

Keys that we do not act on are kept and shown again, so that a broker.conf written for Apache works and
the administrator's tools see what they wrote; `not_understood` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from penstock import limits
from penstock.errors import InvalidArgument
from penstock.store.settings import StoreSettings

QUEUE_ENTRY_BYTES = 20

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Percent = Annotated[int, Meta(ge=0, le=100)]


class BrokerSettings(msgspec.Struct, rename="camel"):
    """Attributes are the snake_case form of Apache's keys; `update` changes them while the broker runs."""

    broker_name: str = "penstock"
    broker_cluster_name: str = "DefaultCluster"
    broker_id: Count = 0
    broker_ip1: str = msgspec.field(default="127.0.0.1", name="brokerIP1")
    listen_port: Annotated[int, Meta(ge=0, le=65_535)] = 10911
    namesrv_addr: str = ""
    broker_permission: Annotated[int, Meta(ge=0, le=7)] = 6
    region_id: str = "DefaultRegion"
    trace_on: bool = True

    default_topic_queue_nums: Positive = 8
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    validate_system_topic_when_update_topic: bool = True
    clear_retry_topic_when_delete_topic: bool = True
    enable_mixed_message_type: bool = False

    start_accept_send_request_time_stamp: Count = 0
    reject_transaction_message: bool = False

    long_polling_enable: bool = True
    short_polling_time_mills: Positive = 1_000
    lite_pull_message_enable: bool = True
    reject_pull_consumer_enable: bool = False
    slave_read_enable: bool = False
    enable_property_filter: bool = False

    default_message_request_mode: str = "PULL"
    default_pop_share_queue_num: int = -1
    server_load_balancer_enable: bool = True
    pop_polling_size: Positive = 1_024
    max_pop_polling_size: Positive = 100_000
    pop_from_retry_probability: Percent = 20
    enable_retry_topic_v2: bool = msgspec.field(default=False, name="enableRetryTopicV2")
    retrieve_message_from_pop_retry_topic_v1: bool = msgspec.field(
        default=True, name="retrieveMessageFromPopRetryTopicV1"
    )
    pop_response_return_actual_retry_topic: bool = False
    init_pop_offset_by_check_msg_in_mem: bool = True
    enable_pop_message_threshold: bool = False
    pop_inflight_message_threshold: Count = 10_000
    pop_dead_letter_enable: bool = True
    """Ours: a popped message whose group's attempts are used up goes to the dead-letter topic; false leaves
    that to the consumers, as Apache does."""

    notify_consumer_ids_changed_enable: bool = True
    channel_expired_timeout: Positive = 120_000
    subscription_expired_timeout: Positive = 600_000
    use_server_side_reset_offset: bool = True
    auto_delete_unused_stats: bool = True

    register_name_server_period: Positive = 30_000
    force_register: bool = True
    flush_consumer_offset_interval: Positive = 5_000
    flush_delay_offset_interval: Positive = 10_000
    config_black_list: str = ""
    enable_split_metadata: bool = True
    split_metadata_size: Positive = 2_000

    store_path_root_dir: str = ""
    flush_disk_type: str = "SYNC_FLUSH"
    broker_role: str = "ASYNC_MASTER"
    mapped_file_size_commit_log: Positive = 1 << 30
    mapped_file_size_consume_queue: Positive = 6_000_000
    max_message_size: Positive = 4 << 20
    delete_when: str = "04"
    file_reserved_time: Count = 72
    disk_max_used_space_ratio: Percent = 75
    disk_space_warning_level_ratio: Percent = 90
    disk_space_clean_forcibly_ratio: Percent = 85
    clean_file_forcibly_enable: bool = True
    max_transfer_bytes_on_message_in_memory: Positive = 262_144
    max_transfer_count_on_message_in_memory: Positive = 32
    message_index_enable: bool = True
    max_hash_slot_num: Positive = 5_000_000
    max_index_num: Positive = 20_000_000
    max_msgs_num_batch: Positive = 64
    default_query_max_num: Positive = 32
    offset_check_in_slave: bool = False
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    not_understood: dict[str, str] = {}
    """Keys of the start file that are not ours, kept verbatim."""
    generation: int = 0
    """Grows with every update, so that code that caches values can see that they are stale."""

    FIXED: ClassVar[frozenset[str]] = frozenset(
        {
            "brokerName",
            "brokerClusterName",
            "brokerId",
            "brokerIP1",
            "listenPort",
            "storePathRootDir",
            "brokerRole",
            "flushDiskType",
            "mappedFileSizeCommitLog",
            "mappedFileSizeConsumeQueue",
            "maxHashSlotNum",
            "maxIndexNum",
            "messageDelayLevel",
            "messageIndexEnable",
        }
    )
    """Identity and layout: a running broker cannot change them."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerSettings:
        """Raises InvalidArgument naming the first key whose value is wrong."""
        values: dict[str, Any] = {}
        unknown: dict[str, str] = {}
        for key, text in properties.items():
            if key in _FIELDS:
                attribute, value = _parse(key, text)
                values[attribute] = value
            else:
                unknown[key] = text
        settings = cls(**values, not_understood=unknown)
        if (settings.broker_role == "SLAVE") != (settings.broker_id > 0):
            raise InvalidArgument("brokerId must be 0 for a master and above 0 for a slave")
        return settings

    def properties(self) -> dict[str, str]:
        shown = dict(self.not_understood)
        for key, (attribute, _) in _FIELDS.items():
            value = getattr(self, attribute)
            shown[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return shown

    def check(self, key: str, text: str) -> object:
        """The value that `update` would set; raises InvalidArgument for what it would refuse."""
        if key not in _FIELDS:
            raise InvalidArgument(f"{key} is not a setting of this broker")
        if key in self.FIXED:
            raise InvalidArgument(f"{key} cannot be changed while the broker runs")
        return _parse(key, text)[1]

    def update(self, key: str, text: str) -> None:
        value = self.check(key, text)
        setattr(self, _FIELDS[key][0], value)
        self.generation += 1

    def store_settings(self) -> StoreSettings:
        return StoreSettings(
            commit_log_file_size=self.mapped_file_size_commit_log,
            consume_queue_file_entries=max(1, self.mapped_file_size_consume_queue // QUEUE_ENTRY_BYTES),
            index_enabled=self.message_index_enable,
            index_slots=self.max_hash_slot_num,
            index_entries=self.max_index_num,
            max_message_bytes=self.max_message_size,
            flush="sync" if self.flush_disk_type == "SYNC_FLUSH" else "async",
            file_reserved_hours=self.file_reserved_time,
            delete_when=";".join(f"{hour:02d}" for hour in parse_hours(self.delete_when)),
            disk_warning_ratio=self.disk_space_warning_level_ratio / 100,
            disk_clean_ratio=self.disk_space_clean_forcibly_ratio / 100,
            disk_max_used_ratio=self.disk_max_used_space_ratio / 100,
        )

    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of level 1, 2, … in milliseconds."""
        return parse_delay_levels(self.message_delay_level)


_OWN = ("not_understood", "generation")
_FIELDS: dict[str, tuple[str, Any]] = {
    field.encode_name: (field.name, field.type)
    for field in msgspec.structs.fields(BrokerSettings)
    if field.name not in _OWN
}
_CHOICES = {
    "flushDiskType": ("SYNC_FLUSH", "ASYNC_FLUSH"),
    "brokerRole": ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    "defaultMessageRequestMode": ("PULL", "POP"),
}
_NAMES = ("brokerName", "brokerClusterName")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    delays = []
    for piece in text.split():
        number, unit = piece[:-1], piece[-1]
        if unit not in _UNIT_MS or not number.isdecimal():
            raise InvalidArgument(f"messageDelayLevel: {piece!r} is not a number followed by s, m, h or d")
        delays.append(int(number[:20]) * _UNIT_MS[unit])  # with more digits it is too long whatever they are
        if delays[-1] > limits.LONGEST_DELAY_MS:
            raise InvalidArgument(f"messageDelayLevel: {piece!r} is longer than a hundred years")
    if not delays:
        raise InvalidArgument("messageDelayLevel: at least one level is needed")
    return tuple(delays)


def parse_hours(text: str) -> tuple[int, ...]:
    """Hours as administrators write them, `04;16` or `4; 16`."""
    pieces = [piece.strip() for piece in text.split(";") if piece.strip()]
    if not pieces or not all(piece.isdecimal() and int(piece) < 24 for piece in pieces):
        raise InvalidArgument(f"deleteWhen={text}: expected hours from 0 to 23, separated by ';'")
    return tuple(map(int, pieces))


def _parse(key: str, text: str) -> tuple[str, object]:
    attribute, kind = _FIELDS[key]
    text = text.strip()
    if kind is bool and text.lower() in ("true", "false"):
        return attribute, text.lower() == "true"
    try:
        value: object = msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{key}={text}: {error}") from None
    choices = _CHOICES.get(key)
    if choices is not None and value not in choices:
        raise InvalidArgument(f"{key}={text}: expected {' or '.join(choices)}")
    if key == "messageDelayLevel":
        parse_delay_levels(text)
    if key == "deleteWhen":
        parse_hours(text)
    if key in _NAMES and (not text or not text.isprintable() or " " in text):
        # with a blank in the broker's name no POP handle could be read back
        raise InvalidArgument(f"{key}={text}: expected a name without blanks")
    return attribute, value
