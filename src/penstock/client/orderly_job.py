"""A call of an orderly listener."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.client.listener import OrderlyContext, OrderlyStatus, RetryLater, ReturnType
from penstock.client.listener_job import ListenerJob, ListenerService
from penstock.client.pulled import PulledMessage

log = logging.getLogger("penstock.client")


class OrderlyJob(OrderlyContext, ListenerJob, eq=False, gc=False, kw_only=True):
    """One call, and the context that the listener sees of it."""

    service: ListenerService
    messages: Sequence[PulledMessage]
    status: OrderlyStatus = OrderlyStatus.SUSPEND
    return_type: ReturnType | None = None
    spent_ms: float = 0.0

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
        if isinstance(error, RetryLater):
            self.suspend_ms = error.suspend_ms
            self.return_type = ReturnType.FAILED
            log.info("%s is suspended: %s", self.queue, error)
        else:
            self.return_type = ReturnType.EXCEPTION
            log.warning("listener failed, %s is suspended and tried again", self.queue, exc_info=error)

    def _succeeded(self) -> bool:
        return self.status in (OrderlyStatus.SUCCESS, OrderlyStatus.COMMIT)
