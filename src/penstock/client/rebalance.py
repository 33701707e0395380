"""Dividing a topic's queues among the consumers of a group, and taking and giving up queues accordingly."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.client.config import ConsumeFrom, ConsumerSettings, MessageModel, Timings
from penstock.client.process_queue import ProcessQueue
from penstock.client.pull_service import PullRequest
from penstock.errors import PenstockError
from penstock.message.names import is_retry_topic
from penstock.message.queue import MessageQueue

log = logging.getLogger("penstock.client")

HALF_HOUR_MS = 30 * 60_000


class Rebalanced(Protocol):
    async def rebalance(self) -> bool: ...


class RebalanceService:
    """Runs the rebalance of all consumers every 20 s, sooner when woken, never twice within a second."""

    def __init__(
        self, consumers: Mapping[str, Rebalanced], timings: Timings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._consumers = consumers
        self._timings = timings
        self._loop = loop
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last = float("-inf")

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="rebalance")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Wakes coalesce; one that comes while a rebalance runs ends the next wait at once."""
        self._woken.set()

    def wake_later(self, delay_ms: int) -> None:
        self._loop.call_later(delay_ms / 1000, self.wake)

    async def _run(self) -> None:
        timings = self._timings
        wait_ms: float = timings.rebalance_interval_ms
        while True:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._woken.wait()
            except TimeoutError:
                pass
            since_ms = (self._loop.time() - self._last) * 1000
            if since_ms < timings.rebalance_min_interval_ms:
                await asyncio.sleep((timings.rebalance_min_interval_ms - since_ms) / 1000)
            self._woken.clear()
            balanced = await self._rebalance_all()
            self._last = self._loop.time()
            wait_ms = timings.rebalance_interval_ms if balanced else timings.rebalance_min_interval_ms

    async def _rebalance_all(self) -> bool:
        balanced = True
        for group, consumer in list(self._consumers.items()):
            try:
                balanced &= await consumer.rebalance()
            except Exception:
                log.exception("rebalance of group %s failed, it runs again in the next round", group)
        return balanced


class Assignment(NamedTuple):
    """Whether a consumer shares out the queues of a topic with its group and pulls its part, and what it is
    told to pop instead."""

    pulled: bool
    popped: frozenset[MessageQueue]


PULLED: Final = Assignment(pulled=True, popped=frozenset())


class RebalanceOwner(Protocol):
    """What rebalancing asks of a consumer; push and pull consumers differ in it."""

    group: str
    client_id: str

    @property
    def settings(self) -> ConsumerSettings: ...

    @property
    def takes_locks(self) -> bool: ...

    def topics(self) -> Sequence[str]: ...

    async def topic_queues(self, topic: str) -> list[MessageQueue] | None: ...

    async def consumer_ids(self, topic: str) -> list[str] | None: ...

    async def assignment_of(self, topic: str) -> Assignment | None:
        """None if the broker gives no answer, and nothing may change."""

    async def pop(self, topic: str, assignment: Assignment) -> bool:
        """Pops exactly the assigned queues of a topic; True if that is a change."""

    def forget_pops(self, topics: Collection[str]) -> None:
        """Only these topics are subscribed now."""

    async def lock(self, queue: MessageQueue) -> bool: ...

    async def unlock(self, queue: MessageQueue) -> None: ...

    async def give_up(self, process_queue: ProcessQueue) -> bool:
        """Persists the offset and lets the queue go; False if that has to wait."""

    async def start_offset(self, queue: MessageQueue) -> int:
        """Raises where it cannot be known."""

    def forget_offset(self, queue: MessageQueue) -> None: ...

    def new_process_queue(self, queue: MessageQueue) -> ProcessQueue: ...

    def wake_rebalance_later(self, delay_ms: int) -> None: ...

    async def assigned(
        self, topic: str, queues: Sequence[MessageQueue], mine: Sequence[MessageQueue], new: list[PullRequest]
    ) -> None:
        """The assignment changed; pulling of the new queues may begin."""


