"""What push and pull consumers share: their life on a client instance, subscriptions, offsets, rebalance."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from penstock.client.config import ConsumerSettings, MessageModel
from penstock.client.instance import DEFAULT_INSTANCE, ClientInstance, ServiceState, client_id_of, obtain
from penstock.client.offset_store import LocalOffsetStore, OffsetStore, RemoteOffsetStore
from penstock.client.process_queue import ProcessQueue
from penstock.client.pull_service import PullRequest
from penstock.client.rebalance import PULLED, Assignment, Rebalancer, first_offset, wall_ms
from penstock.client.stats import ConsumerStats
from penstock.client.subscriptions import TAG, Subscriptions
from penstock.errors import InvalidArgument, WrongState
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)

log = logging.getLogger("penstock.client")

AssignmentListener = Callable[[str, Sequence[MessageQueue], Sequence[MessageQueue]], None]


class ConsumerBase(ABC):
    instance: ClientInstance
    client_id: str
    rebalancer: Rebalancer
    offset_store: OffsetStore

    STREAM = False

    def __init__(self, settings: ConsumerSettings) -> None:
        self._common = settings
        self.group = settings.group
        self.stats = ConsumerStats()
        self.started_ms = 0
        self._state = ServiceState.CREATE_JUST
        self._pid = os.getpid()
        self._subscriptions = Subscriptions()
        self._assignment_listener: AssignmentListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def settings(self) -> ConsumerSettings:
        return self._common

    # ---- subscriptions ------------------------------------------------------------------------------

    @abstractmethod
    def subscribe(self, topic: str, tags: str | None = None, *, sql: str | None = None) -> None: ...

    def _subscribe_all(self, topics: Mapping[str, str] | None) -> None:
        if topics is not None and not isinstance(topics, Mapping):
            raise InvalidArgument(
                f"subscribe must map topics to tags, such as {{'orders': '*'}}, not {topics!r}"
            )
        for topic, tags in (topics or {}).items():
            self.subscribe(topic, tags)

    def _put_subscription(self, data: SubscriptionData) -> None:
        self._check_process()
        self._subscriptions.put(data)
        if self._state is ServiceState.RUNNING:
            self.spawn(self._announce(data.topic))

    async def _announce(self, topic: str) -> None:
        await self.instance.update_route(topic)
        await self.instance.heartbeat_all()
        self.instance.rebalance_service.wake()

    def subscription(self, topic: str) -> SubscriptionData | None:
        return self._subscriptions.get(topic)

    def topics(self) -> list[str]:
        return self._subscriptions.topics()

    def on_assignment(self, listener: AssignmentListener) -> None:
        """`listener(topic, all_queues, own_queues)` is called when the own queues of a topic changed."""
        self._assignment_listener = listener

    def _tell_assignment(
        self, topic: str, queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        if self._assignment_listener is not None:
            try:
                self._assignment_listener(topic, list(queues), list(mine))
            except Exception:
                log.exception("the assignment listener failed and is ignored")

    # ---- life ---------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._state is ServiceState.RUNNING

    @property
    def clustering(self) -> bool:
        return self._common.message_model is MessageModel.CLUSTERING

    def _begin(self) -> None:
        """Takes a client id, an instance and an offset store."""
        self._check_process()
        if self._state is not ServiceState.CREATE_JUST:
            raise WrongState(f"the consumer cannot start: its state is {self._state.value}; make a new one")
        self._state = ServiceState.START_FAILED
        settings = self._common
        self.started_ms = wall_ms()
        name = settings.instance_name
        # A broadcasting consumer keeps its name, because its offset file is found by it.
        if self.clustering and name == DEFAULT_INSTANCE:
            name = f"{os.getpid()}#{time.monotonic_ns()}"
        self.client_id = client_id_of(settings, name, stream=self.STREAM)
        if not self.clustering:
            self.offset_store = LocalOffsetStore(settings.local_offset_dir, self.client_id, self.group)
            self.offset_store.load()
        self.instance = obtain(self.client_id, settings, stream=self.STREAM)
        if self.clustering:
            self.offset_store = RemoteOffsetStore(self.group, self.instance)
            self.offset_store.load()

    async def _join(self) -> None:
        """Registers, starts the instance, and makes this consumer known to routes and brokers."""
        try:
            self.instance.register_consumer(self)
        except WrongState:
            self._state = ServiceState.CREATE_JUST
            raise
        try:
            await self.instance.start()
            self._state = ServiceState.RUNNING
            for data in self._expressions():
                await self.instance.update_route(data.topic)
            await self._check_expressions()
        except BaseException:
            self._state = ServiceState.START_FAILED
            await self._leave()
            raise
        await self.instance.heartbeat_all()
        self.instance.rebalance_service.wake()
        log.info("consumer of group %s runs as %s", self.group, self.client_id)

    def _expressions(self) -> Iterable[SubscriptionData]:
        """Of all topics that are to be consumed from the start."""
        return self._subscriptions.all()

    async def _check_expressions(self) -> None:
        for data in self._expressions():
            address = self.instance.routes.any_of_topic(data.topic)
            if data.expression_type != TAG and address is not None:
                await self.instance.api.check_client(address, self.client_id, self.group, data)

    async def _leave(self) -> None:
        await self._sign_off()
        await self._close()

    async def _sign_off(self) -> None:
        """No member of the group any more; the connections are still there."""
        self.rebalancer.drop_all()
        await self.instance.unregister_consumer(self.group)

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.instance.release()

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """A task that ends with the consumer."""
        task = self.instance.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise WrongState("this consumer was made before a fork; make one in the child process")

    # ---- what the instance asks ---------------------------------------------------------------------

    @abstractmethod
    def consumer_data(self) -> ConsumerData: ...

    @abstractmethod
    async def rebalance(self) -> bool: ...

    async def persist_offsets(self) -> None:
        if self.running:
            await self.offset_store.persist_only(set(self.rebalancer.queues))

    def pull(self, request: PullRequest) -> None:
        raise WrongState("only a push consumer is served by the pull service")

    def wall_time_of(self, loop_ms: float) -> int:
        return wall_ms() - int(self.instance.now_ms() - loop_ms)

    def sample_stats(self) -> None:
        self.stats.sample(self.instance.now_ms())

    def broker_lost(self, broker_name: str) -> None:
        return

    async def broker_back(self) -> None:
        return

    @abstractmethod
    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None: ...

    @abstractmethod
    def offsets_in_memory(self, topic: str) -> dict[MessageQueue, int]: ...

    @abstractmethod
    async def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo: ...

    @abstractmethod
    async def consume_directly(self, body: bytes, broker_name: str) -> ConsumeMessageDirectlyResult: ...

    # ---- what rebalancing asks ----------------------------------------------------------------------

    @property
    def takes_locks(self) -> bool:
        return False

    async def topic_queues(self, topic: str) -> list[MessageQueue] | None:
        """Queues of a topic that can be consumed; None if its route is not known."""
        queues = self.instance.topic_queues(topic)
        if queues is None:
            await self.instance.update_route(topic)
            queues = self.instance.topic_queues(topic)
        return queues

    async def consumer_ids(self, topic: str) -> list[str] | None:
        return await self.instance.consumer_ids(topic, self.group)

    async def assignment_of(self, topic: str) -> Assignment | None:
        return PULLED

    async def pop(self, topic: str, assignment: Assignment) -> bool:
        return False

    def forget_pops(self, topics: Collection[str]) -> None:
        return

    async def lock(self, queue: MessageQueue) -> bool:
        raise WrongState("only an orderly consumer locks queues")

    async def unlock(self, queue: MessageQueue) -> None:
        raise WrongState("only an orderly consumer locks queues")

    async def give_up(self, process_queue: ProcessQueue) -> bool:
        await self.offset_store.persist([process_queue.queue])
        self.offset_store.remove(process_queue.queue)
        return True

    async def start_offset(self, queue: MessageQueue) -> int:
        stored = await self.offset_store.stored(queue)
        return await first_offset(stored, queue, self._common, self, self.started_ms)

    async def max_offset(self, queue: MessageQueue) -> int:
        return await self.instance.api.max_offset(await self.instance.master_address(queue), queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self.instance.api.min_offset(await self.instance.master_address(queue), queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after a time."""
        return await self.instance.api.search_offset(
            await self.instance.master_address(queue), queue, timestamp_ms
        )

    def forget_offset(self, queue: MessageQueue) -> None:
        self.offset_store.remove(queue)

    def new_process_queue(self, queue: MessageQueue) -> ProcessQueue:
        return ProcessQueue(queue, self.instance.now_ms(), self.stats.topic(queue.topic))

    def wake_rebalance_later(self, delay_ms: int) -> None:
        self.instance.rebalance_service.wake_later(delay_ms)

    async def assigned(
        self, topic: str, queues: Sequence[MessageQueue], mine: Sequence[MessageQueue], new: list[PullRequest]
    ) -> None:
        raise WrongState("a consumer that does not rebalance is assigned no queues")
