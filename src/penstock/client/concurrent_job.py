"""A call of a concurrent listener."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.client.listener import ConsumeContext, ConsumeStatus, RetryLater, ReturnType
from penstock.client.listener_job import ListenerJob, ListenerService
from penstock.client.pop_queue import PopQueue
from penstock.client.process_queue import ProcessQueue
from penstock.client.pulled import PulledMessage

log = logging.getLogger("penstock.client")


class ConcurrentJob(ConsumeContext, ListenerJob, eq=False, gc=False, kw_only=True):
    """One call, and the context that the listener sees of it. `source` is where the messages wait."""

    service: ListenerService
    source: ProcessQueue | PopQueue
    messages: Sequence[PulledMessage]
    status: ConsumeStatus | None = None
    return_type: ReturnType | None = None
    spent_ms: float = 0.0

    def _returned(self, status: object) -> None:
        self.status = ConsumeStatus.RECONSUME_LATER
        if status is None:
            self.return_type = ReturnType.RETURNNULL
            return
        self.return_type = ReturnType.FAILED
        if status is not ConsumeStatus.RECONSUME_LATER:
            log.error("a listener must return a ConsumeStatus, not %r; its messages are retried", status)

    def _raised(self, error: BaseException) -> None:
        self.status, self.return_type = ConsumeStatus.RECONSUME_LATER, ReturnType.EXCEPTION
        count = len(self.messages)
        if isinstance(error, RetryLater):
            self.delay_level = error.level
            self.return_type = ReturnType.FAILED
            log.info("%d message(s) of %s are retried: %s", count, self.queue, error)
        else:
            log.warning("listener failed, %d message(s) of %s are retried", count, self.queue, exc_info=error)

    def _succeeded(self) -> bool:
        return self.status is ConsumeStatus.SUCCESS
