"""Concurrent consumption of popped messages: no offsets, every message is acked or put off by itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.client.concurrent_job import ConcurrentJob
from penstock.client.listener import ConsumeStatus
from penstock.client.over_limit import OverLimit
from penstock.client.pop_consumption import PopConsumption
from penstock.client.pop_queue import PopQueue
from penstock.client.popped import PoppedMessage
from penstock.client.send_back import DEFAULT_MAX_RECONSUME
from penstock.client.stats import TopicStats
from penstock.client.workers import Job

if TYPE_CHECKING:
    from penstock.client.push_consumer import PushConsumer

log = logging.getLogger("penstock.client")

DEAD_LETTER_LEVEL: Final = -1
"""A listener's word for: do not try again."""


class PopJob(ConcurrentJob, kw_only=True):
    """A call with messages of one pop."""

    service: ConsumePop
    source: PopQueue
    messages: Sequence[PoppedMessage]

    def _begin(self, now: float) -> bool:
        if not self.service.may_begin(self.messages):
            return False
        for message in self.messages:
            message.started = now
        return True


class ConsumePop(PopConsumption):
    def __init__(self, consumer: PushConsumer) -> None:
        super().__init__(consumer, OverLimit(consumer, DEFAULT_MAX_RECONSUME))

    def _in_use(self, message: PoppedMessage, now: float) -> bool:
        return bool(message.started) and (now - message.started) * 1000 < self.timeout_ms

    def _hand_out(self, pop_queue: PopQueue, messages: Sequence[PoppedMessage]) -> None:
        is_async, batch = self.listeners.is_async(pop_queue.queue.topic), self._batch
        jobs = [
            PopJob(pop_queue.queue, service=self, source=pop_queue, messages=messages[start : start + batch])
            for start in range(0, len(messages), batch)
        ]
        rest = messages[self._consumer.pool.submit(jobs, is_async=is_async) * batch :]
        if rest:
            delay_ms = self._settings.timings.resubmit_ms
            log.info("%d popped message(s) are handed to listeners in %d ms", len(rest), delay_ms)
            self.loop.call_later(delay_ms / 1000, self._hand_out_rest, pop_queue, rest)

    def _hand_out_rest(self, pop_queue: PopQueue, messages: Sequence[PoppedMessage]) -> None:
        if not self.stopping:
            self._hand_out(pop_queue, [message for message in messages if not message.lost])

    def finished(self, jobs: list[Job]) -> None:
        acked: list[PoppedMessage] = []
        spent: dict[TopicStats, list[float]] = {}
        for job in jobs:
            assert isinstance(job, PopJob)
            if job.return_type is None:
                # The consumer stops, or a lease was over before the turn of its message came.
                for message in job.messages:
                    if not message.lost:
                        self.keeper.give_back(message)
                continue
            spent.setdefault(job.source.stats, []).append(job.spent_ms)
            count = len(job.messages)
            good = min(count, max(0, job.ack_index + 1)) if job.status is ConsumeStatus.SUCCESS else 0
            job.source.stats.consume_ok.add(good)
            if good == count:
                acked += job.messages
                continue
            acked += job.messages[:good]
            job.source.stats.consume_failed.add(count - good)
            for message in self._still_ours(job.messages[good:]):
                self._consumer.spawn(self._failed(message, job.delay_level))
        for stats, times_ms in spent.items():
            stats.consume_rt.add(sum(times_ms), len(times_ms))
        self.leases.ack_soon(self._still_ours(acked))

    async def _failed(self, message: PoppedMessage, level: int) -> None:
        """It comes again by itself, after the delay of its attempt or of the level the listener chose."""
        if level == DEAD_LETTER_LEVEL or self._over_limit.is_last(message):
            await self._dead(message)
            return
        delays = self._settings.pop_retry_delays_ms
        step = max(0, level or message.reconsume_times)
        await self._come_again(message, delays[min(step, len(delays) - 1)])
