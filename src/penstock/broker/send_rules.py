"""What decides whether a message is taken, and where it goes when that is not simply where it was sent."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.replies import Refusal
from penstock.broker.topics import PERM_WRITE
from penstock.errors import IllegalName
from penstock.message.names import (
    NOT_SENDABLE,
    SCHEDULE_TOPIC,
    check_topic,
    dlq_topic,
    group_of_retry_topic,
    is_retry_topic,
)
from penstock.message.properties import Key, drop_property, find_property
from penstock.message.sysflag import INNER_BATCH_MASK, MULTI_TAGS, TRANSACTION_MASK
from penstock.wire.bodies import TopicConfig
from penstock.wire.codes import ResponseCode
from penstock.wire.headers import SendHeader, SendHeaderV2
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

AnySendHeader = SendHeader | SendHeaderV2

HEADER_RETRIES_VERSION = 121
"""Clients from 3.4.9 on say themselves how often a message may be tried."""

_BROKERS_OWN = (Key.POP_CK, Key.MSG_REGION, Key.TRACE_ON, Key.CLUSTER, Key.CRC32)
"""Properties that a sender's text may not bring along: the broker writes its own, or none."""

_TIMER_REQUESTS = (Key.TIMER_DELAY_SEC, Key.TIMER_DELAY_MS, Key.TIMER_DELIVER_MS)


class Gate(NamedTuple):
    """A topic that passed the checks."""

    config: TopicConfig
    """The config that was checked; another one means another check."""
    queue_limit: int
    plain: bool
    """Nothing about the topic asks for the rules of `SendRules.place`."""


class Placement(NamedTuple):
    """Where and how a message is stored."""

    topic: str
    queue_id: int
    shown_queue_id: int
    """What the sender is told."""
    sys_flag: int
    properties: str
    deliver_ms: int = 0
    """Due time of a delayed message: its queue entry holds that instead of a tag code."""


