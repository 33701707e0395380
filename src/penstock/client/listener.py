"""What user code looks like to a push consumer: two contracts, one shape inside.

RocketMQ's own contract takes a batch and a context and returns a status. Python's takes one message: a
normal return is success, an exception is a retry, `RetryLater` chooses the delay.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, ClassVar, Final, Protocol

import msgspec

from penstock.client.pulled import PulledMessage
from penstock.errors import InvalidArgument
from penstock.message.model import ReceivedMessage
from penstock.message.queue import MessageQueue

ALL_ACKED: Final = 2**31 - 1


class ConsumeStatus(Enum):
    """What a concurrent listener says of its batch; None or an exception counts as RECONSUME_LATER."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class OrderlyStatus(Enum):
    """What an orderly listener says; None or an exception counts as SUSPEND. COMMIT and ROLLBACK are for
    contexts with `auto_commit = False`."""

    SUCCESS = "SUCCESS"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


class ReturnType(IntEnum):
    """How a listener call ended, as hooks learn it."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


class RetryLater(Exception):
    """Raised by a handler: try this message again, after the delay of a level.

    Level 0 lets the broker choose (longer with each attempt), 1 to 18 are its delay levels (in POP mode the
    steps of `pop_retry_delays_ms`), -1 sends the message to the dead-letter topic at once. In orderly
    consumption `suspend_ms` says when to try again.
    """

    def __init__(self, reason: str = "", *, level: int = 0, suspend_ms: int = -1) -> None:
        super().__init__(reason or f"retry later at level {level}")
        self.level = level
        self.suspend_ms = suspend_ms


class ConsumeContext(msgspec.Struct, eq=False, gc=False):
    """Of one concurrent batch. `ack_index`: messages up to it succeeded, those after it are retried."""

    queue: MessageQueue
    ack_index: int = ALL_ACKED
    delay_level: int = 0

    success: ClassVar = ConsumeStatus.SUCCESS


class OrderlyContext(msgspec.Struct, eq=False, gc=False):
    """Of one orderly batch. `suspend_ms` -1 takes the consumer's setting."""

    queue: MessageQueue
    auto_commit: bool = True
    suspend_ms: int = -1

    success: ClassVar = OrderlyStatus.SUCCESS


Status = ConsumeStatus | OrderlyStatus
Context = ConsumeContext | OrderlyContext
ConcurrentListener = Callable[
    [Sequence[ReceivedMessage], ConsumeContext], ConsumeStatus | Awaitable[ConsumeStatus | None] | None
]
OrderlyListener = Callable[
    [Sequence[ReceivedMessage], OrderlyContext], OrderlyStatus | Awaitable[OrderlyStatus | None] | None
]
BatchListener = ConcurrentListener | OrderlyListener
Handler = Callable[[ReceivedMessage], Any]


@dataclass(slots=True)
class ConsumeHookContext:
    group: str
    queue: MessageQueue
    messages: Sequence[ReceivedMessage]
    success: bool = False
    status: Status | None = None
    return_type: ReturnType | None = None
    props: dict[str, Any] = field(default_factory=dict)
    """For hooks to keep something from before to after."""


class ConsumeHook(Protocol):
    """Called around every listener call, on the listener's thread. What it raises is logged and ignored."""

    def before(self, context: ConsumeHookContext) -> None: ...

    def after(self, context: ConsumeHookContext) -> None: ...


class FilterHook(Protocol):
    """May take messages out of a pulled batch before it is cached. What it raises is logged and ignored."""

    def filter(self, group: str, queue: MessageQueue, messages: list[PulledMessage]) -> None: ...


class Listeners:
    """The user's code, by topic: either one batch listener or handlers for single messages."""

    call: Callable[[Sequence[ReceivedMessage], Any], Any]
    """Plain user code: a status or None."""
    call_async: Callable[[Sequence[ReceivedMessage], Any], Awaitable[Any]]

    def __init__(self, batch_listener: BatchListener | None) -> None:
        self._batch = batch_listener
        self._batch_async = False
        self._handlers: dict[str, tuple[Handler, bool]] = {}
        if batch_listener is None:
            self.call, self.call_async = self._handle, self._handle_async
        else:
            self._batch_async = _is_async(batch_listener)
            # Nothing of ours stands between a worker and the listener: this is called for every message.
            self.call = self.call_async = batch_listener  # type: ignore[assignment]  # kinds are checked at the start

    def add(self, topic: str, handler: Handler) -> None:
        if self._batch is not None:
            raise InvalidArgument("a consumer has either a batch listener or handlers by topic, not both")
        if topic in self._handlers:
            raise InvalidArgument(f"topic {topic} has a handler already")
        self._handlers[topic] = (handler, _is_async(handler))

    def discard(self, topic: str) -> None:
        self._handlers.pop(topic, None)

    @property
    def defined(self) -> bool:
        return self._batch is not None or bool(self._handlers)

    @property
    def one_by_one(self) -> bool:
        """Handlers get single messages, so that each succeeds or fails alone."""
        return self._batch is None

    def is_async(self, topic: str) -> bool:
        if self._batch is not None:
            return self._batch_async
        entry = self._handlers.get(topic)
        return entry is not None and entry[1]

    def _handle(self, messages: Sequence[ReceivedMessage], context: Context) -> Status:
        message = messages[0]
        self._handler(message.topic)(message)
        return context.success

    async def _handle_async(self, messages: Sequence[ReceivedMessage], context: Context) -> Status:
        message = messages[0]
        await self._handler(message.topic)(message)
        return context.success

    def _handler(self, topic: str) -> Handler:
        entry = self._handlers.get(topic)
        if entry is None:
            raise InvalidArgument(
                f"no handler for topic {topic}; messages of it are retried until there is one"
            )
        return entry[0]


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
    )
