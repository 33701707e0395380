"""The producer: one message, many messages, one way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from penstock.client.batching import Batcher
from penstock.client.config import ProducerSettings
from penstock.client.instance import DEFAULT_INSTANCE, ClientInstance, ServiceState, client_id_of, obtain
from penstock.client.sender import Outgoing, Permits, Sender, SendHook, SendResult, by_key, check_queue
from penstock.errors import InvalidArgument, MessageTooLarge, TooManyRequests, WrongState
from penstock.limits import MAX_PROPERTIES_BYTES
from penstock.message.compression import compress
from penstock.message.ids import unique_id
from penstock.message.model import Message
from penstock.message.names import NOT_SENDABLE
from penstock.message.properties import Key, encode_properties
from penstock.message.queue import MessageQueue
from penstock.message.sysflag import COMPRESSED, LZ4, ZLIB, ZSTD
from penstock.wire.codes import RequestCode

COMPRESSION: Final = {"zlib": ZLIB, "lz4": LZ4, "zstd": ZSTD}

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class Producer:
    """Sends messages: `async with Producer("127.0.0.1:9876", group="shop") as producer: ...`

    Every keyword of ProducerSettings may be given here as well.
    """

    instance: ClientInstance
    client_id: str

    def __init__(
        self, name_server: str | None = None, *, settings: ProducerSettings | None = None, **options: Any
    ) -> None:
        self.settings = ProducerSettings.make(name_server, settings, options)
        self.group = self.settings.group
        self.send_hooks: list[SendHook] = []
        self._state = ServiceState.CREATE_JUST
        self._pid = os.getpid()
        self._compression = COMPRESSION[self.settings.compress_type]
        self._max_message_bytes = self.settings.max_message_bytes
        self._permits: Permits | None = None

    # ---- life ---------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._state is ServiceState.RUNNING

    async def start(self) -> None:
        if self._pid != os.getpid():
            raise WrongState("this producer was made before a fork; make one in the child process")
        if self._state is not ServiceState.CREATE_JUST:
            raise WrongState(f"the producer cannot start: its state is {self._state.value}; make a new one")
        self._state = ServiceState.START_FAILED
        settings = self.settings
        name = settings.instance_name
        if name == DEFAULT_INSTANCE:
            name = f"{os.getpid()}#{time.monotonic_ns()}"
        self.client_id = client_id_of(settings, name)
        self.instance = obtain(self.client_id, settings)
        self._sender = Sender(self.instance, settings)
        self._sender.hooks = self.send_hooks
        self._batcher = Batcher(self._sender, settings, self._check_message, self._prepare)
        if settings.max_pending_messages or settings.max_pending_bytes:
            self._permits = Permits(settings.max_pending_messages, settings.max_pending_bytes)
        try:
            self.instance.register_producer(self._sender)
        except WrongState:
            self._state = ServiceState.CREATE_JUST
            raise
        try:
            await self.instance.start()
            for topic in settings.topics:
                await self._sender.publish_info(topic)
        except BaseException:
            await self._leave()
            raise
        self._state = ServiceState.RUNNING
        await self.instance.heartbeat_all()

    async def close(self) -> None:
        if self._state is not ServiceState.RUNNING:
            return
        self._check()
        self._state = ServiceState.SHUTDOWN_ALREADY
        await self._leave()

    async def _leave(self) -> None:
        await self.instance.unregister_producer(self.group)
        await self.instance.release()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check(self) -> None:
        if self._state is not ServiceState.RUNNING:
            raise WrongState(f"the producer is not running: its state is {self._state.value}")
        if self._pid != os.getpid():
            raise WrongState("this producer was made before a fork; make one in the child process")

    # ---- sending ------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        queue_key: str | int | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Sends one message and waits until it is stored.

        Without a queue the message goes to the next one in turn, and on failure to another broker. With
        `queue_key` all messages of a key go to the same queue, in the order they were sent; `selector` and
        `queue` choose it directly. A chosen queue gets one attempt.

        Raises SendError if the message was not stored, SendOutcomeUnknown if it may have been.
        """
        self._check()
        outgoing = self._prepare(message)
        timeout_ms = self.settings.send_timeout_ms if timeout_ms is None else timeout_ms
        if queue_key is not None or selector is not None or queue is not None:
            queue = await self._chosen(message, queue, queue_key, selector)
        permits = self._permits
        if permits is None:
            return await self._sender.deliver(outgoing, queue=queue, timeout_ms=timeout_ms)
        started = time.monotonic()
        size = len(outgoing.body)
        if not await permits.take(size, timeout_ms):
            raise TooManyRequests(f"no place for another send became free in {timeout_ms} ms")
        try:
            left_ms = timeout_ms - int((time.monotonic() - started) * 1000)
            return await self._sender.deliver(outgoing, queue=queue, timeout_ms=max(1, left_ms))
        finally:
            await permits.give_back(size)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        queue_key: str | int | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Sends and does not wait for an answer: the message may be lost without a sign of it."""
        self._check()
        outgoing = self._prepare(message)
        if queue_key is not None or selector is not None or queue is not None:
            queue = await self._chosen(message, queue, queue_key, selector)
        await self._sender.oneway(outgoing, queue=queue)

    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue_key: str | int | Callable[[Message], str | int] | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Sends many messages, in batches, many batches at a time; results in the order of the messages.

        With `queue_key` messages of one key go to one queue in order. Raises SendManyFailed if any message
        failed; its `results` tells for each message how it went.
        """
        self._check()
        return await self._batcher.send_many(messages, queue_key, timeout_ms or self.settings.send_timeout_ms)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Sends messages of one topic as one batch, stored all or none, next to each other in one queue."""
        self._check()
        outgoing = self._batcher.one_batch(messages)
        if queue is not None:
            check_queue(outgoing.topic, queue)
        return await self._sender.deliver(outgoing, queue=queue, timeout_ms=timeout_ms or 0)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be sent to, in the order that keys are hashed onto."""
        self._check()
        return list((await self._sender.publish_info(topic)).queues)

    async def _chosen(
        self,
        message: Message,
        queue: MessageQueue | None,
        queue_key: str | int | None,
        selector: QueueSelector | None,
    ) -> MessageQueue:
        if (queue is not None) + (queue_key is not None) + (selector is not None) > 1:
            raise InvalidArgument("give one of queue, queue_key and selector")
        if queue is None:
            queues = (await self._sender.publish_info(message.topic)).queues
            queue = by_key(queues, queue_key) if selector is None else selector(list(queues), message)
            if not isinstance(queue, MessageQueue):
                raise InvalidArgument(f"the selector must return one of the queues, not {queue!r}")
        check_queue(message.topic, queue)
        return queue

    def _check_message(self, message: Message) -> None:
        if message.topic in NOT_SENDABLE:
            raise InvalidArgument(f"topic {message.topic} belongs to the system, nothing can be sent to it")
        size = len(message.body)
        if not 0 < size <= self._max_message_bytes:
            if not size:
                raise InvalidArgument("the body is empty")
            raise MessageTooLarge(f"a body of {size} bytes is over the limit of {self._max_message_bytes}")

    def _prepare(self, message: Message) -> Outgoing:
        self._check_message(message)
        properties = message.properties
        message_id = properties.get(Key.UNIQ_KEY)
        if message_id is None:
            message_id = properties[Key.UNIQ_KEY] = unique_id()
        body, sys_flag = message.body, 0
        if len(body) >= self.settings.compress_over_bytes:
            smaller = compress(body, self._compression, self.settings.compress_level)
            if len(smaller) < len(body):  # brokers refuse a body that grew over their limit
                body, sys_flag = smaller, COMPRESSED | self._compression
        text = encode_properties(properties)
        if len(text) > MAX_PROPERTIES_BYTES // 4 and len(text.encode()) > MAX_PROPERTIES_BYTES:
            raise MessageTooLarge(
                f"properties of {len(text.encode())} bytes: at most {MAX_PROPERTIES_BYTES} fit"
            )
        return Outgoing(
            RequestCode.SEND_MESSAGE_V2, message.topic, body, text, message_id, sys_flag, message.flag
        )
