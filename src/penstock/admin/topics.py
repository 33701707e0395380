"""What an administrator says about a topic, and what is shown of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.errors import InvalidArgument
from penstock.message.names import AUTO_CREATE_TOPIC, DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, check_topic
from penstock.wire.bodies import QueueData, TopicConfig
from penstock.wire.headers import UpdateAndCreateTopicHeader

DEFAULT_QUEUES = 8
PERM_TEXT = "RWX"
"""Letters of the permission bits 4, 2 and 1."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What to set; None leaves what is there, or takes the default for a new topic."""

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Signed changes: {"+message.type": "FIFO", "-reserve.time": ""}."""

    def applied_to(self, stored: TopicConfig | None, topic: str) -> TopicConfig:
        check_topic(topic)
        base = stored or TopicConfig(topic, DEFAULT_QUEUES, DEFAULT_QUEUES)
        return TopicConfig(
            topic_name=topic,
            read_queue_nums=base.read_queue_nums if self.read_queues is None else self.read_queues,
            write_queue_nums=base.write_queue_nums if self.write_queues is None else self.write_queues,
            perm=base.perm if self.perm is None else self.perm,
            topic_filter_type=base.topic_filter_type,
            topic_sys_flag=base.topic_sys_flag,
            order=base.order if self.order is None else self.order,
            attributes=base.attributes,
        )


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic and its queues by broker; none if it vanished meanwhile."""

    name: str
    queues: list[QueueData]


def update_header(config: TopicConfig, changes: Mapping[str, str]) -> UpdateAndCreateTopicHeader:
    return UpdateAndCreateTopicHeader(
        topic=config.topic_name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(f"{key}={value}" if value else key for key, value in changes.items()),
        force=False,
    )


def is_internal(name: str, servers: Collection[str]) -> bool:
    """Topics that brokers made: for retries and dead letters, and those named after `servers`, brokers
    and clusters."""
    return name.startswith((RETRY_PREFIX, DLQ_PREFIX)) or name.removesuffix(REPLY_SUFFIX) in servers


def perm_text(perm: int) -> str:
    """6 as `RW-`."""
    return "".join(letter if perm & bit else "-" for letter, bit in zip(PERM_TEXT, (4, 2, 1), strict=True))


def parse_perm(text: str) -> int:
    """`RW`, `rw-` or `6`; raises InvalidArgument."""
    if text.isdecimal() and int(text) <= 7:
        return int(text)
    letters = text.upper().replace("-", "")
    if not text or len(set(letters)) != len(letters) or not set(letters) <= set(PERM_TEXT):
        raise InvalidArgument(f"{text!r} is not a permission: use letters of RWX, or a number from 0 to 7")
    return sum({"R": 4, "W": 2, "X": 1}[letter] for letter in letters)
