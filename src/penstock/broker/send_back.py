"""CONSUMER_SEND_MSG_BACK: a message that a consumer could not handle comes again later, or is dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.replies import Refusal
from penstock.broker.send_rules import HEADER_RETRIES_VERSION
from penstock.broker.stored_copy import add_origin, append_copy
from penstock.broker.topics import PERM_WRITE
from penstock.message.names import dlq_topic, retry_topic
from penstock.message.properties import Key, drop_property
from penstock.message.record import RecordView
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import ConsumerSendMsgBackHeader
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

FIRST_RETRY_LEVEL = 3
"""A first failure waits for delay level 3 (10 s), each further one for the next level."""


class SendBack:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.handlers: dict[int, Handler] = {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, peer: Peer, command: Command, now_ms: int) -> None:
        broker = self._broker
        settings = broker.settings
        header = command.header(ConsumerSendMsgBackHeader)
        if settings.broker_role == "SLAVE":
            raise Refusal(ResponseCode.SYSTEM_ERROR, "a slave takes no messages back")
        group = broker.groups.find(header.group, now_ms)
        if group is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
            )
        if not settings.broker_permission & PERM_WRITE:
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"the broker[{settings.broker_ip1}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            broker.reply(peer, command)
            return
        broker.check_backlog()
        topic = broker.topics.ensure(retry_topic(header.group), group.retry_queue_nums, now_ms)
        if topic is None:
            raise Refusal(ResponseCode.SYSTEM_BUSY, "no room for another retry topic")
        if not topic.perm & PERM_WRITE:
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden"
            )
        record = self._find(header.offset)
        text = add_origin(record.properties_text, record, record.topic)
        text = drop_property(drop_property(text, Key.WAIT), Key.DELAY) + "WAIT\x01false\x02"

        most = group.retry_max_times
        if command.version >= HEADER_RETRIES_VERSION and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        target, queue_id, deliver_ms = topic.topic_name, broker.random.randrange(group.retry_queue_nums), 0
        if record.reconsume_times >= most or header.delay_level < 0:
            dead = broker.topics.ensure(dlq_topic(header.group), 1, now_ms)
            if dead is None:
                raise Refusal(ResponseCode.SYSTEM_BUSY, "no room for another dead-letter topic")
            target, queue_id = dead.topic_name, 0
            text += "DELAY\x010\x02"
            broker.statistics.add("SNDBCK2DLQ_TIMES", f"{record.topic}@{header.group}")
        else:
            level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
            placed = broker.sender.rules.delayed(target, queue_id, record.sys_flag, text, level, now_ms)
            target, queue_id, text, deliver_ms = (
                placed.topic,
                placed.queue_id,
                placed.properties,
                placed.deliver_ms,
            )
        before = broker.store.end
        append_copy(
            broker.store,
            record,
            target,
            queue_id,
            text,
            record.reconsume_times + 1,
            now_ms,
            deliver_ms=deliver_ms,
        )
        position = broker.store.end
        broker.statistics.count_put(target, queue_id, 1, position - before)
        broker.statistics.add("SNDBCK_PUT_NUMS", f"{record.topic}@{header.group}")
        broker.reply(peer, command, position=position)

    def _find(self, offset: int) -> RecordView:
        stored = self._broker.store.read_record(offset)
        if stored is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        return RecordView(stored)
