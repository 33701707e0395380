"""A call of an orderly listener."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.client.listener import OrderlyContext, OrderlyStatus, RetryLater, ReturnType
from penstock.client.listener_job import ListenerJob, ListenerService
from penstock.client.pulled import PulledMessage
from penstock.message.queue import MessageQueue

log = logging.getLogger("penstock.client")


class OrderlyJob(ListenerJob):
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
        self.return_type = None
        self.error: BaseException | None = None
        self.spent_ms = 0.0

    def _begin(self, now: float) -> None:
        """Nothing is noted: how long an orderly listener takes bounds nothing."""

    def _context(self) -> OrderlyContext:
        return self.context

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

    def _outcome(self) -> tuple[OrderlyStatus, bool]:
        return self.status, self.status in (OrderlyStatus.SUCCESS, OrderlyStatus.COMMIT)