class SendRules:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings

    def refusal(self, code: ResponseCode, remark: str) -> Refusal:
        """Refusals of sends carry region and trace switch, as successes do."""
        settings = self._settings
        ext = {"MSG_REGION": settings.region_id, "TRACE_ON": "true" if settings.trace_on else "false"}
        return Refusal(code, remark, ext)

    def illegal_size(self) -> Refusal:
        return self.refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{self._settings.max_message_size}B, msg properties length limit 32KB.",
        )

    # ---- the broker and the topic ---------------------------------------------------------------

    def guarded(self) -> bool:
        """Whether `check_broker` can refuse anything under the present settings."""
        settings = self._settings
        return (
            settings.start_accept_send_request_time_stamp > 0
            or not settings.broker_permission & PERM_WRITE
            or settings.broker_role == "SLAVE"
        )

    def check_broker(self, topic: str, now_ms: int) -> None:
        settings = self._settings
        if settings.broker_role == "SLAVE":
            raise self.refusal(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]this broker is a slave")
        opens_ms = settings.start_accept_send_request_time_stamp
        if now_ms < opens_ms:
            opens = datetime.fromtimestamp(opens_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
            raise self.refusal(
                ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {opens},{opens_ms % 1000:03d}"
            )
        if not settings.broker_permission & PERM_WRITE:
            config = self._broker.topics.get(topic)
            if config is not None and config.order:
                raise self.refusal(
                    ResponseCode.NO_PERMISSION,
                    f"the broker[{settings.broker_ip1}] sending message is forbidden",
                )

    def open_gate(self, header: AnySendHeader, now_ms: int) -> Gate:
        """Checks a topic, or creates it."""
        topic = header.topic
        topics = self._broker.topics
        config = topics.get(topic)
        try:
            check_topic(topic)
        except IllegalName as error:
            raise self.refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if topic in NOT_SENDABLE or topics.refuses_clients(topic):
            raise self.refusal(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if config is None:
            config = topics.create_by_send(
                topic, header.default_topic, header.default_topic_queue_nums, now_ms
            )
        if config is None and is_retry_topic(topic):
            config = topics.ensure(topic, 1, now_ms)
        if config is None:
            raise self.refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        if config.attributes.get("queue.type") == "BatchCQ":
            raise self.refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"topic[{topic}] has batch queues, which this broker does not write",
            )
        plain = (
            not is_retry_topic(topic)
            and config.topic_filter_type != "MULTI_TAG"
            and config.attributes.get("cleanup.policy") != "COMPACTION"
        )
        return Gate(config, max(config.write_queue_nums, config.read_queue_nums), plain)

    def choose_queue(self, peer: Peer, queue_id: int, config: TopicConfig) -> int:
        """For a queue id outside the topic's: a negative one means any."""
        if queue_id < 0 and config.write_queue_nums > 0:
            return self._broker.random.randrange(config.write_queue_nums)
        raise self.refusal(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, {describe_topic(config)} "
            f"Producer: {peer.remote[0]}:{peer.remote[1]}",
        )

    # ---- messages that ask for more -------------------------------------------------------------

    def place(
        self, header: AnySendHeader, version: int, config: TopicConfig, queue_id: int, text: str, now_ms: int
    ) -> Placement:
        """Applies every rule that moves or refuses a message because of its topic, flags or properties."""
        for key in _BROKERS_OWN:
            text = drop_property(text, key)
        sys_flag = header.sys_flag
        if sys_flag & INNER_BATCH_MASK or find_property(text, Key.INNER_NUM) is not None:
            raise self.refusal(ResponseCode.MESSAGE_ILLEGAL, "inner batches are not accepted from clients")
        if config.topic_filter_type == "MULTI_TAG":
            sys_flag |= MULTI_TAGS
        if config.attributes.get("cleanup.policy") == "COMPACTION" and not find_property(text, Key.KEYS):
            raise self.refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"messages of compaction topic[{header.topic}] need KEYS"
            )
        topic, shown_queue_id = header.topic, queue_id
        if is_retry_topic(topic):
            topic, shown_queue_id, text = self._retry(header, version, queue_id, text, now_ms)
        level = self._delay_level(text)
        self._check_transaction(sys_flag, text, retried=header.reconsume_times > 0 and level > 0)
        sys_flag &= ~TRANSACTION_MASK
        if level > 0:
            return self.delayed(topic, shown_queue_id, sys_flag, text, level, now_ms)
        if any(find_property(text, key) for key in _TIMER_REQUESTS) and not find_property(
            text, Key.TIMER_OUT_MS
        ):
            raise self.refusal(
                ResponseCode.MESSAGE_ILLEGAL, "timer messages are not served by this broker yet"
            )
        return Placement(topic, shown_queue_id, shown_queue_id, sys_flag, text)

    def delayed(
        self, topic: str, queue_id: int, sys_flag: int, text: str, level: int, now_ms: int
    ) -> Placement:
        """A message of a delay level: to the schedule topic, with a note of where it belongs."""
        level = min(level, self._broker.delay.max_level)
        for key in (Key.DELAY, Key.REAL_TOPIC, Key.REAL_QID, *_TIMER_REQUESTS):
            text = drop_property(text, key)
        text += f"DELAY\x01{level}\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02"
        due_ms = now_ms + self._broker.delay.delay_ms(level)
        return Placement(SCHEDULE_TOPIC, level - 1, queue_id, sys_flag, text, due_ms)

    def _retry(
        self, header: AnySendHeader, version: int, queue_id: int, text: str, now_ms: int
    ) -> tuple[str, int, str]:
        """An orderly consumer sends a failed message to its group's retry topic, or it is dead by now."""
        group = group_of_retry_topic(header.topic)
        config = self._broker.groups.find(group, now_ms)
        if config is None:
            raise self.refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group} "
            )
        most = config.retry_max_times
        if version >= HEADER_RETRIES_VERSION and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        if header.reconsume_times <= most and not self._broker.locks.any_held(group, now_ms):
            return header.topic, queue_id, text
        dead = self._broker.topics.ensure(dlq_topic(group), 1, now_ms)
        if dead is None:
            raise self.refusal(ResponseCode.SYSTEM_BUSY, "no room for another dead-letter topic")
        return dead.topic_name, 0, drop_property(text, Key.DELAY) + "DELAY\x01-1\x02"

    def _delay_level(self, text: str) -> int:
        level = find_property(text, Key.DELAY)
        try:
            return int(level) if level is not None else 0
        except ValueError:
            raise self.refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"property DELAY is not a number: {level!r}"
            ) from None

    def _check_transaction(self, sys_flag: int, text: str, *, retried: bool) -> None:
        prepared = (find_property(text, Key.TRAN_MSG) or "").lower() == "true"
        if retried or not (prepared or sys_flag & TRANSACTION_MASK):
            return
        if self._settings.reject_transaction_message:
            raise self.refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._settings.broker_ip1}] sending transaction message is forbidden",
            )
        raise self.refusal(ResponseCode.NO_PERMISSION, "transactions are not served by this broker yet")


def describe_topic(config: TopicConfig) -> str:
    """A topic's settings as the reference's remarks show them."""
    perm = config.perm
    shown = "".join(letter if perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
    attributes = ", ".join(f"{key}={value}" for key, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={shown}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={str(config.order).lower()}, attributes={{{attributes}}}]"
    )
