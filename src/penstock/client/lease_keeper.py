"""Watches the leases of a push consumer's messages: extends those being worked on, gives back the others.

A message that waits for a listener until its lease is nearly over goes back to the broker without counting
as an attempt, so that a slow consumer does not turn messages into dead letters that nobody ever looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final

from penstock.client.leases import Leases
from penstock.client.pop_queue import PopQueue
from penstock.client.popped import PoppedMessage
from penstock.errors import LeaseLost, PenstockError

if TYPE_CHECKING:
    from penstock.client.push_consumer import PushConsumer

log = logging.getLogger("penstock.client")

LOOKS_PER_LEASE: Final = 20
SHORTEST_LOOK_MS: Final = 20
LONGEST_LOOK_MS: Final = 1_000
RENEW_BELOW: Final = 0.4
"""Part of the invisible time that is left when a lease is extended."""
GIVE_BACK_BELOW: Final = 0.2
"""Part of the invisible time below which nothing new is begun with a message."""
GIVE_BACK_MS: Final = 1
"""Visible again at once."""


class LeaseKeeper:
    def __init__(
        self, consumer: PushConsumer, leases: Leases, in_use: Callable[[PoppedMessage, float], bool]
    ) -> None:
        """`in_use(message, now)`: whether a listener works on it, and may go on doing so."""
        self._consumer = consumer
        self._leases = leases
        self._in_use = in_use
        self._invisible_ms = consumer.settings.pop_invisible_ms
        self._renews = consumer.settings.pop_renew
        self.open: set[PoppedMessage] = set()
        """Messages that are neither acked nor put off, and lost only while their listener runs."""
        self._working: set[asyncio.Task[None]] = set()

    def settle(self, *messages: PoppedMessage) -> None:
        """Nothing more is to be done for these. Saying so twice changes nothing."""
        told: set[PopQueue] = set()
        for message in messages:
            if message in self.open:
                self.open.remove(message)
                pop_queue = message.pop_queue
                if pop_queue is not None:
                    pop_queue.unacked -= 1
                    told.add(pop_queue)
        for pop_queue in told:
            pop_queue.tell()

    async def run(self) -> None:
        pause_ms = max(SHORTEST_LOOK_MS, min(self._invisible_ms / LOOKS_PER_LEASE, LONGEST_LOOK_MS))
        while True:
            await asyncio.sleep(pause_ms / 1000)
            try:
                self._look()
            except Exception:
                log.exception("the leases of group %s could not be looked at", self._consumer.group)

    def _look(self) -> None:
        now = self._consumer.instance.loop.time()
        for message in list(self.open):
            if message.changing is not None or message.lost:  # being given back, or its listener still runs
                continue
            left_ms = (message.deadline - now) * 1000
            if left_ms <= 0:
                self._lost(message)
                log.info("the lease of message %s has ended, it comes again", message.message_id)
            elif self._in_use(message, now):
                if self._renews and left_ms < RENEW_BELOW * self._invisible_ms:
                    self._spawn(self._renew(message))
            elif not message.started and left_ms < GIVE_BACK_BELOW * self._invisible_ms:
                self.give_back(message)

    def _lost(self, message: PoppedMessage) -> None:
        """With a listener it counts until that returns: a consumer that hangs takes no more."""
        message.lost = True
        if not message.started:
            self.settle(message)

    async def _renew(self, message: PoppedMessage) -> None:
        try:
            await self._leases.change(message, self._invisible_ms)
        except LeaseLost:
            self._lost(message)
            log.warning("message %s was lost while a listener works on it", message.message_id)
        except PenstockError as error:
            log.info("the lease of message %s not extended yet: %s", message.message_id, error)

    def give_back(self, message: PoppedMessage) -> None:
        """Somebody else may have it, now; that it was here is not counted."""
        message.lost = True  # before anything is sent: no listener may begin with it any more
        self._spawn(self._give_back(message))

    async def _give_back(self, message: PoppedMessage) -> None:
        try:
            await self._leases.change(message, GIVE_BACK_MS, suspend=True)
        except PenstockError as error:
            log.info("message %s not given back, its lease runs out: %s", message.message_id, error)
        self.settle(message)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._consumer.spawn(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def flush(self, timeout_ms: float) -> None:
        """Waits for the requests under way, for so long."""
        if self._working:
            await asyncio.wait(list(self._working), timeout=max(0.0, timeout_ms / 1000))
