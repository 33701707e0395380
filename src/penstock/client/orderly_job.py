"""One listener call, from the batch that goes in to the status that comes out: orderly consumption."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from penstock.client.concurrent_job import ListenerService
from penstock.client.listener import ConsumeHookContext, OrderlyContext, OrderlyStatus, RetryLater, ReturnType
from penstock.client.pulled import PulledMessage
from penstock.message.queue import MessageQueue

log = logging.getLogger("penstock.client")


class OrderlyJob(ABC):
    __slots__ = (
        "context",
        "error",
        "messages",
        "queue",
        "return_type",
        "service",
        "spent_ms",
        "status",
    )

    def __init__(
        self, service: ListenerService, queue: MessageQueue, messages: Sequence[PulledMessage]
    ) -> None:
        self.service = service
        self.queue = queue
        self.messages = messages
        self.context = OrderlyContext(queue)
        self.status = OrderlyStatus.SUSPEND
        self.return_type: ReturnType | None = None
        self.error: BaseException | None = None
        self.spent_ms = 0.0

    @abstractmethod
    def may_begin(self) -> bool:
        """Asked on the worker, just before the listener is called."""

    def run(self) -> None:
        service = self.service
        if not self.may_begin():
            return
        began = time.monotonic()
        hooked = service.hooks.before(self.queue, self.messages)
        try:
            status = service.listeners.call(self.messages, self.context)
        except BaseException as error:  # also SystemExit: a listener must not be able to kill its worker
            self._raised(error)
        else:
            self._returned(status)
        self._end(time.monotonic() - began, hooked)

    async def run_async(self) -> None:
        service = self.service
        if not self.may_begin():
            return
        began = service.loop.time()
        hooked = service.hooks.before(self.queue, self.messages)
        try:
            status = await service.listeners.call_async(self.messages, self.context)
        except asyncio.CancelledError:
            if service.stopping:
                raise
            self._raised(RuntimeError("the listener was cancelled"))
        except Exception as error:
            self._raised(error)
        else:
            self._returned(status)
        self._end(service.loop.time() - began, hooked)

    def _returned(self, status: object) -> None:
        if status is None:
            self.return_type = ReturnType.RETURNNULL
        elif not isinstance(status, OrderlyStatus):
            log.error(
                "an orderly listener must return an OrderlyStatus, not %r; its messages come again", status
            )
            self.return_type = ReturnType.FAILED
        else:
            self.status = status
            self.return_type = ReturnType.FAILED if status is OrderlyStatus.SUSPEND else ReturnType.SUCCESS

    def _raised(self, error: BaseException) -> None:
        self.error = error
        if isinstance(error, RetryLater):
            self.context.suspend_ms = error.suspend_ms
            self.return_type = ReturnType.FAILED
            log.info("%s is suspended: %s", self.queue, error)
        else:
            self.return_type = ReturnType.EXCEPTION
            log.warning("listener failed, %s is suspended and tried again", self.queue, exc_info=error)

    def _end(self, spent: float, hooked: ConsumeHookContext | None) -> None:
        self.spent_ms = spent * 1000
        if self.spent_ms >= self.service.timeout_ms and self.return_type in (
            ReturnType.SUCCESS,
            ReturnType.FAILED,
        ):
            self.return_type = ReturnType.TIME_OUT
        if hooked is not None:
            success = self.status in (OrderlyStatus.SUCCESS, OrderlyStatus.COMMIT)
            self.service.hooks.after(hooked, self.status, self.return_type, success=success)