class Rebalancer:
    """Of one consumer: its process queues, and how they follow the assignment."""

    def __init__(
        self, owner: RebalanceOwner, loop: asyncio.AbstractEventLoop, *, idle_ms: int | None
    ) -> None:
        self._owner = owner
        self._loop = loop
        self._idle_ms = idle_ms
        """A queue not pulled for so long is started anew; None for consumers that pull at their own pace."""
        self.lock = asyncio.Lock()
        """Held while queues are taken and given up."""
        self.queues: dict[MessageQueue, ProcessQueue] = {}

    async def run(self) -> bool:
        """One rebalance over all topics; False if it should be done again soon."""
        async with self.lock:
            balanced = True
            topics = set(self._owner.topics())
            for topic in sorted(topics):
                try:
                    balanced &= await self._topic(topic)
                except PenstockError as error:
                    level = logging.DEBUG if is_retry_topic(topic) else logging.WARNING
                    log.log(level, "rebalance of topic %s failed, trying again in a second: %s", topic, error)
                    balanced &= is_retry_topic(topic)
            self._owner.forget_pops(topics)
            for queue, process_queue in list(self.queues.items()):
                if queue.topic not in topics:
                    process_queue.dropped = True
                    await self._remove(queue, process_queue)
            return balanced

    async def _topic(self, topic: str) -> bool:
        owner = self._owner
        queues = await owner.topic_queues(topic)
        if queues is None:
            return True
        assignment = await owner.assignment_of(topic)
        if assignment is None:
            return False
        if not assignment.pulled:
            return await self._pop(topic, queues, assignment)
        if await owner.pop(topic, assignment):
            log.info("group %s pulls topic %s from now on", owner.group, topic)
        if owner.settings.message_model is MessageModel.BROADCASTING:
            mine = queues
        else:
            ids = await owner.consumer_ids(topic)
            if ids is None:
                return True
            try:
                # A broker lists two processes with one id twice, and both would take the first share.
                members = sorted(set(ids))
                mine = owner.settings.allocation.allocate(owner.group, owner.client_id, queues, members)
            except Exception as error:
                log.warning("queues of topic %s stay as they are, the allocation failed: %s", topic, error)
                return False
        await self._update(topic, queues, mine)
        return {queue for queue in self.queues if queue.topic == topic} == set(mine)

    async def _pop(self, topic: str, queues: list[MessageQueue], assignment: Assignment) -> bool:
        """Queues that were pulled are given up first, so that the broker goes on where they got to."""
        await self._update(topic, queues, ())
        if any(queue.topic == topic for queue in self.queues):
            return False  # a listener still works on what it got in order
        if await self._owner.pop(topic, assignment):
            await self._owner.assigned(topic, queues, sorted(assignment.popped), [])
        return True

    async def _update(self, topic: str, queues: list[MessageQueue], mine: Sequence[MessageQueue]) -> None:
        wanted = set(mine)
        changed = await self._give_up(topic, wanted)
        new, all_locked = await self._take(mine)
        if not all_locked:
            self._owner.wake_rebalance_later(self._owner.settings.timings.lock_retry_ms)
        if changed or new:
            await self._owner.assigned(topic, queues, mine, new)

    async def _give_up(self, topic: str, wanted: set[MessageQueue]) -> bool:
        changed = False
        now_ms = self._loop.time() * 1000
        for queue, process_queue in list(self.queues.items()):
            if queue.topic != topic:
                continue
            if self._idle_ms is not None and now_ms - process_queue.last_pull_ms > self._idle_ms:
                if not process_queue.dropped:
                    log.warning("%s was not pulled for %d ms, it is started anew", queue, self._idle_ms)
                process_queue.dropped = True
            elif queue not in wanted:
                process_queue.dropped = True
            # A queue that was dropped before and could not be let go then is tried again, wanted or not.
            if process_queue.dropped and not (process_queue.held and queue in wanted):
                changed |= await self._remove(queue, process_queue)
        return changed

    async def _remove(self, queue: MessageQueue, process_queue: ProcessQueue) -> bool:
        if not await self._owner.give_up(process_queue):
            return False
        if self.owns(process_queue):
            del self.queues[queue]
        log.info("group %s gives up %s", self._owner.group, queue)
        return True

    async def _take(self, mine: Sequence[MessageQueue]) -> tuple[list[PullRequest], bool]:
        owner = self._owner
        new: list[PullRequest] = []
        all_locked = True
        for queue in mine:
            if queue in self.queues:
                continue
            if owner.takes_locks and not await owner.lock(queue):
                log.info(
                    "%s is locked by another consumer of group %s, trying again soon", queue, owner.group
                )
                all_locked = False
                continue
            owner.forget_offset(queue)
            process_queue = owner.new_process_queue(queue)
            process_queue.locked = True
            try:
                offset = await owner.start_offset(queue)
            except PenstockError as error:
                log.warning(
                    "%s not started, its offset is not known; trying again in a second: %s", queue, error
                )
                if owner.takes_locks:
                    await owner.unlock(queue)
                continue
            if queue not in self.queues:
                self.queues[queue] = process_queue
                new.append(PullRequest(owner.group, queue, process_queue, offset))
                log.info("group %s takes %s from offset %d", owner.group, queue, offset)
        return new, all_locked

    def hold(self, process_queue: ProcessQueue) -> None:
        """Drops a queue whose offset has to be repaired before a rebalance may take it again."""
        process_queue.dropped = process_queue.held = True

    async def let_go(self, process_queue: ProcessQueue) -> None:
        """Ends what `hold` began; the next rebalance takes the queue again if it is still assigned."""
        process_queue.held = False
        if await self._owner.give_up(process_queue):
            del self.queues[process_queue.queue]

    def owns(self, process_queue: ProcessQueue) -> bool:
        return self.queues.get(process_queue.queue) is process_queue

    def drop_all(self) -> None:
        for process_queue in self.queues.values():
            process_queue.dropped = True
        self.queues.clear()


class QueueOffsets(Protocol):
    async def max_offset(self, queue: MessageQueue) -> int: ...

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int: ...


async def first_offset(
    stored: int | None, queue: MessageQueue, settings: ConsumerSettings, broker: QueueOffsets, started_ms: int
) -> int:
    """Where a queue begins: a stored offset wins, else the consumer's start position."""
    if stored is not None:
        return stored
    retry = is_retry_topic(queue.topic)
    match settings.consume_from:
        case ConsumeFrom.LAST_OFFSET:
            return 0 if retry else await broker.max_offset(queue)
        case ConsumeFrom.FIRST_OFFSET:
            return 0
        case ConsumeFrom.TIMESTAMP:
            if retry:
                return await broker.max_offset(queue)
            timestamp_ms = settings.consume_timestamp_ms
            if timestamp_ms < 0:
                timestamp_ms = started_ms - HALF_HOUR_MS
            return await broker.search_offset(queue, timestamp_ms)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
