"""The pull loop of a push consumer, step by step: checks, request, answer.

A pull request is either put back (at once or after a delay) or dropped with its queue; there is no third
way out, so a queue cannot be forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from penstock.client.api import PullFlag, PullResult, PullStatus, parse_pull
from penstock.client.config import PushSettings
from penstock.client.filtering import by_hooks, by_tag
from penstock.client.process_queue import ProcessQueue
from penstock.client.pull_service import PullRequest
from penstock.client.pulled import PulledMessage, PullInfo
from penstock.client.remoting import Channel
from penstock.client.routes import MASTER_ID, BrokerAddress
from penstock.errors import BrokerNotFound, CorruptRecord, PenstockError, RequestTimeout, ServerError
from penstock.message.names import is_retry_topic
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import SubscriptionData
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import PullHeader

if TYPE_CHECKING:
    from penstock.client.push_consumer import PushConsumer

log = logging.getLogger("penstock.client")

WARN_EVERY = 1_000
SQL_SINCE_VERSION = 232
"""Brokers before 4.1.0 know only tags."""
MIB = 1024 * 1024

# Looking up a member of an enum takes long before Python 3.12, and these are asked for with every pull.
_PULL_MESSAGE: Final = RequestCode.PULL_MESSAGE
_FOUND: Final = PullStatus.FOUND


class Puller:
    """Of one push consumer."""

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._settings: PushSettings = consumer.settings
        self._clustering = consumer.clustering
        self._instance = consumer.instance
        self._service = consumer.instance.pull_service
        self._suggested: dict[MessageQueue, int] = {}
        self._held_back = 0
        self.threshold_messages = self._settings.pull_threshold_messages
        self.threshold_mib = self._settings.pull_threshold_mib

    # ---- checks -------------------------------------------------------------------------------------

    def pull(self, request: PullRequest) -> None:
        process_queue = request.process_queue
        if process_queue.dropped:
            log.debug("%s was given up, its pull request ends", request.queue)
            return
        process_queue.last_pull_ms = self._instance.now_ms()
        timings = self._settings.timings
        consumer = self._consumer
        if not consumer.running:
            self._service.put_later(request, timings.pull_error_ms)
            return
        if consumer.paused:
            self._service.put_later(request, timings.pull_paused_ms)
            return
        full = self._full(request)
        if full:
            if self._held_back % WARN_EVERY == 0:
                log.warning(
                    "%s, pulling again when there is room (held back %d times)", full, self._held_back + 1
                )
            self._held_back += 1
            self._service.put_later(request, timings.flow_control_ms, or_room_at=self.threshold_messages // 2)
            return
        if self._settings.orderly:
            if not process_queue.locked:
                self._service.put_later(request, timings.pull_error_ms)
                return
            if not request.previously_locked:
                self._instance.spawn(self._fix_offset(request))
                return
        subscription = consumer.subscription(request.queue.topic)
        if subscription is None:
            log.warning("no subscription for topic %s, looking again later", request.queue.topic)
            self._service.put_later(request, timings.pull_error_ms)
            return
        self._send(request, subscription)

    def _full(self, request: PullRequest) -> str:
        """Why the queue's cache takes no more; empty if it does."""
        process_queue = request.process_queue
        if process_queue.count > self.threshold_messages:
            return f"{request.queue} has {process_queue.count} messages cached"
        if process_queue.cached_bytes // MIB > self.threshold_mib:
            return f"{request.queue} has {process_queue.cached_bytes // MIB} MiB cached"
        if not self._settings.orderly and process_queue.span > self._settings.max_span:
            return f"{request.queue} has offsets {process_queue.span} apart cached; its first message is slow"
        return ""

    async def _fix_offset(self, request: PullRequest) -> None:
        """Locked for the first time: another consumer may have moved on since the offset was read."""
        try:
            offset = await self._consumer.start_offset(request.queue)
        except PenstockError as error:
            log.warning("offset of %s not known, trying again later: %s", request.queue, error)
            self._service.put_later(request, self._settings.timings.pull_error_ms)
            return
        if offset < request.next_offset:
            log.warning(
                "%s is locked now and goes back from %d to %d", request.queue, request.next_offset, offset
            )
        request.previously_locked = True
        request.next_offset = offset
        self._service.put(request)

    # ---- the request --------------------------------------------------------------------------------

    def _send(self, request: PullRequest, subscription: SubscriptionData) -> None:
        try:
            target = self._target(request.queue)
        except PenstockError as error:
            self._failed(request, error)
            return
        if target is None:
            self._instance.spawn(self._find_and_send(request, subscription))
            return
        channel = self._instance.remoting.ready(target.address)
        if channel is None:
            self._instance.spawn(self._connect_and_send(request, subscription, target))
            return
        self._write(request, subscription, target, channel)

    def _target(self, queue: MessageQueue) -> BrokerAddress | None:
        target = self._instance.routes.replica(queue.broker_name, self._suggested.get(queue, MASTER_ID))
        if target is None or not self._settings.class_filter:
            return target
        route = self._instance.route(queue.topic)
        servers = route.filter_server_table.get(target.address) if route is not None else None
        if not servers:
            raise BrokerNotFound(
                f"no filter server of broker {queue.broker_name} is known for topic {queue.topic}"
            )
        return BrokerAddress(random.choice(servers), target.is_slave, target.version)

    async def _find_and_send(self, request: PullRequest, subscription: SubscriptionData) -> None:
        try:
            await self._instance.update_route(request.queue.topic)
            target = self._target(request.queue)
            if target is None:
                raise BrokerNotFound(f"no address of broker {request.queue.broker_name} is known")
        except PenstockError as error:
            self._failed(request, error)
            return
        await self._connect_and_send(request, subscription, target)

    async def _connect_and_send(
        self, request: PullRequest, subscription: SubscriptionData, target: BrokerAddress
    ) -> None:
        try:
            channel = await self._instance.remoting.connection(target.address)
            self._write(request, subscription, target, channel)
        except PenstockError as error:
            self._failed(request, error)

    def _write(
        self, request: PullRequest, subscription: SubscriptionData, target: BrokerAddress, channel: Channel
    ) -> None:
        began = self._instance.loop.time()
        try:
            header = self._header(request, subscription, target)
            answer = channel.request_nowait(_PULL_MESSAGE, header, timeout_ms=self._settings.pull_timeout_ms)
        except PenstockError as error:
            self._failed(request, error)
            return

        def answered(future: asyncio.Future[Command]) -> None:
            self._answered(request, future, channel, subscription, began)

        answer.add_done_callback(answered)

    def _header(
        self, request: PullRequest, subscription: SubscriptionData, target: BrokerAddress
    ) -> PullHeader:
        settings, queue = self._settings, request.queue
        flags = PullFlag.SUSPEND
        commit_offset = 0
        if self._clustering:
            commit_offset = self._consumer.offset_store.memory(queue) or 0
            # Only a master keeps offsets.
            if commit_offset > 0 and not target.is_slave:
                flags |= PullFlag.COMMIT_OFFSET
        expression = None
        if settings.class_filter:
            flags |= PullFlag.CLASS_FILTER
        elif settings.post_subscription:
            flags |= PullFlag.SUBSCRIPTION
            expression = subscription.sub_string
        if subscription.expression_type != "TAG" and 0 <= target.version < SQL_SINCE_VERSION:
            raise BrokerNotFound(
                f"{target.address} (version {target.version}) is not known to filter by "
                f"{subscription.expression_type}"
            )
        return PullHeader(
            consumer_group=request.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=request.next_offset,
            max_msg_nums=settings.pull_batch,
            sys_flag=flags,
            commit_offset=commit_offset,
            suspend_timeout_millis=settings.pull_suspend_ms,
            subscription=expression,
            sub_version=self._consumer.announced_version(queue.topic),
            expression_type=subscription.expression_type,
            max_msg_bytes=settings.pull_batch_bytes,
            broker_name=queue.broker_name,
        )

    # ---- the answer ---------------------------------------------------------------------------------

    def _answered(
        self,
        request: PullRequest,
        answer: asyncio.Future[Command],
        channel: Channel,
        subscription: SubscriptionData,
        began: float,
    ) -> None:
        try:
            result = parse_pull(answer.result(), channel.address)
            self._suggested[request.queue] = result.suggested_broker_id
            if result.status is _FOUND:
                self._found(request, result, subscription, began)
            elif result.status is PullStatus.OFFSET_ILLEGAL:
                self._offset_illegal(request, result)
            else:
                self._nothing_found(request, result)
        except asyncio.CancelledError:
            return
        except RequestTimeout as error:
            if channel.heard < began:
                channel.abort()
            self._failed(request, error)
        except ServerError as error:
            if error.code == ResponseCode.GO_AWAY:
                self._instance.remoting.forget(channel.address)
            self._failed(request, error)
        except PenstockError as error:
            self._failed(request, error)
        except Exception:
            log.exception("the answer to a pull of %s could not be handled", request.queue)
            self._service.put_later(request, self._settings.timings.pull_error_ms)

    def _found(
        self, request: PullRequest, result: PullResult, subscription: SubscriptionData, began: float
    ) -> None:
        loop = self._instance.loop
        asked = request.next_offset
        request.next_offset = result.next_offset
        request.process_queue.stats.pull_rt.add((loop.time() - began) * 1000)
        if self._settings.pull_interval_ms == 0 and self._has_room_behind(request.process_queue, result):
            # The next pull has left before these messages are looked at: the broker works meanwhile.
            self._service.take(request)
            loop.call_soon(self._take_in, request, result, subscription, asked)
        elif self._take_in(request, result, subscription, asked):
            self._service.put_later(request, self._settings.pull_interval_ms)

    def _has_room_behind(self, process_queue: ProcessQueue, result: PullResult) -> bool:
        """Whether flow control lets another pull go even with this answer in the cache."""
        first = process_queue.first_offset
        return (
            process_queue.count + self._settings.pull_batch <= self.threshold_messages
            and (process_queue.cached_bytes + len(result.body)) // MIB <= self.threshold_mib
            and (first is None or result.next_offset - first <= self._settings.max_span)
        )

    def _take_in(
        self, request: PullRequest, result: PullResult, subscription: SubscriptionData, asked: int
    ) -> bool:
        """Caches what was found and hands it out; False if the queue is not to be pulled any more."""
        process_queue = request.process_queue
        if process_queue.dropped:
            return False
        try:
            self._hand_on(request, result, subscription, asked)
        except Exception as error:
            if not isinstance(error, CorruptRecord):
                log.exception("what was pulled from %s could not be handled", request.queue)
            # Not from where it stands: these messages would be passed over.
            lowest = min(process_queue.taken, default=process_queue.first_offset)
            offset = asked if lowest is None else lowest
            self._start_anew(request, offset, str(error), self._settings.timings.pull_error_ms)
            return False
        return True

    def _hand_on(
        self, request: PullRequest, result: PullResult, subscription: SubscriptionData, asked: int
    ) -> None:
        queue, process_queue = request.queue, request.process_queue
        messages = self._messages(queue, result, subscription)
        if not messages:
            if not process_queue.count:
                self._correct(request)
            return
        first = messages[0].record.queue_offset
        if result.next_offset < asked or first < asked:
            log.warning(
                "%s goes backwards: asked for offset %d, got %d, next is %d",
                queue,
                asked,
                first,
                result.next_offset,
            )
        process_queue.stats.pull_messages.add(len(messages))
        dispatch = process_queue.put(messages, result.max_offset)
        self._consumer.consume_service.submit(process_queue, messages, dispatch=dispatch)

    def _messages(
        self, queue: MessageQueue, result: PullResult, subscription: SubscriptionData
    ) -> list[PulledMessage]:
        info = PullInfo(queue, result.min_offset, result.max_offset)
        messages = by_tag([PulledMessage(record, info) for record in result.records()], subscription)
        by_hooks(messages, self._consumer.filter_hooks, self._settings.group, queue)
        return messages

    def _nothing_found(self, request: PullRequest, result: PullResult) -> None:
        request.next_offset = result.next_offset
        if not request.process_queue.count:
            self._correct(request)
        self._service.put(request)

    def _correct(self, request: PullRequest) -> None:
        """Nothing is cached, so everything before the next offset is done with."""
        if not request.process_queue.dropped:
            self._consumer.offset_store.update(request.queue, request.next_offset, increase_only=True)

    def _offset_illegal(self, request: PullRequest, result: PullResult) -> None:
        why = f"it has no offset {request.next_offset}"
        self._start_anew(request, result.next_offset, why, self._settings.timings.offset_illegal_ms)

    def _start_anew(self, request: PullRequest, offset: int, why: str, delay_ms: int) -> None:
        """The queue is dropped at once, so that nothing is committed; later the offset is repaired and the
        next rebalance starts the queue anew."""
        self._consumer.rebalancer.hold(request.process_queue)
        log.warning("%s is started anew at %d in %d ms: %s", request.queue, offset, delay_ms, why)
        self._instance.spawn(self._repair(request, offset, delay_ms))

    async def _repair(self, request: PullRequest, offset: int, delay_ms: int) -> None:
        await asyncio.sleep(delay_ms / 1000)
        store, rebalancer = self._consumer.offset_store, self._consumer.rebalancer
        async with rebalancer.lock:
            if rebalancer.owns(request.process_queue):
                store.freeze(request.queue, offset)
                await store.persist([request.queue])
                await rebalancer.let_go(request.process_queue)
        self._instance.rebalance_service.wake()

    def _failed(self, request: PullRequest, error: PenstockError) -> None:
        if request.process_queue.dropped:
            return
        busy = isinstance(error, ServerError) and error.code == ResponseCode.FLOW_CONTROL
        timings = self._settings.timings
        delay_ms = timings.broker_busy_ms if busy else timings.pull_error_ms
        level = logging.DEBUG if is_retry_topic(request.queue.topic) else logging.WARNING
        log.log(level, "pull of %s failed, again in %d ms: %s", request.queue, delay_ms, error)
        self._service.put_later(request, delay_ms)
