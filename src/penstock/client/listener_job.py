"""One listener call, from the messages that go in to the status that comes out.

It runs on a worker; everything it finds out is read on the event loop afterwards.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from penstock.client.hooked import ConsumeHooks
from penstock.client.listener import ConsumeHookContext, Context, Listeners, ReturnType, Status
from penstock.client.pulled import PulledMessage
from penstock.client.workers import Job
from penstock.message.queue import MessageQueue


class ListenerService(Protocol):
    """What a listener call asks of the service that made it."""

    hooks: ConsumeHooks
    listeners: Listeners
    loop: asyncio.AbstractEventLoop
    stopping: bool
    timeout_ms: int

    def finished(self, jobs: list[Job]) -> None: ...


class ListenerJob(ABC):
    """Subclasses bring the slots."""

    __slots__ = ()

    service: ListenerService
    queue: MessageQueue
    messages: Sequence[PulledMessage]
    return_type: ReturnType | None
    """None until the listener was called."""
    spent_ms: float

    @abstractmethod
    def may_begin(self) -> bool:
        """Asked on the worker, just before the listener is called."""

    def run(self) -> None:
        service = self.service
        if not self.may_begin():
            return
        began = time.monotonic()
        self._begin(began)
        hooked = service.hooks.before(self.queue, self.messages)
        try:
            status = service.listeners.call(self.messages, self._context())
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
        self._begin(began)
        hooked = service.hooks.before(self.queue, self.messages)
        try:
            status = await service.listeners.call_async(self.messages, self._context())
        except asyncio.CancelledError:
            if service.stopping:
                raise
            self._raised(RuntimeError("the listener was cancelled"))
        except Exception as error:
            self._raised(error)
        else:
            self._returned(status)
        self._end((service.loop.time() - began) * 1000, hooked)

    @abstractmethod
    def _begin(self, now: float) -> None:
        """The listener is about to be called."""

    @abstractmethod
    def _context(self) -> Context:
        """What the listener is told besides the messages."""

    @abstractmethod
    def _returned(self, status: object) -> None: ...

    @abstractmethod
    def _raised(self, error: BaseException) -> None: ...

    @abstractmethod
    def _outcome(self) -> tuple[Status | None, bool]:
        """For hooks: the status, and whether it counts as success."""

    def _end(self, spent_ms: float, hooked: ConsumeHookContext | None) -> None:
        self.spent_ms = spent_ms  # type: ignore[misc]  # subclasses bring the slots
        if spent_ms >= self.service.timeout_ms and self.return_type in (
            ReturnType.SUCCESS,
            ReturnType.FAILED,
        ):
            self.return_type = ReturnType.TIME_OUT  # type: ignore[misc]  # as above
        if hooked is not None:
            status, success = self._outcome()
            self.service.hooks.after(hooked, status, self.return_type, success=success)
