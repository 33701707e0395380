"""A call of a concurrent listener."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.client.listener import ALL_ACKED, ConsumeContext, ConsumeStatus, RetryLater, ReturnType
from penstock.client.listener_job import ListenerJob, ListenerService
from penstock.client.pop_queue import PopQueue
from penstock.client.process_queue import ProcessQueue
from penstock.client.pulled import PulledMessage

log = logging.getLogger("penstock.client")


class ConcurrentJob(ConsumeContext, ListenerJob):
    """One call, and the context that the listener sees of it. `source` is where the messages wait."""

    __slots__ = ("messages", "return_type", "service", "source", "spent_ms", "status")

    source: ProcessQueue | PopQueue

    def __init__(
        self, service: ListenerService, source: ProcessQueue | PopQueue, messages: Sequence[PulledMessage]
    ) -> None:
        self.source = source
        self.queue = source.queue
        self.ack_index = ALL_ACKED
        self.delay_level = 0
        self.service = service
        self.messages = messages
        self.status: ConsumeStatus | None = None
        self.return_type = None
        self.spent_ms = 0.0

    def _begin(self, now: float) -> None:
        for message in self.messages:
            message.started = now

    def _context(self) -> ConsumeContext:
        return self

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

    def _outcome(self) -> tuple[ConsumeStatus | None, bool]:
        return self.status, self.status is ConsumeStatus.SUCCESS
