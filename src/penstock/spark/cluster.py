"""What the driver asks a cluster when it plans a read: queues, their bounds, and offsets by time or group."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from penstock.client.api import PullFlag
from penstock.client.routes import broker_address, subscribe_queues
from penstock.errors import InvalidArgument, PenstockError, ServerError, TopicNotFound
from penstock.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic, retry_topic
from penstock.message.queue import MessageQueue
from penstock.spark.brokers import Brokers, brokers
from penstock.spark.option_parsing import OptionError
from penstock.spark.options import EARLIEST, LATEST, Position, PullOptions, ReadOptions
from penstock.wire.bodies import ConsumerData, HeartbeatData, TopicList, TopicRouteData
from penstock.wire.codes import RequestCode
from penstock.wire.headers import PullHeader

T = TypeVar("T")
log = logging.getLogger("penstock.spark")

REQUESTS_AT_ONCE: Final = 256
"""Enough to keep brokers busy; thousands of queues must not mean thousands of waiting requests."""

MANY_QUEUES: Final = 4
"""From here on one request for all queues of a topic on a broker is cheaper than two for each."""

SAMPLED_MESSAGES: Final = 32
SAMPLE_TIMEOUT_MS: Final = 3_000
MIRROR_TIMEOUT_MS: Final = 10_000


class DataLossError(PenstockError):
    """Messages that should have been read are gone; the text names the queue, the offsets and the option."""


class Bounds(NamedTuple):
    """First offset that is still there, and the offset behind the last."""

    min_offset: int
    max_offset: int


def place(queue: MessageQueue) -> str:
    """A queue in words."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def served(queues: Iterable[MessageQueue]) -> set[tuple[str, str]]:
    """Which brokers serve which topics at all, as (topic, broker name)."""
    return {(queue.topic, queue.broker_name) for queue in queues}


def pull_header(options: PullOptions, queue: MessageQueue, offset: int, max_messages: int) -> PullHeader:
    """A pull that carries its own subscription, so that no consumer has to be registered for it."""
    return PullHeader(
        consumer_group=options.consumer_group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=PullFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=options.expression,
        expression_type=options.expression_type,
        max_msg_bytes=options.pull_batch_bytes,
        broker_name=queue.broker_name,
        bulk=True,
    )


