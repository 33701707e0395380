"""The push consumer: queues are taken by rebalance, pulled ahead, and fed to listeners."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from penstock.client import running_info
from penstock.client.config import PushSettings
from penstock.client.consume_concurrently import ConsumeConcurrently
from penstock.client.consume_orderly import ConsumeOrderly
from penstock.client.consumer_base import ConsumerBase
from penstock.client.instance import ServiceState
from penstock.client.listener import BatchListener, ConsumeHook, FilterHook, Handler, Listeners
from penstock.client.pop_service import PopService
from penstock.client.process_queue import ProcessQueue
from penstock.client.pull_service import PullRequest
from penstock.client.pulled import PulledMessage, PullInfo
from penstock.client.pulling import Puller
from penstock.client.rebalance import Assignment, Rebalancer
from penstock.client.subscriptions import subscription_data
from penstock.client.workers import WorkerPool, report_to_services
from penstock.errors import InvalidArgument, PenstockError, WrongState
from penstock.message.names import retry_topic
from penstock.message.queue import MessageQueue
from penstock.message.record import RecordView
from penstock.wire.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)

log = logging.getLogger("penstock.client")

RETRY_ROUTE_TRIES = 10
LAST_WORDS_MS = 500
"""A stop that used up its time waiting for listeners still gives brokers this long to take acks."""
H = TypeVar("H", bound=Handler)


class PushConsumer(ConsumerBase):
    """Consumes topics with listeners: `async with consumer:` or `await consumer.run()`.

    Every keyword of PushSettings may be given here as well.
    """

    consume_service: ConsumeConcurrently | ConsumeOrderly
    pool: WorkerPool
    pop_service: PopService

    def __init__(
        self,
        name_server: str | None = None,
        *,
        listener: BatchListener | None = None,
        subscribe: Mapping[str, str] | None = None,
        settings: PushSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = PushSettings.make(name_server, settings, options)
        super().__init__(self._settings)
        self.listeners = Listeners(listener)
        self.consume_hooks: list[ConsumeHook] = []
        self.filter_hooks: list[FilterHook] = []
        self.paused = False
        self._subscribe_all(subscribe)

    @property
    def settings(self) -> PushSettings:
        return self._settings

    # ---- subscriptions and listeners ----------------------------------------------------------------

    def on(self, topic: str, *, tags: str | None = None, sql: str | None = None) -> Callable[[H], H]:
        """Decorator: subscribes to a topic and handles its messages one by one.

        A normal return means consumed, an exception means retried, `raise RetryLater(...)` chooses the delay.
        """
        data = subscription_data(topic, tags, sql, class_filter=self.settings.class_filter)

        def register(handler: H) -> H:
            self.listeners.add(topic, handler)
            self._put_subscription(data)
            return handler

        return register

    def subscribe(self, topic: str, tags: str | None = None, *, sql: str | None = None) -> None:
        """Adds or changes a subscription, also while the consumer runs."""
        self._put_subscription(subscription_data(topic, tags, sql, class_filter=self.settings.class_filter))

    def unsubscribe(self, topic: str) -> None:
        """Its queues are given up with the next rebalance."""
        self._check_process()
        self._subscriptions.discard(topic)
        self.listeners.discard(topic)
        if self.running:
            self.instance.rebalance_service.wake()

    def announced_version(self, topic: str) -> int:
        return self._subscriptions.announced_version(topic)

    # ---- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        if not self.listeners.defined:
            raise InvalidArgument(
                "a push consumer needs a listener: pass listener=, or decorate handlers with .on()"
            )
        self._begin()
        if self.clustering:
            self._subscriptions.put(subscription_data(retry_topic(self.group), None, None))
        self.rebalancer = Rebalancer(self, self.instance.loop, idle_ms=self.settings.timings.pull_idle_ms)
        self.pool = WorkerPool(
            f"consume-{self.group}",
            self.settings.consume_threads,
            self.settings.consume_backlog,
            report_to_services,
            self.instance.loop,
        )
        self._puller = Puller(self)
        self.pop_service = PopService(self)
        self.consume_service = ConsumeOrderly(self) if self.settings.orderly else ConsumeConcurrently(self)
        await self._join()
        self.consume_service.start()
        self.pop_service.start()
        if self.clustering:
            self.spawn(self._await_retry_route())

    async def _await_retry_route(self) -> None:
        """The broker makes the retry topic with the first heartbeat; without its route the first retries of
        a new group would wait for the next route refresh."""
        topic = retry_topic(self.group)
        for _ in range(RETRY_ROUTE_TRIES):
            if self.instance.route(topic) is not None:
                self.instance.rebalance_service.wake()
                return
            await asyncio.sleep(self.settings.timings.rebalance_min_interval_ms / 1000)
            await self.instance.update_route(topic)

    async def stop(self, timeout_ms: int | None = None) -> None:
        """Running listeners may finish within the time; offsets are persisted, queues and locks released."""
        if not self.running:
            return
        self._check_process()
        self.pool.refuse_self_wait()
        self._state = ServiceState.SHUTDOWN_ALREADY
        timeout_ms = self.settings.stop_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self.instance.now_ms() + timeout_ms
        self.pop_service.begin_stop()
        await self.consume_service.stop(timeout_ms)
        async with self.rebalancer.lock:  # a rebalance under way must not take a queue, or a lock, after this
            await self.offset_store.persist(list(self.rebalancer.queues))
            if isinstance(self.consume_service, ConsumeOrderly):
                await self.consume_service.unlock_all()
        await self._sign_off()
        await self.pop_service.stop(max(LAST_WORDS_MS, deadline_ms - self.instance.now_ms()))
        await self._close()
        log.info("consumer of group %s has stopped", self.group)

    async def run(self) -> None:
        """Consumes until SIGINT, SIGTERM or cancellation, then stops in an orderly way."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        handled = []
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, stopped.set)
                handled.append(number)
            except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or Windows
                pass
        try:
            async with self:
                await stopped.wait()
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    # ---- control ------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """No more pulls; what is cached is still consumed."""
        self.paused = True

    async def resume(self) -> None:
        self.paused = False
        if self.running:
            await self.rebalancer.run()

    def resize_workers(self, count: int) -> None:
        """Changes how many listeners may run at once."""
        if not 1 <= count <= 1_000:
            raise InvalidArgument(f"the number of workers must be 1 to 1000, not {count}")
        self.pool.resize(count)

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Starts queues of a topic anew at the given offsets. The pause lets listeners that run now end,
        so that their results do not move the new offsets."""
        self.paused = True
        rebalancer = self.rebalancer
        try:
            async with rebalancer.lock:
                owned = [
                    process_queue
                    for queue, process_queue in rebalancer.queues.items()
                    if queue.topic == topic and queue in offsets
                ]
                for process_queue in owned:
                    rebalancer.hold(process_queue)
                    process_queue.clear()
            await asyncio.sleep(self.settings.timings.reset_offset_wait_ms / 1000)
            async with rebalancer.lock:
                for process_queue in filter(rebalancer.owns, owned):
                    queue = process_queue.queue
                    self.offset_store.update(queue, offsets[queue], increase_only=False)
                    await rebalancer.let_go(process_queue)
        finally:
            await self.resume()

    async def reset_offset_by_timestamp(self, timestamp_ms: int) -> None:
        """Starts all own queues of the subscribed topics anew at a time."""
        popped = sorted({queue.topic for queue in self.pop_service.queues})
        if popped:
            raise WrongState(
                f"group {self.group} pops {', '.join(popped)}: its progress is the brokers' business; "
                "reset it there, with AdminClient.reset_offset"
            )
        for topic in self.topics():
            if topic == retry_topic(self.group):
                continue
            offsets = {
                queue: await self.search_offset(queue, timestamp_ms)
                for queue in list(self.rebalancer.queues)
                if queue.topic == topic
            }
            await self.reset_offsets(topic, offsets)

    # ---- what the instance asks ---------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY",
            message_model=self.settings.message_model.value,
            consume_from_where=self.settings.consume_from.value,
            subscription_data_set=list(self._subscriptions.all()),
            unit_mode=self.settings.unit_mode,
        )

    async def rebalance(self) -> bool:
        if self.paused or not self.running:
            return False
        return await self.rebalancer.run()

    def pull(self, request: PullRequest) -> None:
        self._puller.pull(request)

    def offsets_in_memory(self, topic: str) -> dict[MessageQueue, int]:
        return self.offset_store.table(topic)

    async def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        extra = {
            "PROP_CONSUMEORDERLY": str(self.settings.orderly).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(self.pool.size),
        }
        info = await running_info.of_consumer(
            self, self.rebalancer.queues, "CONSUME_PASSIVELY", extra, with_stacks=with_stacks
        )
        info.mq_pop_table = self.pop_service.info()
        return info

    async def consume_directly(self, body: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        record = RecordView(body)
        info = PullInfo(MessageQueue(record.topic, broker_name, record.queue_id), 0, 0)
        return await self.consume_service.consume_directly(PulledMessage(record, info))

    # ---- what rebalancing asks ----------------------------------------------------------------------

    @property
    def takes_locks(self) -> bool:
        return self.settings.orderly

    async def assignment_of(self, topic: str) -> Assignment | None:
        return await self.pop_service.assigned(topic)

    async def pop(self, topic: str, assignment: Assignment) -> bool:
        return await self.pop_service.follow(topic, assignment)

    def forget_pops(self, topics: Collection[str]) -> None:
        self.pop_service.keep_topics(topics)

    def add_subscription(self, data: SubscriptionData) -> None:
        """Of a retry topic, found while the consumer runs."""
        self._put_subscription(data)

    def forget_subscription(self, topic: str) -> None:
        self._subscriptions.discard(topic)

    async def lock(self, queue: MessageQueue) -> bool:
        try:
            address = await self.instance.master_address(queue)
            return queue in await self.instance.api.lock_queues(address, self.group, self.client_id, [queue])
        except PenstockError as error:
            log.warning("%s not locked: %s", queue, error)
            return False

    async def unlock(self, queue: MessageQueue) -> None:
        if isinstance(self.consume_service, ConsumeOrderly):
            await self.consume_service.unlock([queue], oneway=True)

    def broker_lost(self, broker_name: str) -> None:
        if isinstance(self.consume_service, ConsumeOrderly):
            self.consume_service.broker_lost(broker_name)

    async def broker_back(self) -> None:
        if isinstance(self.consume_service, ConsumeOrderly):
            await self.consume_service.renew_locks()

    async def give_up(self, process_queue: ProcessQueue) -> bool:
        if isinstance(self.consume_service, ConsumeOrderly):
            await self.offset_store.persist([process_queue.queue])
            if not await self.consume_service.release(process_queue):
                return False
        await super().give_up(process_queue)
        if isinstance(self.consume_service, ConsumeOrderly):
            process_queue.locked = False
            await self.unlock(process_queue.queue)
        return True

    async def assigned(
        self, topic: str, queues: Sequence[MessageQueue], mine: Sequence[MessageQueue], new: list[PullRequest]
    ) -> None:
        self._share_thresholds()
        self._subscriptions.bump(topic)
        await self.instance.heartbeat_all()
        self._subscriptions.announced(topic)
        for request in new:
            self.instance.pull_service.put(request)
        self._tell_assignment(topic, queues, mine)

    def _share_thresholds(self) -> None:
        """A limit for a topic is divided by the number of queues held."""
        settings = self.settings
        count = max(1, len(self.rebalancer.queues))
        if settings.pull_threshold_messages_topic != -1:
            self._puller.threshold_messages = max(1, settings.pull_threshold_messages_topic // count)
        if settings.pull_threshold_mib_topic != -1:
            self._puller.threshold_mib = max(1, settings.pull_threshold_mib_topic // count)
