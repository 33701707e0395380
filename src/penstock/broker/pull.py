"""PULL_MESSAGE and LITE_PULL_MESSAGE: checks in the protocol's order, the read, the answer or the wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import limits
from penstock.broker import filters
from penstock.broker.filters import PullFilter
from penstock.broker.groups import FORBID_PULL, TOOLS_GROUP
from penstock.broker.held_pulls import HeldPull, HeldPulls
from penstock.broker.replies import Refusal
from penstock.broker.sql92 import SqlError
from penstock.broker.topics import PERM_READ
from penstock.errors import BadHeader, InvalidArgument
from penstock.store.results import GetResult, GetStatus
from penstock.wire.bodies import SubscriptionGroupConfig, TopicConfig
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import ONEWAY_FLAG, Command, encode_response_head
from penstock.wire.headers import PullHeader, PullResponseHeader
from penstock.wire.peer import Peer
from penstock.wire.pull_reply import write_pull_reply_head

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

FLAG_COMMIT = 1
FLAG_SUSPEND = 2
FLAG_SUBSCRIPTION = 4

OFFSET_RESET = "OFFSET_RESET"
"""Remark of a pull that was sent elsewhere by a server-side reset; not a status of the store."""

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_ANSWERS = {status: (code, status.name) for status, code in _CODES.items()}
_MOVED_UNLESS_ZERO = (GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE)


class Puller:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._settings = broker.settings
        self.held = HeldPulls(broker.store, self._resume, now_ms=broker.started_ms)
        self.handlers: dict[int, Handler] = {
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.LITE_PULL_MESSAGE: self.lite_pull,
        }

    def pull(self, peer: Peer, command: Command, now_ms: int) -> None:
        self._pull(peer, command, command.header(PullHeader), now_ms, first=True)

    def lite_pull(self, peer: Peer, command: Command, now_ms: int) -> None:
        if not self._settings.lite_pull_message_enable:
            raise _forbidden(1, f"the broker[{self._settings.broker_ip1}] serves no lite pull consumers")
        self._pull(peer, command, command.header(PullHeader), now_ms, first=True)

    def _resume(self, held: HeldPull, now_ms: int) -> None:
        """A held pull again, this time neither committing nor waiting. Nothing may escape into the loop."""
        try:
            self._pull(held.peer, held.command, held.header, now_ms, first=False)
        except Refusal as refusal:
            self._broker.reply(held.peer, held.command, refusal.code, refusal.remark, refusal.ext)
        except BadHeader as error:
            self._broker.reply(held.peer, held.command, ResponseCode.SYSTEM_ERROR, str(error))

    def _pull(self, peer: Peer, command: Command, header: PullHeader, now_ms: int, *, first: bool) -> None:
        group, topic, wanted = self._check(peer, header, now_ms)
        code, remark, result = self._read(header, wanted)
        offsets = self._broker.offsets
        offsets.note_pulled(header.consumer_group, header.topic, header.queue_id, result.next_offset)
        if first and header.sys_flag & FLAG_COMMIT:
            offsets.commit_soon(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset, now_ms
            )
        if code == ResponseCode.PULL_NOT_FOUND and first and header.sys_flag & FLAG_SUSPEND:
            hold_ms = header.suspend_timeout_millis
            if not self._settings.long_polling_enable:
                hold_ms = self._settings.short_polling_time_mills
            if self.held.hold(HeldPull(peer, command, header, wanted, now_ms + hold_ms)):
                return
        if command.flag & ONEWAY_FLAG:
            return
        broker_id = group.broker_id if self._settings.slave_read_enable else 0
        low, high, size = result.min_offset, result.max_offset, result.bytes
        topic_flag, group_flag = topic.topic_sys_flag, group.group_sys_flag
        if command.binary:
            answer = PullResponseHeader(
                broker_id, result.next_offset, low, high, None, topic_flag, group_flag
            )
            head = encode_response_head(command, code, remark, answer, size)
        else:
            head = write_pull_reply_head(
                command.opaque,
                code,
                remark,
                broker_id,
                result.next_offset,
                low,
                high,
                topic_flag,
                group_flag,
                size,
            )
        peer.send(head, *result.parts)

    def _read(self, header: PullHeader, wanted: PullFilter) -> tuple[ResponseCode, str, GetResult]:
        settings, store = self._settings, self._store
        topic, queue_id, offset = header.topic, header.queue_id, header.queue_offset
        reset = self._broker.offsets.take_reset(header.consumer_group, topic, queue_id)
        if reset is not None and settings.use_server_side_reset_offset:
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            moved = GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, reset, low, high, [], 0, 0)
            return ResponseCode.PULL_OFFSET_MOVED, OFFSET_RESET, moved
        # a slave's queues may lag, so what looks like a wrong offset there need not be one
        correct_offsets = settings.broker_role != "SLAVE" or settings.offset_check_in_slave
        messages = min(header.max_msg_nums, settings.max_transfer_count_on_message_in_memory)
        size = settings.max_transfer_bytes_on_message_in_memory
        if header.bulk:
            messages = min(header.max_msg_nums, limits.BULK_PULL_MESSAGES)
            size = min(max(size, header.max_msg_bytes or 0), limits.BULK_PULL_BYTES)
        result = store.get(
            topic,
            queue_id,
            offset,
            messages,
            wanted.by_code,
            wanted.by_record,
            size,
            correct_offsets,
        )
        if result.count:
            self._broker.statistics.count_get(
                header.consumer_group, topic, queue_id, result.count, result.bytes
            )
        else:
            self._broker.statistics.count_get_miss()
        code, remark = _ANSWERS[result.status]
        if offset != 0 and result.status in _MOVED_UNLESS_ZERO:
            code = ResponseCode.PULL_OFFSET_MOVED
        if not correct_offsets and code == ResponseCode.PULL_OFFSET_MOVED:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return code, remark, result

    # ---- checks, in the protocol's order --------------------------------------------------------

    def _check(
        self, peer: Peer, header: PullHeader, now_ms: int
    ) -> tuple[SubscriptionGroupConfig, TopicConfig, PullFilter]:
        settings = self._settings
        if settings.broker_role == "SLAVE" and not settings.slave_read_enable:
            raise Refusal(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]this slave is not read from")
        if not settings.broker_permission & PERM_READ:
            raise _forbidden(1, f"the broker[{settings.broker_ip1}] pulling message is forbidden")
        name = header.consumer_group
        group = self._broker.groups.find(name, now_ms)
        if group is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist, "
            )
        if not group.consume_enable:
            raise _forbidden(2, f"subscription group no permission, {name}")
        topic = self._broker.topics.get(header.topic)
        if topic is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! "
            )
        if not topic.perm & PERM_READ:
            raise _forbidden(3, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[/{peer.remote[0]}:{peer.remote[1]}]",
            )
        if header.sys_flag & FLAG_SUBSCRIPTION:
            expression_type = header.expression_type
            wanted = self._carried_filter(header, now_ms)
        else:
            wanted, expression_type = self._registered_filter(header, group)
        if not filters.is_tag_type(expression_type) and not settings.enable_property_filter:
            raise filters.unsupported_filter(expression_type)
        if (
            settings.reject_pull_consumer_enable
            and name != TOOLS_GROUP
            and not self._broker.clients.is_member(name, peer)
        ):
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"this connection is no registered consumer of group {name}",
            )
        return group, topic, wanted

    def _carried_filter(self, header: PullHeader, now_ms: int) -> PullFilter:
        try:
            wanted = filters.request_filter(header.subscription, header.expression_type)
        except InvalidArgument as error:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from None
        if self._broker.clients.consumer_group(header.consumer_group) is None:
            self._broker.clients.remember_subscription(
                header.consumer_group,
                filters.request_subscription(header.topic, header.subscription, header.expression_type),
                now_ms,
            )
        return wanted

    def _registered_filter(
        self, header: PullHeader, group: SubscriptionGroupConfig
    ) -> tuple[PullFilter, str | None]:
        name, topic = header.consumer_group, header.topic
        live = self._broker.clients.consumer_group(name)
        if live is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if live.broadcasting and not group.consume_broadcast_enable:
            raise _forbidden(4, f"group {name} may not consume by broadcasting")
        if self._broker.groups.forbidden_bits(name, topic) & FORBID_PULL:
            raise _forbidden(5, f"group {name} may not read topic {topic}")
        subscription = live.subscriptions.get(topic)
        if subscription is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"group {name} has not subscribed to topic {topic}"
            )
        if subscription.sub_version < header.sub_version:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the broker knows version {subscription.sub_version} of the subscription, "
                f"the pull names {header.sub_version}",
            )
        try:
            return filters.registered_filter(subscription), subscription.expression_type
        except SqlError as error:
            raise Refusal(
                ResponseCode.FILTER_DATA_NOT_EXIST, f"the subscription's expression is wrong: {error}"
            ) from None


def _forbidden(kind: int, remark: str) -> Refusal:
    return Refusal(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(kind)})
