"""Sending through a client instance: which queue, how many attempts, and what a failure means.

One attempt goes to one queue. A retry goes to another broker if there is one, with what is left of the
time. If any attempt may have been stored, the final error says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from penstock.client.api import RETRIABLE_CODES, server_error, vip_address
from penstock.client.config import ProducerSettings
from penstock.client.faults import LatencyFaults
from penstock.client.routes import publish_queues
from penstock.errors import (
    BrokerNotFound,
    InvalidArgument,
    PenstockError,
    RemotingError,
    SendError,
    SendOutcomeUnknown,
    ServerError,
    TopicNotFound,
)
from penstock.message.hashing import java_hash
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import TopicRouteData
from penstock.wire.codes import ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import SendHeaderV2, SendResponseHeader

if TYPE_CHECKING:
    from penstock.client.instance import ClientInstance

log = logging.getLogger("penstock.client")


class SendStatus(Enum):
    """Stored in every case; the others than OK say what was not confirmed in time."""

    OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


_OK: Final = SendStatus.OK
_STATUS: Final = {int(status.value): status for status in SendStatus}
_new_tuple: Final = tuple.__new__  # what a NamedTuple's own constructor calls, at half the cost


class SendResult(NamedTuple):
    status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str | None = None


class Outgoing(msgspec.Struct, eq=False, gc=False):
    """One request's worth of message, ready for the wire: made once, sent as often as needed."""

    code: int
    topic: str
    body: bytes
    properties: str
    message_id: str
    sys_flag: int = 0
    flag: int = 0
    batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


class SendHook(Protocol):
    """Called around every attempt. `before` may veto the send by raising."""

    def before(self, group: str, queue: MessageQueue, message: Outgoing) -> None: ...

    def after(
        self,
        group: str,
        queue: MessageQueue,
        message: Outgoing,
        result: SendResult | None,
        error: Exception | None,
    ) -> None: ...


class PublishInfo:
    """The queues of a topic and whose turn it is; starts at random, so that many producers spread."""

    __slots__ = ("_turn", "has_route", "queues")

    def __init__(self, queues: Sequence[MessageQueue] = (), *, has_route: bool = False) -> None:
        self.queues = list(queues)
        self.has_route = has_route
        self._turn = random.getrandbits(31)

    def next(self) -> MessageQueue:
        self._turn = turn = self._turn + 1 & 0x7FFF_FFFF
        return self.queues[turn % len(self.queues)]

    def shuffle(self) -> None:
        self._turn = random.getrandbits(31)


