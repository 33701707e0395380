"""Creating, showing and deleting subscription groups, and what they may read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock import limits
from penstock.broker import attributes
from penstock.broker.admin_common import (
    as_refusal,
    page,
    refuse_bad_group,
    unknown_topic,
)
from penstock.broker.groups import FORBID_PULL
from penstock.broker.replies import Refusal
from penstock.errors import InvalidArgument
from penstock.wire.bodies import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import (
    DeleteSubscriptiongroupHeader,
    GetAllSubscriptiongroupConfigHeader,
    GetAllSubscriptiongroupConfigResponseHeader,
    GetSubscriptiongroupConfigHeader,
    UpdateAndGetGroupForbiddenHeader,
)
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler


class GroupAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.handlers: dict[int, Handler] = {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.show,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.show_all,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbid,
        }

    # ---- changing -------------------------------------------------------------------------------

    def update(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Creates or replaces a group; attributes are merged into those it has."""
        self._put([self._checked(SubscriptionGroupConfig.decode(command.body))], now_ms)
        self._broker.reply(peer, command, position=self._broker.store.end)

    def update_list(self, peer: Peer, command: Command, now_ms: int) -> None:
        """All or nothing: every entry is checked before the first one is stored."""
        wanted = SubscriptionGroupList.decode(command.body).group_config_list
        self._put([self._checked(config) for config in wanted], now_ms)
        self._broker.reply(peer, command, position=self._broker.store.end)

    def _checked(self, wanted: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        refuse_bad_group(wanted.group_name)
        if wanted.retry_queue_nums > limits.QUEUES_PER_TOPIC:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"retryQueueNums {wanted.retry_queue_nums} is above {limits.QUEUES_PER_TOPIC}",
            )
        stored = self._broker.groups.get(wanted.group_name)
        try:
            merged = attributes.merge(
                attributes.GROUP_ATTRIBUTES, "group", stored.attributes if stored else None, wanted.attributes
            )
        except InvalidArgument as error:
            raise as_refusal(error) from None
        return msgspec.structs.replace(wanted, attributes=merged)

    def _put(self, configs: list[SubscriptionGroupConfig], now_ms: int) -> None:
        self._broker.check_backlog()
        groups = self._broker.groups
        new = sum(config.group_name not in groups.table for config in configs)
        if new and len(groups.table) + new > limits.GROUPS_PER_BROKER:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"there are {len(groups.table)} groups, the most allowed"
            )
        for config in configs:
            if groups.get(config.group_name) != config:
                groups.put(config, now_ms)

    def delete(self, peer: Peer, command: Command, now_ms: int) -> None:
        """A group that does not exist is as good as deleted."""
        header = command.header(DeleteSubscriptiongroupHeader)
        broker = self._broker
        broker.check_backlog()
        broker.groups.delete(header.group_name, now_ms)
        if header.clean_offset:
            broker.offsets.drop_group(header.group_name, now_ms)
            broker.pop.drop_group(header.group_name)
        if broker.settings.auto_delete_unused_stats:
            broker.statistics.forget_group(header.group_name)
        broker.reply(peer, command, position=broker.store.end)

    def forbid(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Whether the group may pull the topic; with `readable` that is set first."""
        header = command.header(UpdateAndGetGroupForbiddenHeader)
        broker, group, topic = self._broker, header.group, header.topic
        bits = broker.groups.forbidden_bits(group, topic)
        if header.readable is not None:
            if broker.groups.get(group) is None:
                raise _unknown_group(group)
            if broker.topics.get(topic) is None:
                raise unknown_topic(f"topic[{topic}] not exist")
            wanted = bits & ~FORBID_PULL if header.readable else bits | FORBID_PULL
            if wanted != bits:
                broker.check_backlog()
                broker.groups.set_forbidden(group, topic, wanted, now_ms)
                bits = wanted
        body = GroupForbidden(group, topic, readable=not bits & FORBID_PULL)
        broker.reply(peer, command, body=body.encode(), position=broker.store.end)

    # ---- showing --------------------------------------------------------------------------------

    def show(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Looking does not create the group."""
        name = command.header(GetSubscriptiongroupConfigHeader).group
        config = self._broker.groups.get(name)
        if config is None:
            raise _unknown_group(name)
        self._broker.reply(peer, command, body=config.encode())

    def show_all(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(GetAllSubscriptiongroupConfigHeader)
        broker, groups = self._broker, self._broker.groups
        shown = page(
            broker.settings,
            groups.table,
            groups.data_version,
            header.group_seq,
            header.data_version,
            header.max_group_num,
        )
        body = SubscriptionGroupWrapper(
            subscription_group_table=shown,
            forbidden_table={group: topics for group, topics in groups.forbidden.items() if group in shown},
            data_version=groups.data_version,
        )
        total = GetAllSubscriptiongroupConfigResponseHeader(len(groups.table))
        broker.reply(peer, command, ext=total, body=body.encode())


def _unknown_group(name: str) -> Refusal:
    return Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}")
