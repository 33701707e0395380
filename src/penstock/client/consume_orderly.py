"""Orderly consumption: one listener at a time for a queue, in queue order, while the broker's lock is held.

Each queue has at most one task: take the lowest messages, call the listener on a worker, act on the result
on the event loop, go on. The state of a queue is touched on the loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.client.config import PushSettings
from penstock.client.direct import consume_directly
from penstock.client.hooked import ConsumeHooks
from penstock.client.listener import OrderlyContext, OrderlyStatus
from penstock.client.orderly_job import OrderlyJob
from penstock.client.process_queue import NOTHING, ProcessQueue
from penstock.client.pulled import PulledMessage
from penstock.client.send_back import SendBack, restore_topics
from penstock.client.workers import Job
from penstock.errors import PenstockError
from penstock.message.names import is_retry_topic
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import ConsumeMessageDirectlyResult

if TYPE_CHECKING:
    from penstock.client.push_consumer import PushConsumer

log = logging.getLogger("penstock.client")

NO_LIMIT: Final = 2**31 - 1
RESUME_MS: Final = 10
LOCK_SOON_MS: Final = 100
SHORTEST_SUSPEND_MS: Final = 10
LONGEST_SUSPEND_MS: Final = 30_000


class PullOrderlyJob(OrderlyJob, kw_only=True):
    """A call with messages of a process queue."""

    process_queue: ProcessQueue

    def _begin(self, now: float) -> bool:
        return not (self.process_queue.dropped or self.service.stopping)


class ConsumeOrderly:
    def __init__(self, consumer: PushConsumer) -> None:
        settings = consumer.settings
        self._consumer = consumer
        self._settings = settings
        self._timings = settings.timings
        self.loop = consumer.instance.loop
        self.listeners = consumer.listeners
        self.hooks = ConsumeHooks(settings.group, consumer.consume_hooks)
        self.timeout_ms = settings.consume_timeout_ms
        self.stopping = False
        self._limit = NO_LIMIT if settings.max_reconsume_times == -1 else settings.max_reconsume_times
        self._send_back = SendBack(consumer.instance, settings.group, self._limit)
        self._batch = 1 if self.listeners.one_by_one else settings.consume_batch
        self._running: dict[MessageQueue, ProcessQueue] = {}
        self._began: dict[MessageQueue, float] = {}
        self.pool = consumer.pool

    def start(self) -> None:
        self._consumer.spawn(self._renew_for_ever())

    # ---- one step of a queue ------------------------------------------------------------------------

    def submit(
        self, process_queue: ProcessQueue, messages: Sequence[PulledMessage], *, dispatch: bool
    ) -> None:
        """Messages are taken from the queue in order, so only the start of a task matters here."""
        if is_retry_topic(process_queue.queue.topic):
            restore_topics(messages, self._settings.group)
        if dispatch:
            self._step(process_queue)

    def _step_later(self, process_queue: ProcessQueue, delay_ms: int) -> None:
        self._began.pop(process_queue.queue, None)
        self.loop.call_later(delay_ms / 1000, self._step, process_queue)

    def _step(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        if process_queue.dropped or self.stopping:
            return
        if queue in self._running:
            # A listener of this queue's former life still runs.
            self._step_later(process_queue, LOCK_SOON_MS)
            return
        now = self.loop.time()
        if not process_queue.locked or process_queue.lock_expired(now * 1000, self._timings.lock_max_live_ms):
            self._lock_later(process_queue, LOCK_SOON_MS)
            return
        began = self._began.setdefault(queue, now)
        if (now - began) * 1000 > self._timings.orderly_continuous_ms:
            # Others wait for a worker, too.
            self._step_later(process_queue, RESUME_MS)
            return
        messages = process_queue.take(self._batch, now * 1000)
        if not messages:
            self._began.pop(queue, None)
            return
        job = PullOrderlyJob(queue, service=self, process_queue=process_queue, messages=messages)
        process_queue.listener_done = asyncio.Event()
        self._running[queue] = process_queue
        if not self.pool.submit([job], is_async=self.listeners.is_async(messages[0].topic)):
            self._ended(process_queue)
            process_queue.again(messages)
            self._step_later(process_queue, self._timings.resubmit_ms)

    def _ended(self, process_queue: ProcessQueue) -> None:
        self._running.pop(process_queue.queue, None)
        if process_queue.listener_done is not None:
            process_queue.listener_done.set()
            process_queue.listener_done = None

    # ---- results ------------------------------------------------------------------------------------

    def finished(self, jobs: list[Job]) -> None:
        for job in jobs:
            assert isinstance(job, PullOrderlyJob)
            process_queue = job.process_queue
            self._ended(process_queue)
            if job.return_type is None:  # not begun: the queue was given up, or the consumer stops
                process_queue.again(job.messages)
                continue
            process_queue.stats.consume_rt.add(job.spent_ms)
            if process_queue.dropped:
                continue
            if job.status is OrderlyStatus.SUSPEND:
                process_queue.stats.consume_failed.add(len(job.messages))
                self._suspended(job)
            else:
                self._settled(job)

    def _settled(self, job: PullOrderlyJob) -> None:
        process_queue, status = job.process_queue, job.status
        if job.auto_commit:
            if status is not OrderlyStatus.SUCCESS:
                log.warning(
                    "%s has auto_commit on, so %s counts as SUCCESS", process_queue.queue, status.name
                )
            process_queue.stats.consume_ok.add(len(job.messages))
            self._commit(process_queue)
        elif status is OrderlyStatus.ROLLBACK:
            process_queue.rollback()
            self._step_later(process_queue, suspend_ms(job, self._settings))
            return
        elif status is OrderlyStatus.COMMIT:
            self._commit(process_queue)
        else:
            process_queue.stats.consume_ok.add(len(job.messages))
        self._step(process_queue)

    def _commit(self, process_queue: ProcessQueue) -> None:
        offset = process_queue.commit()
        if offset != NOTHING and not process_queue.dropped:
            self._consumer.offset_store.update(process_queue.queue, offset, increase_only=False)

    def _suspended(self, job: PullOrderlyJob) -> None:
        if all(message.reconsume_times < self._limit for message in job.messages):
            for message in job.messages:
                message.reconsume_times += 1
            self._again(job)
        else:
            self._consumer.spawn(self._give_away(job))

    async def _give_away(self, job: PullOrderlyJob) -> None:
        """Messages at their last attempt leave the queue for the retry topic, from where the broker moves
        them to the dead letters. If any message has to be tried again, the whole batch is."""
        process_queue = job.process_queue
        suspend = False
        for message in job.messages:
            if message.reconsume_times >= self._limit and await self._send_back.produce(
                message, self._limit, again=0
            ):
                continue
            message.reconsume_times += 1
            suspend = True
        if process_queue.dropped:
            return
        if suspend:
            self._again(job)
        else:
            if job.auto_commit:
                self._commit(process_queue)
            self._step(process_queue)

    def _again(self, job: PullOrderlyJob) -> None:
        job.process_queue.again(job.messages)
        self._step_later(job.process_queue, suspend_ms(job, self._settings))

    # ---- locks --------------------------------------------------------------------------------------

    def _lock_later(self, process_queue: ProcessQueue, delay_ms: int) -> None:
        async def lock() -> None:
            await asyncio.sleep(delay_ms / 1000)
            granted = await self._consumer.lock(process_queue.queue)
            if granted:
                self._granted(process_queue)
            self._step_later(process_queue, RESUME_MS if granted else self._timings.relock_failed_ms)

        self._began.pop(process_queue.queue, None)
        self._consumer.spawn(lock())

    def _granted(self, process_queue: ProcessQueue) -> None:
        process_queue.locked = True
        process_queue.last_lock_ms = self.loop.time() * 1000

    async def _renew_for_ever(self) -> None:
        await asyncio.sleep(self._timings.lock_first_ms / 1000)
        while True:
            await self.renew_locks()
            await asyncio.sleep(self._timings.lock_interval_ms / 1000)

    async def renew_locks(self) -> None:
        """A lock that is refused is lost at once; where the broker does not answer it runs out by itself."""
        for broker_name, process_queues in self._by_broker().items():
            queues = [process_queue.queue for process_queue in process_queues]
            try:
                granted = await self._api_lock(broker_name, queues)
            except PenstockError as error:
                log.warning("locks of %d queue(s) on %s not renewed: %s", len(queues), broker_name, error)
                continue
            for process_queue in process_queues:
                if process_queue.queue in granted:
                    self._granted(process_queue)
                elif not process_queue.dropped:
                    process_queue.locked = False
                    log.warning("the lock of %s is lost, its consumption waits", process_queue.queue)

    def _by_broker(self, *, with_dropped: bool = False) -> dict[str, list[ProcessQueue]]:
        result: dict[str, list[ProcessQueue]] = {}
        for queue, process_queue in self._consumer.rebalancer.queues.items():
            if with_dropped or not process_queue.dropped:
                result.setdefault(queue.broker_name, []).append(process_queue)
        return result

    def broker_lost(self, broker_name: str) -> None:
        """A broker that was restarted has forgotten its locks and may give them to others: nothing more is
        consumed until they are taken anew."""
        for process_queue in self._by_broker().get(broker_name, []):
            process_queue.locked = False

    async def _api_lock(self, broker_name: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        instance = self._consumer.instance
        address = await instance.master_address(queues[0])
        return await instance.api.lock_queues(address, self._consumer.group, self._consumer.client_id, queues)

    async def release(self, process_queue: ProcessQueue) -> bool:
        """Whether a dropped queue may be let go: no listener runs, or it runs for too long.

        The time counts from the last renewal, but not from before the queue was asked back: the renewal may
        lie that far back already, and a second listener would begin beside one that has only begun.
        """
        now_ms = self.loop.time() * 1000
        if process_queue.release_ms is None:
            process_queue.release_ms = now_ms
        since_ms = max(process_queue.last_lock_ms, process_queue.release_ms)
        if now_ms > since_ms + self._timings.unlock_delay_ms:
            return True
        if process_queue.listener_done is not None:
            try:
                async with asyncio.timeout(self._timings.unlock_wait_ms / 1000):
                    await process_queue.listener_done.wait()
            except TimeoutError:
                process_queue.unlock_tries += 1
                log.info("%s is given up when its listener has returned", process_queue.queue)
                return False
        return True

    async def unlock_all(self) -> None:
        """Also queues given up whose listener had not returned: their locks would keep others out."""
        for process_queues in self._by_broker(with_dropped=True).values():
            await self.unlock([process_queue.queue for process_queue in process_queues], oneway=False)

    async def unlock(self, queues: Sequence[MessageQueue], *, oneway: bool) -> None:
        consumer = self._consumer
        try:
            address = await consumer.instance.master_address(queues[0])
            await consumer.instance.api.unlock_queues(
                address, consumer.group, consumer.client_id, queues, oneway=oneway
            )
        except PenstockError as error:
            log.warning("%s not unlocked, the lock runs out by itself: %s", queues, error)

    async def consume_directly(self, message: PulledMessage) -> ConsumeMessageDirectlyResult:
        return await consume_directly(self.listeners, message, self._settings.group, orderly=True)

    # ---- end ----------------------------------------------------------------------------------------

    async def stop(self, timeout_ms: int) -> None:
        self.stopping = True
        unfinished = await self.pool.drain(timeout_ms)
        if unfinished:
            log.warning(
                "%d listener call(s) did not end in %d ms; their messages come again", unfinished, timeout_ms
            )
        self.pool.stop()


def suspend_ms(context: OrderlyContext, settings: PushSettings) -> int:
    """How long a queue waits after a listener suspended it."""
    wanted = settings.suspend_ms if context.suspend_ms == -1 else context.suspend_ms
    return max(SHORTEST_SUSPEND_MS, min(wanted, LONGEST_SUSPEND_MS))
