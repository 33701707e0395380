"""Orderly consumption of popped messages: the broker gives out a queue's next batch when this one is settled.

A batch of one queue is a chain: its messages go to the listener one after the other and are acked in turn.
If one fails, it and all behind it go back to the broker and come again, in order, here or elsewhere.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.client.consume_orderly import NO_LIMIT, suspend_ms
from penstock.client.listener import OrderlyStatus
from penstock.client.orderly_job import OrderlyJob
from penstock.client.over_limit import OverLimit
from penstock.client.pop_consumption import PopConsumption
from penstock.client.pop_queue import PopQueue
from penstock.client.popped import PoppedMessage
from penstock.client.workers import Job
from penstock.message.queue import MessageQueue

if TYPE_CHECKING:
    from penstock.client.push_consumer import PushConsumer

log = logging.getLogger("penstock.client")


class Chain:
    """What is left of one queue's batch."""

    __slots__ = ("messages", "moved", "pop_queue", "queue", "uncommitted")

    def __init__(self, queue: MessageQueue, pop_queue: PopQueue, now: float) -> None:
        self.queue = queue
        self.pop_queue = pop_queue
        self.messages: deque[PoppedMessage] = deque()
        """From the one that a listener has, or gets next, to the last."""
        self.uncommitted: list[PoppedMessage] = []
        """Consumed by a listener that commits by itself and has not done so yet."""
        self.moved = now
        """When a listener last began or ended."""


class PopOrderlyJob(OrderlyJob, kw_only=True):
    service: ConsumePopOrderly
    messages: Sequence[PoppedMessage]
    chain: Chain

    def _begin(self, now: float) -> bool:
        return self.service.may_begin(self.messages)


class ConsumePopOrderly(PopConsumption):
    def __init__(self, consumer: PushConsumer) -> None:
        super().__init__(consumer, OverLimit(consumer, NO_LIMIT))
        self._chains: dict[MessageQueue, deque[Chain]] = {}
        """The first of a queue is worked on. A second one waits only while a listener outlives its lease."""
        self._running: set[MessageQueue] = set()

    def _in_use(self, message: PoppedMessage, now: float) -> bool:
        """The whole chain is kept while its head is worked on, or others would get its end first."""
        return any(
            (now - chain.moved) * 1000 < self.timeout_ms
            for chain in self._chains.get(message.queue, ())
            if message in chain.messages or message in chain.uncommitted
        )

    def _hand_out(self, pop_queue: PopQueue, messages: Sequence[PoppedMessage]) -> None:
        chains: dict[MessageQueue, Chain] = {}
        for message in messages:
            chain = chains.get(message.queue)
            if chain is None:
                chain = chains[message.queue] = Chain(message.queue, pop_queue, self.loop.time())
                self._chains.setdefault(message.queue, deque()).append(chain)
            chain.messages.append(message)
        for queue in chains:
            self._step(queue)

    def _step(self, queue: MessageQueue) -> None:
        """Hands the next messages of a queue to a listener, unless it has some."""
        while queue not in self._running and queue in self._chains:
            chain = self._chains[queue][0]
            batch = list(chain.messages)[: self._batch]
            if batch and self.may_begin(batch):
                self._begin(chain, batch)
                return
            self._end(chain)

    def _begin(self, chain: Chain, batch: list[PoppedMessage]) -> None:
        chain.moved = self.loop.time()
        job = PopOrderlyJob(chain.queue, service=self, chain=chain, messages=batch)
        self._running.add(chain.queue)
        if not self._consumer.pool.submit([job], is_async=self.listeners.is_async(batch[0].topic)):
            self._running.discard(chain.queue)
            delay_ms = self._settings.timings.resubmit_ms
            self.loop.call_later(delay_ms / 1000, self._step, chain.queue)

    def _end(self, chain: Chain) -> None:
        """Nothing more of it is consumed here: what is left comes again."""
        self.leases.ack_soon(self._still_ours(chain.uncommitted))
        for message in chain.messages:
            if not message.lost:
                self.keeper.give_back(message)
        chains = self._chains[chain.queue]
        chains.remove(chain)
        if not chains:
            del self._chains[chain.queue]

    # ---- results ------------------------------------------------------------------------------------

    def finished(self, jobs: list[Job]) -> None:
        for job in jobs:
            assert isinstance(job, PopOrderlyJob)
            chain = job.chain
            self._running.discard(chain.queue)
            chain.moved = self.loop.time()
            if job.return_type is None:
                self._end(chain)
            elif job.status is OrderlyStatus.SUSPEND or (
                job.status is OrderlyStatus.ROLLBACK and not job.auto_commit
            ):
                self._failed(job)
            else:
                self._succeeded(job)
            self._step(chain.queue)

    def _succeeded(self, job: PopOrderlyJob) -> None:
        chain = job.chain
        chain.pop_queue.stats.consume_rt.add(job.spent_ms)
        chain.pop_queue.stats.consume_ok.add(len(job.messages))
        for _ in job.messages:
            chain.uncommitted.append(chain.messages.popleft())
        if job.auto_commit or job.status is OrderlyStatus.COMMIT:
            acked = self._still_ours(chain.uncommitted)
            if len(acked) < len(chain.uncommitted):
                # Somebody else may have the queue by now: going on would be out of order.
                chain.uncommitted = []
                self.leases.ack_soon(acked)
                self._end(chain)
                return
            chain.uncommitted = []
            self.leases.ack_soon(acked)

    def _failed(self, job: PopOrderlyJob) -> None:
        chain = job.chain
        stats = chain.pop_queue.stats
        stats.consume_rt.add(job.spent_ms)
        stats.consume_failed.add(len(job.messages))
        if all(map(self._over_limit.is_last, job.messages)) and self._still_ours(job.messages):
            for message in job.messages:
                chain.messages.popleft()
                self._consumer.spawn(self._dead(message))
            return
        delay_ms = suspend_ms(job, self._settings)
        again = (
            [*chain.uncommitted, *chain.messages] if job.status is OrderlyStatus.ROLLBACK else chain.messages
        )
        for message in self._still_ours(list(again)):
            self._consumer.spawn(self._come_again(message, delay_ms))
        if job.status is OrderlyStatus.ROLLBACK:
            chain.uncommitted = []
        chain.messages.clear()
        self._end(chain)