class Sender:
    """What every producer of an instance, the inner one included, sends with."""

    def __init__(self, instance: ClientInstance, settings: ProducerSettings) -> None:
        self.instance = instance
        self.settings = settings
        self.group = settings.group
        self.hooks: list[SendHook] = []
        self.faults = LatencyFaults(settings.latency_steps_ms, enabled=settings.latency_fault_tolerance)
        self._publish: dict[str, PublishInfo] = {}
        self._retry_codes = RETRIABLE_CODES | settings.retry_response_codes
        self._request = instance.remoting.request
        self._master = instance.routes.master

    # ---- routes -------------------------------------------------------------------------------------

    def topics(self) -> Iterable[str]:
        return list(self._publish)

    def needs_route(self, topic: str) -> bool:
        info = self._publish.get(topic)
        return info is None or not info.queues

    def route_changed(self, topic: str, route: TopicRouteData) -> None:
        info = self._publish.setdefault(topic, PublishInfo())
        info.queues = publish_queues(topic, route)
        info.has_route = True

    def known(self, topic: str) -> PublishInfo | None:
        info = self._publish.get(topic)
        return info if info is not None and info.queues else None

    async def publish_info(self, topic: str) -> PublishInfo:
        """Asks for the route if it is not known; a topic that does not exist borrows the queues of the
        auto-create topic, and comes to life with the first message."""
        info = self.known(topic)
        if info is not None:
            return info
        # The placeholder puts the topic on the list of routes to refresh.
        self._publish.setdefault(topic, PublishInfo())
        await self.instance.update_route(topic)
        info = self._publish[topic]
        if not info.has_route and not info.queues:
            await self.instance.update_route(topic, borrow_queues=self.settings.default_topic_queues)
            info = self._publish[topic]
        if not info.queues and info.has_route:
            raise SendError(
                f"topic {topic} takes no messages now: none of its brokers has a master, or it is read-only"
            )
        if not info.queues:
            raise TopicNotFound(
                f"no route for topic {topic}: create it, or check that a broker which creates topics is alive"
            )
        return info

    # ---- choice of queue ----------------------------------------------------------------------------

    def select(self, info: PublishInfo, last_broker: str | None, now_ms: float) -> MessageQueue:
        """The next queue in turn, on another broker than the last attempt's if there is one."""
        count = len(info.queues)
        if last_broker is None and not self.faults.enabled:
            return info.next()
        if self.faults.enabled:
            if last_broker is not None:
                info.shuffle()
            for _ in range(count):
                queue = info.next()
                if queue.broker_name != last_broker and self.faults.available(queue.broker_name, now_ms):
                    return queue
            for _ in range(count):
                queue = info.next()
                if queue.broker_name != last_broker and self.faults.reachable(queue.broker_name):
                    return queue
        else:
            for _ in range(count):
                queue = info.next()
                if queue.broker_name != last_broker:
                    return queue
        return info.next()

    # ---- sending ------------------------------------------------------------------------------------

    async def deliver(
        self, message: Outgoing, *, queue: MessageQueue | None = None, timeout_ms: int = 0
    ) -> SendResult:
        """Sends until it is stored, an error is final, attempts are used up or the time is over.

        A message for a chosen queue gets one attempt: another queue would break its order.
        """
        settings = self.settings
        timeout_ms = timeout_ms or settings.send_timeout_ms
        started = begin = time.monotonic()
        info = None
        attempts = 1
        if queue is None:
            attempts += settings.retry_times
            info = self._publish.get(message.topic)
            if info is None or not info.queues:
                info = await self.publish_info(message.topic)
                begin = time.monotonic()
        attempt_timeout_ms = settings.send_attempt_timeout_ms
        faults = self.faults
        last_broker: str | None = None
        errors: list[Exception] = []
        kept: SendResult | None = None
        for attempt in range(attempts):
            left_ms = timeout_ms - int((begin - started) * 1000)
            if left_ms <= 0:
                break
            if attempt_timeout_ms > 0 and attempt + 1 < attempts:
                left_ms = min(left_ms, attempt_timeout_ms)
            target = queue or self.select(
                info or await self.publish_info(message.topic), last_broker, begin * 1000
            )
            last_broker = target.broker_name
            isolate, reachable = False, True
            try:
                address = self._master(last_broker) or await self.instance.master_address(target)
                if attempt == 0 and settings.vip_channel:
                    address = vip_address(address)
                if self.hooks:
                    result = await self._hooked_attempt(message, target, address, left_ms)
                else:
                    response = await self._request(
                        address, message.code, self._header(message, target), message.body, left_ms
                    )
                    result = read_result(response, message, target, address)
                if result.status is _OK or not settings.retry_another_broker_when_not_stored_ok:
                    return result
                kept = result
            except ServerError as error:
                errors.append(error)
                isolate, reachable = True, False
                if error.code not in self._retry_codes:
                    break
            except RemotingError as error:
                errors.append(error)
                isolate = True
            except BrokerNotFound as error:
                errors.append(error)
            finally:
                if faults.enabled:
                    now = time.monotonic()
                    faults.note(
                        last_broker,
                        (now - begin) * 1000,
                        isolate=isolate,
                        reachable=reachable,
                        now_ms=now * 1000,
                    )
            begin = time.monotonic()
        if kept is not None:
            return kept
        raise _final_error(message, errors, timeout_ms)

    async def _hooked_attempt(
        self, message: Outgoing, queue: MessageQueue, address: str, timeout_ms: int
    ) -> SendResult:
        for hook in self.hooks:
            hook.before(self.group, queue, message)
        result, failure = None, None
        try:
            response = await self._request(
                address, message.code, self._header(message, queue), message.body, timeout_ms
            )
            result = read_result(response, message, queue, address)
            return result
        except PenstockError as error:
            failure = error
            raise
        finally:
            self._after_hooks(queue, message, result, failure)

    def _after_hooks(
        self, queue: MessageQueue, message: Outgoing, result: SendResult | None, error: Exception | None
    ) -> None:
        for hook in self.hooks:
            try:
                hook.after(self.group, queue, message, result, error)
            except Exception:
                log.exception("send hook %r failed; the send is not affected", hook)

    async def oneway(self, message: Outgoing, *, queue: MessageQueue | None = None) -> None:
        """One attempt, no answer: it may be lost without anybody knowing."""
        if queue is None:
            info = self.known(message.topic) or await self.publish_info(message.topic)
            queue = self.select(info, None, time.monotonic() * 1000)
        address = self._master(queue.broker_name) or await self.instance.master_address(queue)
        for hook in self.hooks:
            hook.before(self.group, queue, message)
        await self.instance.remoting.oneway(address, message.code, self._header(message, queue), message.body)

    def _header(self, message: Outgoing, queue: MessageQueue) -> SendHeaderV2:
        settings = self.settings
        return SendHeaderV2(
            producer_group=self.group,
            topic=message.topic,
            default_topic=settings.create_topic_key,
            default_topic_queue_nums=settings.default_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=message.flag,
            properties=message.properties,
            reconsume_times=message.reconsume_times,
            unit_mode=settings.unit_mode,
            max_reconsume_times=message.max_reconsume_times,
            batch=message.batch,
            broker_name=queue.broker_name,
        )


