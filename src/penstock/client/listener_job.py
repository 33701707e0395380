"""One listener call, from the messages that go in to the status that comes out.

It runs on a worker; everything it finds out is read on the event loop afterwards. Of a message consumed one
by one this is a good part of the cost, so what mostly happens stands here in line, and calls are kept for
what is rare.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol

from penstock.client.hooked import ConsumeHooks
from penstock.client.listener import ConsumeHookContext, Listeners, ReturnType, Status
from penstock.client.pulled import PulledMessage
from penstock.client.workers import Job
from penstock.message.queue import MessageQueue

_SUCCESS: Final = ReturnType.SUCCESS  # looking up a member of an enum takes long before Python 3.12


class ListenerService(Protocol):
    """What a listener call asks of the service that made it."""

    hooks: ConsumeHooks
    listeners: Listeners
    loop: asyncio.AbstractEventLoop
    stopping: bool
    timeout_ms: int

    def finished(self, jobs: list[Job]) -> None: ...


class ListenerJob:
    """Mixed into the context that the listener sees, which brings the slots of what is named here."""

    __slots__ = ()

    success: ClassVar[Any]
    service: ListenerService
    queue: MessageQueue
    messages: Sequence[PulledMessage]
    status: Any
    return_type: ReturnType | None
    """None until the listener was called."""
    spent_ms: float

    def run(self) -> None:
        service = self.service
        began = time.monotonic()
        if not self._begin(began):
            return
        hooked = service.hooks.before(self.queue, self.messages) if service.hooks.registered else None
        try:
            status = service.listeners.call(self.messages, self)
        except BaseException as error:  # also SystemExit: a listener must not be able to kill its worker
            self._raised(error)
        else:
            if status is self.success:
                self.status, self.return_type = status, _SUCCESS  # type: ignore[misc]  # see ListenerJob
            else:
                self._returned(status)
        self.spent_ms = spent_ms = (time.monotonic() - began) * 1000  # type: ignore[misc]  # see ListenerJob
        if hooked is not None or spent_ms >= service.timeout_ms:
            self._end(hooked)

    async def run_async(self) -> None:
        service = self.service
        began = service.loop.time()
        if not self._begin(began):
            return
        hooked = service.hooks.before(self.queue, self.messages) if service.hooks.registered else None
        try:
            status = await service.listeners.call_async(self.messages, self)
        except asyncio.CancelledError:
            if service.stopping:
                raise
            self._raised(RuntimeError("the listener was cancelled"))
        except Exception as error:
            self._raised(error)
        else:
            if status is self.success:
                self.status, self.return_type = status, _SUCCESS  # type: ignore[misc]  # see ListenerJob
            else:
                self._returned(status)
        self.spent_ms = spent_ms = (service.loop.time() - began) * 1000  # type: ignore[misc]  # see ListenerJob
        if hooked is not None or spent_ms >= service.timeout_ms:
            self._end(hooked)

    def _begin(self, now: float) -> bool:
        """The listener is about to be called; False if it must not be any more."""
        raise NotImplementedError

    def _returned(self, status: object) -> None:
        """Anything but success."""
        raise NotImplementedError

    def _raised(self, error: BaseException) -> None:
        raise NotImplementedError

    def _succeeded(self) -> bool:
        """For hooks: whether the status counts as success."""
        raise NotImplementedError

    def _end(self, hooked: ConsumeHookContext | None) -> None:
        if self.spent_ms >= self.service.timeout_ms and self.return_type in (
            ReturnType.SUCCESS,
            ReturnType.FAILED,
        ):
            self.return_type = ReturnType.TIME_OUT  # type: ignore[misc]  # see ListenerJob
        if hooked is not None:
            status: Status | None = self.status
            self.service.hooks.after(hooked, status, self.return_type, success=self._succeeded())
