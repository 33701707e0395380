"""Giving a message that could not be consumed back to the broker, which delivers it again later."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.client.pulled import CLIENT_LOCAL, PulledMessage
from penstock.client.sender import Outgoing
from penstock.errors import PenstockError
from penstock.message.names import LOGICAL_BROKER_PREFIX, is_retry_topic, normal_topic, retry_topic
from penstock.message.properties import Key, encode_properties
from penstock.message.sysflag import COMPRESSED, COMPRESSION_MASK
from penstock.wire.codes import RequestCode

if TYPE_CHECKING:
    from penstock.client.instance import ClientInstance

log = logging.getLogger("penstock.client")

DEFAULT_MAX_RECONSUME: Final = 16
FIRST_RETRY_LEVEL: Final = 3
EXPIRED_LEVEL: Final = 3
"""Delay of a message that a listener held too long."""

_OWN_FIELDS: Final = frozenset(
    {*CLIENT_LOCAL, Key.TRAN_MSG, Key.RECONSUME_TIME, Key.MAX_RECONSUME_TIMES, Key.RETRY_TOPIC, Key.DELAY}
)


class SendBack:
    def __init__(self, instance: ClientInstance, group: str, max_reconsume_times: int) -> None:
        self._instance = instance
        self._group = group
        self._max = max_reconsume_times

    async def send_back(self, message: PulledMessage, delay_level: int) -> bool:
        """By the broker's own way; where that fails, as a new message to the group's retry topic."""
        if not message.broker_name.startswith(LOGICAL_BROKER_PREFIX):
            try:
                address = await self._instance.master_address(message.queue)
                await self._instance.api.send_back(
                    address,
                    group=self._group,
                    topic=message.queue.topic,
                    physical_offset=message.record.physical_offset,
                    message_id=message.message_id,
                    delay_level=delay_level,
                    max_reconsume_times=self._max,
                    broker_name=message.broker_name,
                )
                return True
            except PenstockError as error:
                log.warning(
                    "message %s not taken back by its broker, sending it to the retry topic: %s",
                    message.message_id,
                    error,
                )
        return await self.produce(message, self._max)

    async def produce(self, message: PulledMessage, max_reconsume_times: int, *, again: int = 1) -> bool:
        """A new message to the retry topic; after the last attempt the broker makes it a dead letter."""
        properties = {name: value for name, value in message.properties.items() if name not in _OWN_FIELDS}
        properties.setdefault(Key.ORIGIN_MESSAGE_ID, message.message_id)
        properties[Key.RETRY_TOPIC] = message.topic
        properties[Key.DELAY] = str(FIRST_RETRY_LEVEL + message.reconsume_times)
        outgoing = Outgoing(
            RequestCode.SEND_MESSAGE_V2,
            retry_topic(self._group),
            bytes(message.record.body),
            encode_properties(properties),
            message.message_id,
            sys_flag=message.record.sys_flag & (COMPRESSED | COMPRESSION_MASK),
            flag=message.flag,
            reconsume_times=message.reconsume_times + again,
            max_reconsume_times=max_reconsume_times,
        )
        try:
            await self._instance.inner_producer.deliver(outgoing)
        except PenstockError as error:
            log.warning("message %s not sent to the retry topic either: %s", message.message_id, error)
            return False
        return True


def restore_topics(messages: Sequence[PulledMessage], group: str) -> None:
    """A retried message is shown under the topic it was first sent to."""
    for message in messages:
        topic = message.record.find(Key.RETRY_TOPIC)
        if topic:
            message.topic = topic
        elif is_retry_topic(message.topic):  # left over from when the group popped
            message.topic = normal_topic(message.topic, group)
