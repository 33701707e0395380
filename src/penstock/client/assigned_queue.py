"""One queue of a pull consumer: pulled ahead by a task of its own, within the consumer's bounds."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.client.api import PullFlag, PullResult, PullStatus
from penstock.client.process_queue import ProcessQueue
from penstock.client.pulled import PulledMessage, PullInfo
from penstock.client.routes import MASTER_ID
from penstock.client.subscriptions import TAG
from penstock.errors import BrokerNotFound, PenstockError, ServerError
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import SubscriptionData
from penstock.wire.codes import ResponseCode
from penstock.wire.headers import PullHeader

if TYPE_CHECKING:
    from penstock.client.pull_consumer import PullConsumer

log = logging.getLogger("penstock.client")

MIB = 1024 * 1024
ANY_SIZE = 2**31 - 1


class AssignedQueue:
    def __init__(
        self, consumer: PullConsumer, queue: MessageQueue, process_queue: ProcessQueue, offset: int | None
    ) -> None:
        self._consumer = consumer
        self.queue = queue
        self.process_queue = process_queue
        self._next_offset = offset
        """None until it is read from the broker."""
        self.consumed_offset: int | None = None
        """One past the last message handed out."""
        self._suggested_broker_id = MASTER_ID
        self._task: asyncio.Task[None] | None = None
        self._unpaused = asyncio.Event()
        self._unpaused.set()

    def start(self) -> None:
        self._task = self._consumer.spawn(self._run())

    def drop(self) -> None:
        self.process_queue.dropped = True
        self._consumer.forget_batches(self)
        if self._task is not None:
            self._task.cancel()

    def pause(self) -> None:
        self._unpaused.clear()

    def resume(self) -> None:
        self._unpaused.set()

    def seek(self, offset: int) -> None:
        """What is cached and what is on its way belongs to the old position."""
        if self._task is not None:
            self._task.cancel()
        self.process_queue.clear()
        self._consumer.forget_batches(self)
        self._next_offset = self.consumed_offset = offset
        self.start()

    # ---- pulling ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        settings, timings = self._consumer.settings, self._consumer.settings.timings
        process_queue = self.process_queue
        while not process_queue.dropped:
            await self._unpaused.wait()
            process_queue.last_pull_ms = self._consumer.instance.now_ms()
            if self._full():
                await asyncio.sleep(timings.flow_control_ms / 1000)
                continue
            try:
                if self._next_offset is None:
                    self._next_offset = await self._consumer.start_offset(self.queue)
                subscription = self._consumer.expression(self.queue.topic)
                result = await self._pull(self._next_offset, subscription, settings.pull_timeout_ms)
                self._suggested_broker_id = result.suggested_broker_id
                if result.status is PullStatus.OFFSET_ILLEGAL:
                    log.warning(
                        "%s has no offset %d, going on at %d",
                        self.queue,
                        self._next_offset,
                        result.next_offset,
                    )
                self._next_offset = result.next_offset
                self._arrived(result, subscription)
            except PenstockError as error:
                busy = isinstance(error, ServerError) and error.code == ResponseCode.FLOW_CONTROL
                delay_ms = timings.broker_busy_ms if busy else timings.pull_error_ms
                log.warning("pull of %s failed, again in %d ms: %s", self.queue, delay_ms, error)
                await asyncio.sleep(delay_ms / 1000)

    def _full(self) -> bool:
        settings, process_queue = self._consumer.settings, self.process_queue
        return (
            self._consumer.waiting_batches * settings.pull_batch > settings.pull_threshold_all
            or process_queue.count > settings.pull_threshold_messages
            or process_queue.cached_bytes // MIB > settings.pull_threshold_mib
            or process_queue.span > settings.max_span
        )

    async def _pull(self, offset: int, subscription: SubscriptionData, timeout_ms: int) -> PullResult:
        instance, settings = self._consumer.instance, self._consumer.settings
        target = instance.routes.replica(self.queue.broker_name, self._suggested_broker_id)
        if target is None:
            await instance.update_route(self.queue.topic)
            target = instance.routes.replica(self.queue.broker_name, self._suggested_broker_id)
            if target is None:
                raise BrokerNotFound(f"no address of broker {self.queue.broker_name} is known")
        header = PullHeader(
            consumer_group=self._consumer.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=offset,
            max_msg_nums=settings.pull_batch,
            sys_flag=PullFlag.SUSPEND | PullFlag.SUBSCRIPTION | PullFlag.LITE,
            commit_offset=0,
            suspend_timeout_millis=settings.pull_suspend_ms,
            subscription=subscription.sub_string,
            sub_version=0 if subscription.expression_type == TAG else subscription.sub_version,
            expression_type=subscription.expression_type,
            max_msg_bytes=ANY_SIZE,
            broker_name=self.queue.broker_name,
        )
        return await instance.api.pull(target.address, header, timeout_ms)

    def _arrived(self, result: PullResult, subscription: SubscriptionData) -> None:
        if result.status is not PullStatus.FOUND:
            return
        info = PullInfo(self.queue, result.min_offset, result.max_offset)
        messages = [PulledMessage(record, info) for record in result.records()]
        if subscription.tags_set:
            tags = frozenset(subscription.tags_set)
            messages = [message for message in messages if message.record.tag in tags]
        if messages:
            self.process_queue.stats.pull_messages.add(len(messages))
            self.process_queue.put(messages, result.max_offset)
            self._consumer.arrived(messages, self)