def read_result(response: Command, message: Outgoing, queue: MessageQueue, address: str) -> SendResult:
    status = _STATUS.get(response.code)
    if status is None:
        raise server_error(response, address)
    header = response.header(SendResponseHeader)
    if header.queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, header.queue_id)
    return _new_tuple(
        SendResult,
        (
            status,
            header.batch_uniq_id or message.message_id,
            queue,
            header.queue_offset,
            header.msg_id,
            header.transaction_id,
            header.recall_handle,
            header.region,
        ),
    )


def _final_error(message: Outgoing, errors: list[Exception], timeout_ms: int) -> PenstockError:
    """The one error a caller sees; it may stand for several attempts."""
    what = f"message {message.message_id.partition(',')[0]} to topic {message.topic}"
    if not errors:
        return SendError(f"{what} was not sent: no time left of {timeout_ms} ms")
    text = "; ".join(str(error) for error in errors)
    unknown = any(getattr(error, "outcome_unknown", False) for error in errors)
    kind = SendOutcomeUnknown if unknown else SendError
    state = "may or may not be stored" if unknown else "was not stored"
    error = kind(f"{what} {state} after {len(errors)} attempt(s): {text}")
    error.__cause__ = errors[-1]
    return error


def by_key(queues: Sequence[MessageQueue], key: str | int | None) -> MessageQueue:
    """The queue that every client of the protocol finds for a key."""
    if isinstance(key, int):
        number = key if -(2**31) <= key < 2**31 else _long_hash(key)
    else:
        number = java_hash(key or "")
    return queues[abs(number) % len(queues)]


def _long_hash(value: int) -> int:
    """A 64-bit integer's hash: its two halves, one over the other."""
    bits = value & 0xFFFF_FFFF_FFFF_FFFF
    folded = (bits ^ bits >> 32) & 0xFFFF_FFFF
    return folded - 2**32 if folded >= 2**31 else folded


def check_queue(topic: str, queue: MessageQueue) -> None:
    if queue.topic != topic:
        raise InvalidArgument(f"the message is for topic {topic}, the queue belongs to {queue.topic}")


class Permits:
    """Back-pressure: sends under way, bounded by number and bytes. 0 is unbounded."""

    def __init__(self, messages: int, size_bytes: int) -> None:
        self._messages = messages
        self._bytes = size_bytes
        self._used_messages = 0
        self._used_bytes = 0
        self._changed = asyncio.Condition()

    def _fits(self, size: int) -> bool:
        return (not self._messages or self._used_messages < self._messages) and (
            not self._bytes or not self._used_bytes or self._used_bytes + size <= self._bytes
        )

    async def take(self, size: int, timeout_ms: int) -> bool:
        async with self._changed:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._changed.wait_for(lambda: self._fits(size))
            except TimeoutError:
                return False
            self._used_messages += 1
            self._used_bytes += size
            return True

    async def give_back(self, size: int) -> None:
        async with self._changed:
            self._used_messages -= 1
            self._used_bytes -= size
            self._changed.notify_all()
