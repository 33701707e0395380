"""Creating, showing and deleting topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock import limits
from penstock.broker import attributes
from penstock.broker.admin_common import (
    as_refusal,
    broker_address,
    page,
    queue_of,
    refuse_bad_topic,
    unknown_topic,
)
from penstock.broker.replies import Refusal
from penstock.errors import InvalidArgument
from penstock.message.names import LMQ_PREFIX, SYSTEM_TOPICS, pop_retry_topic_v1, pop_retry_topic_v2
from penstock.wire.bodies import (
    CreateTopicListRequestBody,
    DataVersion,
    GroupList,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import (
    GetAllTopicConfigHeader,
    GetAllTopicConfigResponseHeader,
    GetTopicConfigHeader,
    GetTopicStatsInfoHeader,
    QueryTopicConsumeByWhoHeader,
    QueryTopicsByConsumerHeader,
    UpdateAndCreateTopicHeader,
)
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
ALL_PERMISSIONS = 7


class TopicAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.handlers: dict[int, Handler] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_TOPIC_CONFIG: self.show,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.show_all,
            RequestCode.GET_TOPIC_STATS_INFO: self.stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
        }

    # ---- changing -------------------------------------------------------------------------------

    def update(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Creates or replaces a topic; attributes are merged into those it has."""
        header = command.header(UpdateAndCreateTopicHeader)
        self._check_name(header.topic)
        try:
            changes = attributes.parse(header.attributes)
        except InvalidArgument as error:
            raise as_refusal(error) from None
        wanted = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=changes,
        )
        self._put([self._checked(wanted)], now_ms)
        self._broker.reply(peer, command, position=self._broker.store.end)

    def update_list(self, peer: Peer, command: Command, now_ms: int) -> None:
        """All or nothing: every entry is checked before the first one is stored."""
        wanted = CreateTopicListRequestBody.decode(command.body).topic_config_list
        for config in wanted:
            self._check_name(config.topic_name)
        self._put([self._checked(config) for config in wanted], now_ms)
        self._broker.reply(peer, command, position=self._broker.store.end)

    def _check_name(self, name: str) -> None:
        refuse_bad_topic(name)
        if self._broker.settings.validate_system_topic_when_update_topic:
            self._refuse_system(name)

    def _refuse_system(self, name: str) -> None:
        if self._broker.topics.is_system(name):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")

    def _checked(self, wanted: TopicConfig) -> TopicConfig:
        """The config to store; `wanted.attributes` are signed changes."""
        broker = self._broker
        for what, count in (("read", wanted.read_queue_nums), ("write", wanted.write_queue_nums)):
            if not 1 <= count <= limits.QUEUES_PER_TOPIC:
                raise Refusal(
                    ResponseCode.INVALID_PARAMETER,
                    f"{what} queue count {count} is not in 1..{limits.QUEUES_PER_TOPIC}",
                )
        if not 0 <= wanted.perm <= ALL_PERMISSIONS:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"perm {wanted.perm} is not in 0..{ALL_PERMISSIONS}"
            )
        if wanted.topic_filter_type not in FILTER_TYPES:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"topicFilterType {wanted.topic_filter_type} is not one of {FILTER_TYPES}",
            )
        if wanted.attributes.get("+" + attributes.MESSAGE_TYPE) == "MIXED" and (
            not broker.settings.enable_mixed_message_type
        ):
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                "MIXED message type is not supported: enableMixedMessageType is off",
            )
        stored = broker.topics.get(wanted.topic_name)
        try:
            merged = attributes.merge(
                attributes.TOPIC_ATTRIBUTES, "topic", stored.attributes if stored else None, wanted.attributes
            )
        except InvalidArgument as error:
            raise as_refusal(error) from None
        return msgspec.structs.replace(wanted, attributes=merged)

    def _put(self, configs: list[TopicConfig], now_ms: int) -> None:
        """Stores what differs from what is there."""
        self._broker.check_backlog()
        topics = self._broker.topics
        new = sum(config.topic_name not in topics.table for config in configs)
        if new and len(topics.table) + new > limits.TOPICS_PER_BROKER:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"there are {len(topics.table)} topics, the most allowed"
            )
        for config in configs:
            if topics.get(config.topic_name) != config:
                topics.put(config, now_ms)

    def delete(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Config, progress and queues go; the messages stay in the log until it expires."""
        broker = self._broker
        name = command.ext.get("topic", "")
        if not name.strip():
            raise Refusal(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        self._refuse_system(name)
        broker.check_backlog()
        if broker.settings.clear_retry_topic_when_delete_topic:
            for group in {*broker.offsets.groups_of(name), *broker.clients.groups_subscribing(name)}:
                self._delete(pop_retry_topic_v1(group, name), now_ms)
                self._delete(pop_retry_topic_v2(group, name), now_ms)
        self._delete(name, now_ms)
        broker.reply(peer, command, position=broker.store.end)

    def _delete(self, name: str, now_ms: int) -> None:
        broker = self._broker
        if broker.topics.delete(name, now_ms) is None:
            return
        broker.offsets.drop_topic(name, now_ms)
        broker.pop.drop_topic(name)
        broker.store.delete_topic(name)
        if broker.settings.auto_delete_unused_stats:
            broker.statistics.forget_topic(name)

    def clean_unused(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Queues of topics that are not configured any more."""
        broker = self._broker
        for name in list(broker.store.topics_with_queues()):
            known = broker.topics.get(name) is not None or broker.topics.is_system(name)
            if not known and not name.startswith(LMQ_PREFIX):
                broker.store.delete_topic(name)
        broker.reply(peer, command)

    # ---- showing --------------------------------------------------------------------------------

    def show(self, peer: Peer, command: Command, now_ms: int) -> None:
        name = command.header(GetTopicConfigHeader).topic
        config = self._broker.topics.get(name)
        if config is None:
            raise unknown_topic(f"No topic in this broker. topic: {name}")
        self._broker.reply(peer, command, body=config.encode())

    def show_all(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(GetAllTopicConfigHeader)
        broker, topics = self._broker, self._broker.topics
        body = TopicConfigAndMappingSerializeWrapper(
            topic_config_table=page(
                broker.settings,
                topics.table,
                topics.data_version,
                header.topic_seq,
                header.data_version,
                header.max_topic_num,
            ),
            data_version=topics.data_version,
            mapping_data_version=DataVersion(timestamp=broker.started_ms),
        )
        total = GetAllTopicConfigResponseHeader(len(topics.table))
        broker.reply(peer, command, ext=total, body=body.encode())

    def stats(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Bounds of every queue, and how fast the topic grows."""
        name = command.header(GetTopicStatsInfoHeader).topic
        broker, store = self._broker, self._broker.store
        config = broker.topics.get(name)
        if config is None:
            raise unknown_topic(f"topic[{name}] not exist")
        table = TopicStatsTable(topic_put_tps=broker.statistics.tps("TOPIC_PUT_NUMS", name))
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            newest = max(0, store.max_offset(name, queue_id))
            table.offset_table[queue_of(broker.settings, name, queue_id)] = TopicOffset(
                min_offset=max(0, store.min_offset(name, queue_id)),
                max_offset=newest,
                last_update_timestamp=max(0, store.store_time(name, queue_id, newest - 1)) if newest else 0,
            )
        broker.reply(peer, command, body=table.encode())

    def consumers(self, peer: Peer, command: Command, now_ms: int) -> None:
        name = command.header(QueryTopicConsumeByWhoHeader).topic
        broker = self._broker
        groups = {*broker.clients.groups_subscribing(name), *broker.offsets.groups_of(name)}
        broker.reply(peer, command, body=GroupList(sorted(groups)).encode())

    def topics_of_group(self, peer: Peer, command: Command, now_ms: int) -> None:
        group = command.header(QueryTopicsByConsumerHeader).group
        broker = self._broker
        body = TopicList(broker.offsets.topics_of(group), broker_address(broker.settings))
        broker.reply(peer, command, body=body.encode())

    def system_topics(self, peer: Peer, command: Command, now_ms: int) -> None:
        names = sorted(SYSTEM_TOPICS | self._broker.topics.system)
        self._broker.reply(peer, command, body=TopicList(names).encode())