class Cluster:
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._queues: dict[MessageQueue, str] = {}
        self._queues_until = 0.0
        self._group_exists = False

    @property
    def _brokers(self) -> Brokers:
        # Looked up at each use: this object travels to other processes, connections cannot.
        return brokers(self._options.name_server)

    # ---- queues -------------------------------------------------------------------------------------

    def queues(self, *, refresh: bool = False) -> dict[MessageQueue, str]:
        """The queues of the subscription and the address of the broker of each."""
        if refresh or time.monotonic() >= self._queues_until:
            self._queues = self._retried(self._find_queues)
            self._queues_until = time.monotonic() + self._options.route_cache_ttl_ms / 1000
        return self._queues

    def serving(self, needed: Iterable[MessageQueue]) -> dict[MessageQueue, str]:
        """As `queues`, after waiting a while for those brokers of the needed queues that are not there."""
        brokers_needed = served(needed)
        found: dict[MessageQueue, str] = {}
        for left in range(self._options.fetch_retries, -1, -1):
            try:
                found = self.queues()
            except TopicNotFound as error:
                if not left:
                    raise
                log.warning("%s, or no broker that has it is up; %d more attempts", error, left)
            if brokers_needed <= served(found) or not left:
                break
            self._queues_until = 0.0
            time.sleep(self._options.fetch_retry_interval_ms / 1000)
        return found

    async def _find_queues(self) -> dict[MessageQueue, str]:
        api = self._brokers.api
        topics: Iterable[str] = self._options.topics
        if self._options.topic_pattern is not None:
            topics = await self._matching_topics(self._options.topic_pattern)
        found: dict[MessageQueue, str] = {}
        for topic in topics:
            route = await api.topic_route(topic)
            if route is None:
                if self._options.topic_pattern is not None:
                    continue  # deleted between the two requests
                raise TopicNotFound(
                    f"topic {topic} does not exist on name server {self._options.name_server}"
                )
            found |= _with_addresses(topic, route)
        if not self._options.assigned:
            return found
        missing = [queue for queue in self._options.assigned if queue not in found]
        if missing:
            raise InvalidArgument(f"option assign names {place(missing[0])}, which does not exist")
        return {queue: found[queue] for queue in self._options.assigned}

    async def _matching_topics(self, pattern: str) -> list[str]:
        response = await self._brokers.api.remoting.name_server_request(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        )
        topics = TopicList.decode(response.body or b"{}").topic_list
        matches = re.compile(pattern).fullmatch
        return sorted(
            topic
            for topic in set(topics)
            if matches(topic)
            and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            and not is_system_topic(topic)
        )

    # ---- offsets ------------------------------------------------------------------------------------

    def bounds(
        self, queues: Mapping[MessageQueue, str], *, skip_unreachable: bool = False
    ) -> dict[MessageQueue, Bounds]:
        """First and last offsets; with `skip_unreachable` only of the queues whose brokers answer."""

        parts: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue, address in queues.items():
            parts.setdefault((address, queue.topic), []).append(queue)

        async def ask_all() -> dict[MessageQueue, Bounds]:
            answers = await asyncio.gather(
                *(self._bounds_of(address, topic, part) for (address, topic), part in parts.items()),
                return_exceptions=skip_unreachable,
            )
            found: dict[MessageQueue, Bounds] = {}
            for answer in answers:
                if isinstance(answer, dict):
                    found |= answer
                elif isinstance(answer, PenstockError) and answer.retriable:
                    log.warning("its queues wait: %s", answer)
                else:
                    raise answer
            return found

        return self._brokers.run(ask_all()) if skip_unreachable else self._retried(ask_all)

    async def _bounds_of(
        self, address: str, topic: str, queues: Sequence[MessageQueue]
    ) -> dict[MessageQueue, Bounds]:
        """Of some queues of one broker; thousands of queues must not cost thousands of requests."""
        api = self._brokers.api
        found: dict[MessageQueue, Bounds] = {}
        if len(queues) >= MANY_QUEUES:
            try:
                table = await api.topic_offsets(address, topic)
            except ServerError as error:
                # Some clusters keep this request for administrators; the others are open to every reader.
                log.debug("bounds of %s one by one: %s", topic, error)
            else:
                for queue in queues:
                    if (bounds := table.get(queue)) is not None:
                        found[queue] = Bounds(bounds.min_offset, bounds.max_offset)

        async def ask(queue: MessageQueue, address: str) -> Bounds:
            return Bounds(await api.min_offset(address, queue), await api.max_offset(address, queue))

        rest = {queue: address for queue in queues if queue not in found}
        return found | await _for_each(rest, ask)

    def resolve(
        self, position: Position, queues: Mapping[MessageQueue, str], bounds: Mapping[MessageQueue, Bounds]
    ) -> dict[MessageQueue, int]:
        """The offset in each queue that a position means now."""
        if position.kind == "earliest":
            return {queue: bounds[queue].min_offset for queue in queues}
        if position.kind == "latest":
            return {queue: bounds[queue].max_offset for queue in queues}
        if position.kind == "group":
            return self._group_offsets(queues, bounds)
        if position.kind == "timestamp":
            times = dict.fromkeys(queues, position.timestamp_ms)
            return self._by_time(times, queues, bounds, latest=position.latest_when_too_new)
        given = position.queues or {}
        missing = [place(queue) for queue in queues if queue not in given]
        if missing:
            raise OptionError(f"offsets or timestamps are given, but not for {', '.join(missing[:5])}")
        if position.kind == "timestamps":
            return self._by_time(given, queues, bounds, latest=position.latest_when_too_new)
        named = {EARLIEST: lambda b: b.min_offset, LATEST: lambda b: b.max_offset}
        return {
            queue: named[given[queue]](bounds[queue]) if given[queue] in named else given[queue]
            for queue in queues
        }

    def _group_offsets(
        self, queues: Mapping[MessageQueue, str], bounds: Mapping[MessageQueue, Bounds]
    ) -> dict[MessageQueue, int]:
        """Where the group stands; a queue it has not begun is read from its first message."""
        group = self._options.pull.consumer_group

        async def ask(queue: MessageQueue, address: str) -> int:
            # Without this a broker answers 0 for a queue that it has from the beginning.
            offset = await self._brokers.api.query_offset(address, group, queue, zero_if_not_found=False)
            return bounds[queue].min_offset if offset is None or offset < 0 else offset

        return self._retried(lambda: _for_each(queues, ask))

    def _by_time(
        self,
        times: Mapping[MessageQueue, int],
        queues: Mapping[MessageQueue, str],
        bounds: Mapping[MessageQueue, Bounds],
        *,
        latest: bool,
    ) -> dict[MessageQueue, int]:
        """The first message stored at or after the time."""

        async def ask(queue: MessageQueue, address: str) -> int:
            if bounds[queue].min_offset >= bounds[queue].max_offset:
                return bounds[queue].max_offset
            offset = await self._brokers.api.search_offset(address, queue, times[queue])
            return min(max(offset, bounds[queue].min_offset), bounds[queue].max_offset)

        found = self._retried(lambda: _for_each(queues, ask))
        if not latest:
            for queue, offset in found.items():
                if offset >= bounds[queue].max_offset:
                    raise InvalidArgument(
                        f"no message in {place(queue)} is as new as {times[queue]}; "
                        "set startingOffsetsByTimestampStrategy=latest to start at the end there"
                    )
        return found

    def mean_bytes(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """About how many bytes a message of each queue has, from the next few."""

        async def ask(queue: MessageQueue, address: str) -> int:
            header = pull_header(self._options.pull, queue, positions[queue], SAMPLED_MESSAGES)
            answer = await self._brokers.api.pull(address, header, SAMPLE_TIMEOUT_MS)
            return max(1, len(answer.body) // max(1, answer.next_offset - positions[queue]))

        queues = {queue: self._queues[queue] for queue in positions}
        return self._retried(lambda: _for_each(queues, ask))

    def mirror(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Shows progress in the consumer group: for lag displays only, so a failure is no error."""
        known = {queue: self._queues[queue] for queue in offsets if queue in self._queues}
        group = self._options.pull.consumer_group

        async def tell(queue: MessageQueue, address: str) -> None:
            await self._brokers.api.update_offset(address, group, queue, offsets[queue], oneway=False)

        async def tell_all() -> None:
            if not self._group_exists:
                await self._make_group(group, set(known.values()))
                self._group_exists = True
            await _for_each(known, tell)

        try:
            self._brokers.run(tell_all(), timeout_ms=MIRROR_TIMEOUT_MS)
        except PenstockError as error:
            log.warning("progress of group %s could not be shown: %s", group, error)

    async def _make_group(self, group: str, addresses: Iterable[str]) -> None:
        """Brokers keep offsets only of groups they know, and lag displays look for the group's retry topic.
        Both come into being when a consumer shows itself, so one does, for a moment."""
        api = self._brokers.api
        if await api.topic_route(retry_topic(group)) is not None:
            return
        client_id = f"penstock-spark@{uuid.uuid4().hex[:8]}"
        consumer = ConsumerData(group_name=group, consume_type="CONSUME_ACTIVELY")
        for address in addresses:
            await api.heartbeat(address, HeartbeatData(client_id=client_id, consumer_data_set=[consumer]))
            await api.unregister_client(address, client_id, consumer_group=group)

    # ---- persistence --------------------------------------------------------------------------------

    def _retried(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Spark ends a query at the first error of a driver-side call, so patience has to be here."""

        async def attempts() -> T:
            for left in range(self._options.fetch_retries, -1, -1):
                try:
                    return await ask()
                except PenstockError as error:
                    if not error.retriable or not left:
                        raise
                    log.warning("%s; %d more attempts", error, left)
                    await asyncio.sleep(self._options.fetch_retry_interval_ms / 1000)
            raise AssertionError("the last attempt returns or raises")

        return self._brokers.run(attempts())


def _with_addresses(topic: str, route: TopicRouteData) -> dict[MessageQueue, str]:
    addresses = {
        broker.broker_name: broker_address(broker) for broker in route.broker_datas if broker.broker_addrs
    }
    return {
        queue: addresses[queue.broker_name]
        for queue in subscribe_queues(topic, route)
        if queue.broker_name in addresses
    }


async def _for_each(
    queues: Mapping[MessageQueue, str], ask: Callable[[MessageQueue, str], Awaitable[T]]
) -> dict[MessageQueue, T]:
    places = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def one(queue: MessageQueue, address: str) -> T:
        async with places:
            return await ask(queue, address)

    answers = await asyncio.gather(*(one(queue, address) for queue, address in queues.items()))
    return dict(zip(queues, answers, strict=True))
