"""One listener call, from the batch that goes in to the status that comes out: concurrent consumption."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from penstock.client.hooked import ConsumeHooks
from penstock.client.listener import (
    ALL_ACKED,
    ConsumeContext,
    ConsumeHookContext,
    ConsumeStatus,
    Listeners,
    RetryLater,
    ReturnType,
)
from penstock.client.pulled import PulledMessage
from penstock.client.workers import Job
from penstock.message.queue import MessageQueue

log = logging.getLogger("penstock.client")


class ListenerService(Protocol):
    """What a listener call asks of the service that made it."""

    hooks: ConsumeHooks
    listeners: Listeners
    loop: asyncio.AbstractEventLoop
    stopping: bool
    timeout_ms: int

    def finished(self, jobs: list[Job]) -> None: ...


class ConcurrentJob(ConsumeContext, ABC):
    """One listener call, and the context that the listener sees of it.

    Runs on a worker; everything it finds out is read on the event loop afterwards.
    """

    __slots__ = ("messages", "return_type", "service", "spent_ms", "status")

    def __init__(
        self, service: ListenerService, queue: MessageQueue, messages: Sequence[PulledMessage]
    ) -> None:
        self.queue = queue
        self.ack_index = ALL_ACKED
        self.delay_level = 0
        self.service = service
        self.messages = messages
        self.status: ConsumeStatus | None = None
        self.return_type: ReturnType | None = None
        self.spent_ms = 0.0

    @abstractmethod
    def may_begin(self) -> bool:
        """Asked on the worker, just before the listener is called."""

    def run(self) -> None:
        service = self.service
        if not self.may_begin():
            return
        began = time.monotonic()
        for message in self.messages:
            message.started = began
        hooked = service.hooks.before(self.queue, self.messages)
        try:
            status = service.listeners.call(self.messages, self)
        except BaseException as error:  # also SystemExit: a listener must not be able to kill its worker
            self._raised(error)
        else:
            self._returned(status)
        self._end((time.monotonic() - began) * 1000, hooked)

    async def run_async(self) -> None:
        service = self.service
        if not self.may_begin():
            return
        began = service.loop.time()
        for message in self.messages:
            message.started = began
        hooked = service.hooks.before(self.queue, self.messages)
        try:
            status = await service.listeners.call_async(self.messages, self)
        except asyncio.CancelledError:
            if service.stopping:
                raise
            self._raised(RuntimeError("the listener was cancelled"))
        except Exception as error:
            self._raised(error)
        else:
            self._returned(status)
        self._end((service.loop.time() - began) * 1000, hooked)

    def _returned(self, status: object) -> None:
        if status is ConsumeStatus.SUCCESS:
            self.status, self.return_type = ConsumeStatus.SUCCESS, ReturnType.SUCCESS
        elif status is None:
            self.status, self.return_type = ConsumeStatus.RECONSUME_LATER, ReturnType.RETURNNULL
        else:
            if status is not ConsumeStatus.RECONSUME_LATER:
                log.error("a listener must return a ConsumeStatus, not %r; its messages are retried", status)
            self.status, self.return_type = ConsumeStatus.RECONSUME_LATER, ReturnType.FAILED

    def _raised(self, error: BaseException) -> None:
        self.status, self.return_type = ConsumeStatus.RECONSUME_LATER, ReturnType.EXCEPTION
        count = len(self.messages)
        if isinstance(error, RetryLater):
            self.delay_level = error.level
            self.return_type = ReturnType.FAILED
            log.info("%d message(s) of %s are retried: %s", count, self.queue, error)
        else:
            log.warning("listener failed, %d message(s) of %s are retried", count, self.queue, exc_info=error)

    def _end(self, spent_ms: float, hooked: ConsumeHookContext | None) -> None:
        self.spent_ms = spent_ms
        if spent_ms >= self.service.timeout_ms and self.return_type in (
            ReturnType.SUCCESS,
            ReturnType.FAILED,
        ):
            self.return_type = ReturnType.TIME_OUT
        if hooked is not None:
            success = self.status is ConsumeStatus.SUCCESS
            self.service.hooks.after(hooked, self.status, self.return_type, success=success)
