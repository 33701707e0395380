"""The topics of this broker: who may create one and how, what the name servers are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from penstock import limits
from penstock.broker.persistence import Kind, Note, members, other_members, read_version, unknown_members
from penstock.broker.settings import BrokerSettings
from penstock.message.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    REPLY_SUFFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    is_system_topic,
)
from penstock.wire.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
READ_WRITE = PERM_READ | PERM_WRITE

REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"


class Topics:
    """name → TopicConfig. Configs are never changed in place: a change is a new object."""

    file_name = "topics.json"
    prompt = True

    def __init__(self, settings: BrokerSettings, note: Note, *, delay_levels: int, now_ms: int) -> None:
        self.table: dict[str, TopicConfig] = {}
        self.data_version = DataVersion(timestamp=now_ms)
        self.dirty = False
        self._settings = settings
        self._note = note
        self._changed: dict[str, TopicConfig] | None = None
        self._unknown: dict[str, dict[str, Any]] = {}
        self._other_members: dict[str, Any] = {}
        self.system: frozenset[str] = frozenset()
        self._add_system_topics(delay_levels)

    # ---- asking ---------------------------------------------------------------------------------

    def get(self, name: str) -> TopicConfig | None:
        return self.table.get(name)

    def is_system(self, name: str) -> bool:
        """The protocol's system topics and those that this broker made for itself at start."""
        return name in self.system or is_system_topic(name)

    def refuses_clients(self, name: str) -> bool:
        """Timer and revive topics: a client's message there would jam the machinery that reads them."""
        return name == TIMER_TOPIC or name.startswith(REVIVE_PREFIX)

    # ---- changing -------------------------------------------------------------------------------

    def put(self, config: TopicConfig, now_ms: int) -> int:
        """Creates or replaces; tells the journal position at which that is durable."""
        self.table[config.topic_name] = config
        self._touch(now_ms, config)
        return self._note(Kind.TOPIC, msgspec.json.encode(config))

    def delete(self, name: str, now_ms: int) -> int | None:
        """The journal position, or None if there was no such topic."""
        if self.table.pop(name, None) is None:
            return None
        self._unknown.pop(name, None)
        self._touch(now_ms)
        if self._changed:
            self._changed.pop(name, None)
        return self._note(Kind.TOPIC_DELETED, name.encode())

    def touch(self, now_ms: int) -> None:
        """Everything is told to the name servers anew: something that they are told by has changed."""
        self._touch(now_ms)
        self._changed = dict(self.table)

    def mark_ordered(self, names: Iterable[str], now_ms: int) -> None:
        """The name server's list of order topics, as it came with a registration reply."""
        for name in names:
            config = self.table.get(name)
            if config is not None and not config.order:
                self.put(msgspec.structs.replace(config, order=True), now_ms)

    # ---- creation paths -------------------------------------------------------------------------

    def create_by_send(
        self, name: str, default_topic: str, queue_nums: int, now_ms: int
    ) -> TopicConfig | None:
        """A send to an unknown topic takes the default topic as pattern; None if that is not allowed.

        Whether TBW102 may be that pattern is the option's business alone: what an older configuration
        left in the file does not count.
        """
        pattern = self.table.get(default_topic)
        if default_topic == AUTO_CREATE_TOPIC:
            if not self._settings.auto_create_topic_enable:
                return None
            queues = pattern.write_queue_nums if pattern else self._settings.default_topic_queue_nums
            perm, filter_type = READ_WRITE, pattern.topic_filter_type if pattern else "SINGLE_TAG"
        elif pattern is not None and pattern.perm & PERM_INHERIT:
            queues = pattern.write_queue_nums
            perm, filter_type = pattern.perm & ~PERM_INHERIT, pattern.topic_filter_type
        else:
            return None
        count = max(0, min(queue_nums, queues))
        return self._create(name, count, perm, now_ms, filter_type=filter_type)

    def ensure(
        self, name: str, queues: int, now_ms: int, *, perm: int = READ_WRITE, order: bool = False
    ) -> TopicConfig | None:
        """Retry and dead-letter topics: as they are, or new. None if the table is full."""
        config = self.table.get(name)
        if config is None:
            return self._create(name, queues, perm, now_ms, order=order)
        if order and not config.order:
            config = msgspec.structs.replace(config, order=True)
            self.put(config, now_ms)
        return config

    def _create(
        self,
        name: str,
        queues: int,
        perm: int,
        now_ms: int,
        *,
        filter_type: str = "SINGLE_TAG",
        order: bool = False,
    ) -> TopicConfig | None:
        if len(self.table) >= limits.TOPICS_PER_BROKER:
            return None
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_filter_type=filter_type,
            order=order,
        )
        self.put(config, now_ms)
        return config

    def _touch(self, now_ms: int, config: TopicConfig | None = None) -> None:
        self.data_version = self.data_version.next(now_ms)
        self.dirty = True
        if config is not None:
            if self._changed is None:
                self._changed = {}
            self._changed[config.topic_name] = config

    def _add_system_topics(self, delay_levels: int) -> None:
        settings = self._settings
        cluster, broker = settings.broker_cluster_name, settings.broker_name
        inherit = READ_WRITE | PERM_INHERIT
        wanted = {
            SELF_TEST_TOPIC: (1, READ_WRITE),
            BENCHMARK_TOPIC: (1024, READ_WRITE),
            cluster: (16, inherit if settings.cluster_topic_enable else PERM_INHERIT),
            broker: (1, inherit if settings.broker_topic_enable else PERM_INHERIT),
            OFFSET_MOVED_TOPIC: (1, READ_WRITE),
            SCHEDULE_TOPIC: (delay_levels, READ_WRITE),
            cluster + REPLY_SUFFIX: (1, READ_WRITE),
            REVIVE_PREFIX + cluster: (8, READ_WRITE),
            f"rmq_sys_SYNC_BROKER_MEMBER_{broker}": (1, PERM_INHERIT),
            HALF_TOPIC: (1, READ_WRITE),
            OP_HALF_TOPIC: (1, READ_WRITE),
            "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": (1, READ_WRITE),
            "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": (1, READ_WRITE),
            TIMER_TOPIC: (1, READ_WRITE),
        }
        if settings.auto_create_topic_enable:
            wanted[AUTO_CREATE_TOPIC] = (settings.default_topic_queue_nums, inherit)
        if settings.trace_topic_enable:
            wanted[settings.msg_trace_topic_name] = (1, READ_WRITE)
        for name, (queues, perm) in wanted.items():
            self.table[name] = TopicConfig(
                topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
            )
        self.system = frozenset(wanted)

    # ---- what name servers are told -------------------------------------------------------------

    def take_changes(self) -> list[TopicConfig] | None:
        """Topics changed since the last call, with the permissions to register; None if none were."""
        if self._changed is None:
            return None
        changed, self._changed = self._changed, None
        return [self._registered(config) for config in changed.values()]

    def registration(self, only: Iterable[TopicConfig] | None = None) -> RegisterBrokerBody:
        """The body of REGISTER_BROKER: all topics, or those that `take_changes` gave."""
        if only is None:
            hidden = "" if self._settings.auto_create_topic_enable else AUTO_CREATE_TOPIC
            only = [self._registered(config) for name, config in self.table.items() if name != hidden]
        return RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
                topic_config_table={config.topic_name: config for config in only},
                data_version=self.data_version,
                mapping_data_version=DataVersion(timestamp=self.data_version.timestamp),
            )
        )

    def _registered(self, config: TopicConfig) -> TopicConfig:
        permission = self._settings.broker_permission
        if permission & READ_WRITE == READ_WRITE:
            return config
        return msgspec.structs.replace(config, perm=config.perm & permission)

    # ---- the file -------------------------------------------------------------------------------

    def load(self, saved: Mapping[str, Any]) -> None:
        entries = saved.get("topicConfigTable") or {}
        configs = {
            name: msgspec.convert({**entry, "topicName": name}, TopicConfig, strict=False)
            for name, entry in entries.items()
        }
        self.data_version = read_version(saved, self.data_version)
        self.table.update(configs)
        unknown = {name: unknown_members(entry, TopicConfig) for name, entry in entries.items()}
        self._unknown = {name: found for name, found in unknown.items() if found}
        self._other_members = other_members(saved, "dataVersion", "topicConfigTable")

    def snapshot(self) -> dict[str, Any]:
        return {
            **self._other_members,
            "dataVersion": self.data_version,
            "topicConfigTable": {
                **self.table,
                **{name: {**unknown, **members(self.table[name])} for name, unknown in self._unknown.items()},
            },
        }

    def replay(self, kind: int, payload: bytes) -> bool:
        if kind == Kind.TOPIC:
            config = msgspec.json.decode(payload, type=TopicConfig, strict=False)
            self.table[config.topic_name] = config
        elif kind == Kind.TOPIC_DELETED:
            self.table.pop(payload.decode(), None)
        else:
            return False
        self.data_version = self.data_version.next(self.data_version.timestamp)
        self.dirty = True
        return True
