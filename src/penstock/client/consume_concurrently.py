"""Concurrent consumption: listener batches on workers, acknowledged in any order, committed in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, cast

from penstock.client.concurrent_job import ConcurrentJob
from penstock.client.config import MessageModel
from penstock.client.direct import consume_directly
from penstock.client.hooked import ConsumeHooks
from penstock.client.listener import ConsumeStatus
from penstock.client.process_queue import NOTHING, ProcessQueue
from penstock.client.pulled import PulledMessage
from penstock.client.send_back import DEFAULT_MAX_RECONSUME, EXPIRED_LEVEL, SendBack, restore_topics
from penstock.client.workers import Job
from penstock.message.names import is_retry_topic
from penstock.wire.bodies import ConsumeMessageDirectlyResult

if TYPE_CHECKING:
    from penstock.client.push_consumer import PushConsumer

log = logging.getLogger("penstock.client")

CLEAN_AT_ONCE = 16
"""Expired messages sent back for one queue in one round."""


class PullJob(ConcurrentJob, kw_only=True):
    """A call with messages of a process queue."""

    source: ProcessQueue

    def _begin(self, now: float) -> bool:
        if self.source.dropped or self.service.stopping:
            return False
        for message in self.messages:
            message.started = now
        return True


class _Done:
    """What several jobs of one queue add up to."""

    __slots__ = ("calls", "messages", "spent_ms")

    def __init__(self) -> None:
        self.messages: list[PulledMessage] = []
        self.calls = 0
        self.spent_ms = 0.0


class ConsumeConcurrently:
    def __init__(self, consumer: PushConsumer) -> None:
        settings = consumer.settings
        self._consumer = consumer
        self._settings = settings
        self.loop = consumer.instance.loop
        self.listeners = consumer.listeners
        self.hooks = ConsumeHooks(settings.group, consumer.consume_hooks)
        self.timeout_ms = settings.consume_timeout_ms
        self.stopping = False
        self._broadcasting = settings.message_model is MessageModel.BROADCASTING
        maximum = settings.max_reconsume_times
        self._send_back = SendBack(
            consumer.instance, settings.group, DEFAULT_MAX_RECONSUME if maximum == -1 else maximum
        )
        self.pool = consumer.pool
        self._batch = 1 if self.listeners.one_by_one else settings.consume_batch
        self._retrying: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if not self._broadcasting:
            self._consumer.spawn(self._clean_for_ever())

    # ---- submission ---------------------------------------------------------------------------------

    def submit(
        self, process_queue: ProcessQueue, messages: Sequence[PulledMessage], *, dispatch: bool
    ) -> None:
        """`dispatch` is for orderly consumption; here every message is handed out as it comes."""
        if self.stopping:
            return
        topic, batch = process_queue.queue.topic, self._batch
        retried = is_retry_topic(topic)
        if retried:
            restore_topics(messages, self._settings.group)
        queue = process_queue.queue
        batches = (
            [[message] for message in messages]
            if batch == 1
            else [messages[start : start + batch] for start in range(0, len(messages), batch)]
        )
        jobs = [PullJob(queue, service=self, source=process_queue, messages=messages) for messages in batches]
        done = 0
        # Retried messages are of any topic, and each topic may have a handler of its own kind.
        kinds = groupby(jobs, self._is_async) if retried else [(self.listeners.is_async(topic), jobs)]
        for is_async, kind in kinds:
            wanted = list(kind)
            taken = self.pool.submit(wanted, is_async=is_async)
            done += taken
            if taken < len(wanted):
                self._submit_later(process_queue, messages[done * batch :])
                return

    def _is_async(self, job: PullJob) -> bool:
        return self.listeners.is_async(job.messages[0].topic)

    def _submit_later(self, process_queue: ProcessQueue, messages: Sequence[PulledMessage]) -> None:
        delay_ms = self._settings.timings.resubmit_ms
        log.info(
            "%d message(s) of %s are handed to listeners in %d ms",
            len(messages),
            process_queue.queue,
            delay_ms,
        )

        def again() -> None:
            if not process_queue.dropped and not self.stopping:
                self.submit(process_queue, messages, dispatch=True)

        self.loop.call_later(delay_ms / 1000, again)

    # ---- results ------------------------------------------------------------------------------------

    def finished(self, jobs: list[Job]) -> None:
        done: dict[ProcessQueue, _Done] = {}
        success = ConsumeStatus.SUCCESS
        for job in cast("list[PullJob]", jobs):
            process_queue = job.source
            # A dropped queue belongs to somebody else by now, who gets these messages again.
            if process_queue.dropped or job.return_type is None:
                continue
            entry = done.get(process_queue)
            if entry is None:
                entry = done[process_queue] = _Done()
            entry.calls += 1
            entry.spent_ms += job.spent_ms
            if job.status is success and job.ack_index >= len(job.messages) - 1:
                entry.messages += job.messages
            else:
                self._failed(job, entry)
        for process_queue, entry in done.items():
            stats = process_queue.stats
            stats.consume_rt.add(entry.spent_ms, entry.calls)
            stats.consume_ok.add(len(entry.messages))
            self._commit(process_queue, entry.messages)

    def _failed(self, job: PullJob, entry: _Done) -> None:
        """Some or all messages of the job failed: those after its ack index."""
        acked = max(0, job.ack_index + 1) if job.status is ConsumeStatus.SUCCESS else 0
        failed = len(job.messages) - acked
        job.source.stats.consume_failed.add(failed)
        if self._broadcasting:
            log.warning("%d message(s) of %s failed; broadcasting does not retry", failed, job.queue)
            self._commit(job.source, job.messages[acked:])
            entry.messages += job.messages[:acked]
            return
        entry.messages += job.messages[:acked]
        task = self.loop.create_task(self._send_failed_back(job, job.messages[acked:]))
        self._retrying.add(task)
        task.add_done_callback(self._retrying.discard)

    def _commit(self, process_queue: ProcessQueue, messages: Sequence[PulledMessage]) -> None:
        offset = process_queue.remove(messages, self._consumer.instance.now_ms())
        if offset != NOTHING and not process_queue.dropped:
            self._consumer.offset_store.update(process_queue.queue, offset, increase_only=True)

    async def _send_failed_back(self, job: PullJob, failed: Sequence[PulledMessage]) -> None:
        process_queue = job.source
        kept: list[PulledMessage] = []
        for message in failed:
            if not process_queue.holds(message):  # the cleaner sent it back already
                continue
            try:
                sent = await self._send_back.send_back(message, job.delay_level)
            except Exception:
                log.exception("message %s could not be sent back", message.message_id)
                sent = False
            if not sent:
                message.reconsume_times += 1
                kept.append(message)
        if process_queue.dropped:
            return
        held = {id(message) for message in kept}
        self._commit(process_queue, [message for message in failed if id(message) not in held])
        if kept:
            self._submit_later(process_queue, kept)

    # ---- messages held too long ---------------------------------------------------------------------

    async def _clean_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.timeout_ms / 1000)
            for process_queue in list(self._consumer.rebalancer.queues.values()):
                await self.clean_expired(process_queue)

    async def clean_expired(self, process_queue: ProcessQueue) -> None:
        """A listener that hangs holds its message and pins the offset: after the time-out the message at the
        head is sent back for somebody else. The listener itself cannot be stopped."""
        for _ in range(min(process_queue.count, CLEAN_AT_ONCE)):
            message = process_queue.first
            if message is None or not message.started or process_queue.dropped:
                return
            if (self.loop.time() - message.started) * 1000 <= self.timeout_ms:
                return
            log.warning("message %s is with a listener for too long, it is sent back", message.message_id)
            if not await self._send_back.send_back(message, EXPIRED_LEVEL):
                return
            if process_queue.first is message:
                self._commit(process_queue, [message])

    async def consume_directly(self, message: PulledMessage) -> ConsumeMessageDirectlyResult:
        return await consume_directly(self.listeners, message, self._settings.group, orderly=False)

    # ---- end ----------------------------------------------------------------------------------------

    async def stop(self, timeout_ms: int) -> None:
        """Running listeners may finish within the time; what has not begun is left to the next owner."""
        self.stopping = True
        deadline = self.loop.time() + timeout_ms / 1000
        unfinished = await self.pool.drain(timeout_ms)
        if unfinished:
            log.warning(
                "%d listener call(s) did not end in %d ms; their messages come again", unfinished, timeout_ms
            )
        if self._retrying:
            await asyncio.wait(self._retrying, timeout=max(0.0, deadline - self.loop.time()))
        self.pool.stop()
