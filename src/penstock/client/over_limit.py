"""What becomes of a popped message after its last attempt."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.client.popped import PoppedMessage
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.push_consumer import PushConsumer

log = logging.getLogger("penstock.client")

TO_DEAD_LETTERS: Final = -1
"""Delay level of a send-back that is not to come again."""


class OverLimit:
    def __init__(self, consumer: PushConsumer, default: int) -> None:
        """`default` counts where the consumer has no limit of its own."""
        settings = consumer.settings
        self._consumer = consumer
        self._keeps = settings.pop_over_limit == "dead_letter"
        self._most = default if settings.max_reconsume_times == -1 else settings.max_reconsume_times

    def is_over(self, message: PoppedMessage) -> bool:
        """No listener should see it any more."""
        return message.reconsume_times > self._most

    def is_last(self, message: PoppedMessage) -> bool:
        """If it fails now, that was its last attempt."""
        return message.reconsume_times >= self._most

    async def put_away(self, message: PoppedMessage) -> bool:
        """Whether it may be acked now; if not, it comes again when its lease ends."""
        if not self._keeps:
            log.warning("message %s is dropped after its last attempt", message.message_id)
            return True
        instance = self._consumer.instance
        try:
            await instance.api.send_back(
                await instance.master_address(message.queue),
                group=self._consumer.group,
                topic=message.queue.topic,
                physical_offset=message.record.physical_offset,
                message_id=message.message_id,
                delay_level=TO_DEAD_LETTERS,
                max_reconsume_times=0,
                broker_name=message.broker_name,
            )
        except PenstockError as error:
            log.warning("message %s not put with the dead letters yet: %s", message.message_id, error)
            return False
        log.warning("message %s is put with the dead letters after its last attempt", message.message_id)
        return True
