"""What concurrent and orderly consumption of popped messages have in common."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.client.hooked import ConsumeHooks
from penstock.client.lease_keeper import GIVE_BACK_BELOW, LeaseKeeper
from penstock.client.leases import Leases
from penstock.client.over_limit import OverLimit
from penstock.client.pop_queue import PopQueue
from penstock.client.popped import PoppedMessage
from penstock.client.workers import Job
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.push_consumer import PushConsumer

log = logging.getLogger("penstock.client")


class PopConsumption(ABC):
    def __init__(self, consumer: PushConsumer, over_limit: OverLimit) -> None:
        settings = consumer.settings
        self._consumer = consumer
        self._settings = settings
        self.loop = consumer.instance.loop
        self.listeners = consumer.listeners
        self.hooks = ConsumeHooks(settings.group, consumer.consume_hooks)
        self.timeout_ms = settings.consume_timeout_ms
        self.stopping = False
        self.leases = Leases(consumer.instance, settings.group, self._acked)
        self.keeper = LeaseKeeper(consumer, self.leases, self._in_use)
        self._over_limit = over_limit
        self._least_left = GIVE_BACK_BELOW * settings.pop_invisible_ms / 1000
        self._batch = 1 if self.listeners.one_by_one else settings.consume_batch

    def _acked(self, messages: Sequence[PoppedMessage]) -> None:
        self.keeper.settle(*messages)

    @abstractmethod
    def _in_use(self, message: PoppedMessage, now: float) -> bool:
        """Whether a listener works on it, and may go on doing so."""

    def submit(self, pop_queue: PopQueue, messages: Sequence[PoppedMessage]) -> None:
        """Takes what was just popped, of one topic."""
        pop_queue.unacked += len(messages)
        self.keeper.open.update(messages)
        wanted = []
        for message in messages:
            message.pop_queue = pop_queue
            if self.stopping:
                self.keeper.give_back(message)
            elif self._over_limit.is_over(message):
                self._consumer.spawn(self._dead(message))
            else:
                wanted.append(message)
        if wanted:
            self._hand_out(pop_queue, wanted)

    @abstractmethod
    def _hand_out(self, pop_queue: PopQueue, messages: Sequence[PoppedMessage]) -> None: ...

    @abstractmethod
    def finished(self, jobs: list[Job]) -> None: ...

    def may_begin(self, messages: Sequence[PoppedMessage]) -> bool:
        """Whether it is worth while to call a listener now. Called on workers, too."""
        soon = time.monotonic() + self._least_left
        return not self.stopping and all(not message.lost and soon < message.deadline for message in messages)

    def _still_ours(self, messages: Sequence[PoppedMessage]) -> list[PoppedMessage]:
        """Those whose lease has lasted as long as the listener."""
        now = self.loop.time()
        live = []
        for message in messages:
            if not message.lost and now < message.deadline:
                live.append(message)
                continue
            message.lost = True
            self.keeper.settle(message)
            log.warning(
                "a listener took longer with message %s than its lease lasts, its result is discarded",
                message.message_id,
            )
        return live

    async def _come_again(self, message: PoppedMessage, delay_ms: int) -> None:
        try:
            await self.leases.change(message, delay_ms)
        except PenstockError as error:
            log.warning("message %s comes again when its lease ends: %s", message.message_id, error)
        self.keeper.settle(message)

    async def _dead(self, message: PoppedMessage) -> None:
        if await self._over_limit.put_away(message):
            self.leases.ack_soon([message])
        else:
            self.keeper.settle(message)

    async def stop(self, timeout_ms: float) -> None:
        """After the workers have been waited for: what no listener has begun goes back to the broker."""
        deadline = self.loop.time() + timeout_ms / 1000
        for message in list(self.keeper.open):
            if not message.started and not message.lost:
                self.keeper.give_back(message)
        await self.keeper.flush((deadline - self.loop.time()) * 1000)
        await self.leases.flush((deadline - self.loop.time()) * 1000)
