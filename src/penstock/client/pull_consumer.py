"""The pull consumer: the application asks for messages, the client pulls ahead for it.

"Consumed" means handed out by `poll`. Offsets of what was handed out are committed at the start of a later
`poll` (auto commit) or by `commit`, so a caller that dies between two polls gets the last batches again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from penstock.client import running_info
from penstock.client.assigned_queue import AssignedQueue
from penstock.client.config import PullSettings
from penstock.client.consumer_base import ConsumerBase
from penstock.client.instance import ServiceState
from penstock.client.process_queue import NOTHING, ProcessQueue
from penstock.client.pull_service import PullRequest
from penstock.client.pulled import PulledMessage
from penstock.client.rebalance import Rebalancer
from penstock.client.subscriptions import subscription_data
from penstock.errors import InvalidArgument, NoNameServer, WrongState
from penstock.message.model import ReceivedMessage
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)

log = logging.getLogger("penstock.client")

TopicListener = Callable[[str, Sequence[MessageQueue]], None]


class Mode(Enum):
    NONE = "none"
    SUBSCRIBE = "subscribe"
    ASSIGN = "assign"


class PullConsumer(ConsumerBase):
    """`subscribe` shares topics with the group; `assign` takes exactly the queues it is given.

    Every keyword of PullSettings may be given here as well.
    """

    STREAM = True

    def __init__(
        self,
        name_server: str | None = None,
        *,
        subscribe: Mapping[str, str] | None = None,
        settings: PullSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = PullSettings.make(name_server, settings, options)
        super().__init__(self._settings)
        self._mode = Mode.NONE
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._filters: dict[str, SubscriptionData] = {}
        self._batches: deque[tuple[list[PulledMessage], AssignedQueue]] = deque()
        self._arrived = asyncio.Event()
        self._commit_due = 0.0
        self._topic_listeners: dict[str, TopicListener] = {}
        self._topic_queues: dict[str, list[MessageQueue]] = {}
        self._wanted: list[MessageQueue] = []
        self._subscribe_all(subscribe)

    @property
    def settings(self) -> PullSettings:
        return self._settings

    # ---- what is consumed ---------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str | None = None, *, sql: str | None = None) -> None:
        self._choose(Mode.SUBSCRIBE)
        self._put_subscription(subscription_data(topic, tags, sql))

    def unsubscribe(self, topic: str) -> None:
        self._subscriptions.discard(topic)
        if self.running:
            self._keep({queue for queue in self._assigned if queue.topic != topic})
            self.instance.rebalance_service.wake()

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Takes exactly these queues; a second call replaces them."""
        self._choose(Mode.ASSIGN)
        self._wanted = list(queues)
        if self.running:
            self._take_assigned()

    def filter(self, topic: str, tags: str | None = None, *, sql: str | None = None) -> None:
        """Which messages of a topic an assigned consumer wants; everything unless this is called."""
        self._filters[topic] = subscription_data(topic, tags, sql)

    def _choose(self, mode: Mode) -> None:
        self._check_process()
        if self._mode not in (Mode.NONE, mode):
            raise WrongState("a pull consumer either subscribes or is assigned queues, not both")
        self._mode = mode

    @property
    def assignment(self) -> list[MessageQueue]:
        return sorted(self._assigned)

    def expression(self, topic: str) -> SubscriptionData:
        """The filter of a topic's pulls."""
        data = self._subscriptions.get(topic) or self._filters.get(topic)
        if data is None:
            data = self._filters[topic] = subscription_data(topic, None, None)
        return data

    def _expressions(self) -> Iterable[SubscriptionData]:
        return [*self._subscriptions.all(), *self._filters.values()]

    def _take_assigned(self) -> None:
        self._keep(set(self._wanted))
        for queue in self._wanted:
            if queue not in self._assigned:
                self._add(queue, self.new_process_queue(queue), None)

    def _add(self, queue: MessageQueue, process_queue: ProcessQueue, offset: int | None) -> None:
        assigned = self._assigned[queue] = AssignedQueue(self, queue, process_queue, offset)
        assigned.start()

    def _keep(self, wanted: set[MessageQueue]) -> None:
        for queue in [queue for queue in self._assigned if queue not in wanted]:
            self._assigned.pop(queue).drop()

    # ---- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._mode is Mode.NONE:
            raise InvalidArgument("nothing to consume: call subscribe() or assign() before the start")
        self._begin()
        self.rebalancer = Rebalancer(self, self.instance.loop, idle_ms=None)
        await self._join()
        if self._mode is Mode.ASSIGN:
            for topic in {queue.topic for queue in self._wanted}:
                await self.instance.update_route(topic)
            await self.instance.heartbeat_all()
            self._take_assigned()
        self.spawn(self._watch_topics())

    async def stop(self) -> None:
        """Persists what was committed. What was handed out since the last commit comes again."""
        if not self.running:
            return
        self._check_process()
        self._state = ServiceState.SHUTDOWN_ALREADY
        await self.offset_store.persist(list(self._assigned))
        self._keep(set())
        self._arrived.set()
        await self._leave()

    def _check_running(self) -> None:
        self._check_process()
        if not self.running:
            raise WrongState(f"the consumer is not running: its state is {self._state.value}")

    # ---- messages -----------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next batch, all of one queue; empty if none came in time."""
        self._check_running()
        loop = self.instance.loop
        if self.settings.auto_commit and loop.time() >= self._commit_due:
            self._note_consumed()
            self._commit_due = loop.time() + self.settings.auto_commit_interval_ms / 1000
        timeout_ms = self.settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        deadline = loop.time() + timeout_ms / 1000
        while True:
            while self._batches:
                messages, assigned = self._batches.popleft()
                if not assigned.process_queue.dropped:
                    return self._hand_out(messages, assigned)
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return []
            self._check_running()

    def _hand_out(self, messages: list[PulledMessage], assigned: AssignedQueue) -> list[ReceivedMessage]:
        process_queue = assigned.process_queue
        offset = process_queue.remove(messages, self.instance.now_ms())
        if offset != NOTHING:
            assigned.consumed_offset = offset
        process_queue.stats.consume_ok.add(len(messages))
        return list(messages)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Messages one by one, until the consumer is stopped."""
        while self.running:
            try:
                messages = await self.poll()
            except WrongState:
                return
            for message in messages:
                yield message

    def arrived(self, messages: list[PulledMessage], assigned: AssignedQueue) -> None:
        self._batches.append((messages, assigned))
        self._arrived.set()

    @property
    def waiting_batches(self) -> int:
        return len(self._batches)

    def forget_batches(self, assigned: AssignedQueue) -> None:
        self._batches = deque(item for item in self._batches if item[1] is not assigned)

    # ---- positions ----------------------------------------------------------------------------------

    def _assigned_queue(self, queue: MessageQueue) -> AssignedQueue:
        self._check_running()
        assigned = self._assigned.get(queue)
        if assigned is None:
            raise InvalidArgument(f"{queue} is not assigned to this consumer")
        return assigned

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """The next messages of the queue come from this offset on."""
        assigned = self._assigned_queue(queue)
        lowest, highest = await self.min_offset(queue), await self.max_offset(queue)
        if not lowest <= offset <= highest:
            raise InvalidArgument(
                f"{queue} has offsets {lowest} to {highest}, so it cannot be read from {offset}"
            )
        assigned.seek(offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        assigned = self._assigned_queue(queue)
        assigned.seek(await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        assigned = self._assigned_queue(queue)
        assigned.seek(await self.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """To the first message stored at or after a time."""
        assigned = self._assigned_queue(queue)
        assigned.seek(await self.search_offset(queue, timestamp_ms))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Nothing more is pulled; what was pulled already is still handed out."""
        for queue in queues:
            self._assigned_queue(queue).pause()

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._assigned_queue(queue).resume()

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic, asked from the name server."""
        await self.instance.update_route(topic)
        return self.instance.topic_queues(topic) or []

    # ---- commits ------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None,
        *,
        persist: bool = False,
    ) -> None:
        """Notes progress: of everything handed out, of some queues, or at given offsets.

        The broker is told with the next periodic persist, at once with `persist`.
        """
        self._check_running()
        if offsets is None:
            queues = self._note_consumed()
        elif isinstance(offsets, Mapping):
            queues = [queue for queue, offset in offsets.items() if self._note(queue, offset)]
        else:
            queues = self._note_consumed(offsets)
        if persist:
            await self.offset_store.persist(queues)

    def _note_consumed(self, queues: Iterable[MessageQueue] | None = None) -> list[MessageQueue]:
        noted = []
        for queue in list(self._assigned) if queues is None else queues:
            assigned = self._assigned.get(queue)
            if (
                assigned is not None
                and assigned.consumed_offset is not None
                and not assigned.process_queue.dropped
            ):
                self.offset_store.update(queue, assigned.consumed_offset, increase_only=False)
                noted.append(queue)
        return noted

    def _note(self, queue: MessageQueue, offset: int) -> bool:
        assigned = self._assigned_queue(queue)
        if offset < 0:
            raise InvalidArgument(f"an offset must not be negative: {offset} for {queue}")
        if assigned.process_queue.dropped:
            return False
        self.offset_store.update(queue, offset, increase_only=False)
        return True

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's progress in a queue; None if it has none."""
        self._check_running()
        offset = self.offset_store.memory(queue)
        return await self.offset_store.stored(queue) if offset is None else offset

    # ---- topics that change -------------------------------------------------------------------------

    def on_topic_change(self, topic: str, listener: TopicListener) -> None:
        """`listener(topic, queues)` is called when the queues of a topic changed."""
        self._topic_listeners[topic] = listener

    async def _watch_topics(self) -> None:
        while True:
            for topic, listener in list(self._topic_listeners.items()):
                try:
                    queues = await self.fetch_queues(topic)
                except NoNameServer as error:
                    log.warning("queues of topic %s not checked: %s", topic, error)
                    continue
                known = self._topic_queues.get(topic)
                self._topic_queues[topic] = queues
                if known is not None and set(known) != set(queues):
                    try:
                        listener(topic, queues)
                    except Exception:
                        log.exception("the topic listener failed and is ignored")
            await asyncio.sleep(self.settings.topic_check_interval_ms / 1000)

    # ---- what the instance asks ---------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            message_model=self.settings.message_model.value,
            subscription_data_set=list(self._subscriptions.all()),
            unit_mode=self.settings.unit_mode,
        )

    async def rebalance(self) -> bool:
        if not self.running or self._mode is not Mode.SUBSCRIBE:
            return True
        return await self.rebalancer.run()

    async def persist_offsets(self) -> None:
        if self.running:
            await self.offset_store.persist_only(set(self._assigned))

    def offsets_in_memory(self, topic: str) -> dict[MessageQueue, int]:
        return {}

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        log.info("offsets of topic %s are not reset: a pull consumer seeks by itself", topic)

    async def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        queues = {queue: assigned.process_queue for queue, assigned in self._assigned.items()}
        return await running_info.of_consumer(self, queues, "CONSUME_ACTIVELY", {}, with_stacks=with_stacks)

    async def consume_directly(self, body: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        raise WrongState("a pull consumer has no listener that could consume a message directly")

    # ---- what rebalancing asks ----------------------------------------------------------------------

    async def start_offset(self, queue: MessageQueue) -> int:
        offset = self.offset_store.memory(queue)
        return await super().start_offset(queue) if offset is None else offset

    async def assigned(
        self, topic: str, queues: Sequence[MessageQueue], mine: Sequence[MessageQueue], new: list[PullRequest]
    ) -> None:
        held = set(self.rebalancer.queues)
        self._keep({queue for queue in self._assigned if queue.topic != topic or queue in held})
        for request in new:
            self._add(request.queue, request.process_queue, request.next_offset)
        self._tell_assignment(topic, queues, mine)
