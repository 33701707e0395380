"""The client without await: the same names, the same semantics, no logic of its own.

One event loop in a daemon thread serves all faces of a process. It starts with the first use, so a forked
child gets its own; what was made before a fork says so when it is used in the child. At interpreter exit
whatever is still open is closed, within a deadline, so that nothing hangs.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import signal
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from penstock.client import producer as core_producer
from penstock.client import pull_consumer as core_pull
from penstock.client import push_consumer as core_push
from penstock.client import simple_consumer as core_simple
from penstock.client.config import ProducerSettings, PullSettings, PushSettings, SimpleSettings
from penstock.client.consumer_base import ConsumerBase
from penstock.client.listener import BatchListener, Handler
from penstock.errors import WrongState
from penstock.message.model import ReceivedMessage
from penstock.transport.loop import loop_factory

EXIT_SECONDS = 3.0

C = TypeVar("C", bound="core_producer.Producer | ConsumerBase")
H = TypeVar("H", bound=Handler)
P = ParamSpec("P")
R = TypeVar("R")


class _Background:
    """The loop that all faces of this process share."""

    def __init__(self) -> None:
        self.loop = (loop_factory() or asyncio.new_event_loop)()
        self.thread = threading.Thread(target=self.loop.run_forever, name="penstock-client", daemon=True)
        self.thread.start()
        self.faces: weakref.WeakSet[_Face[Any]] = weakref.WeakSet()

    def run(self, work: Coroutine[Any, Any, R], timeout: float | None = None) -> R:
        if threading.current_thread() is self.thread:
            work.close()
            raise WrongState("a blocking call was made on the client's own loop; use the async client there")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()  # the caller gave up (Ctrl-C, time-out): so does the work
            raise

    def end(self) -> None:
        deadline = time.monotonic() + EXIT_SECONDS
        for face in list(self.faces):
            try:
                self.run(face.end(), max(0.1, deadline - time.monotonic()))
            except Exception:  # at exit nobody can act on it
                continue
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(max(0.1, deadline - time.monotonic()))


_background: _Background | None = None
_lock = threading.Lock()


def background() -> _Background:
    global _background
    with _lock:
        if _background is None:
            _background = _Background()
        return _background


@atexit.register
def _at_exit() -> None:
    if _background is not None:
        _background.end()


def _after_fork() -> None:
    """The parent's loop thread does not exist in the child."""
    global _background, _lock
    _background = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Face(Generic[C], ABC):
    """A core object, and the thread its coroutines run on."""

    def __init__(self, core: C) -> None:
        self._core = core

    def start(self) -> None:
        runner = background()
        runner.run(self._core.start())
        runner.faces.add(self)

    @abstractmethod
    async def end(self) -> None:
        """Ends the core object, on its own thread."""

    def close(self) -> None:
        runner = background()
        runner.run(self.end())
        runner.faces.discard(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Face[C], P], R]:
    """A core coroutine as a plain method."""

    @functools.wraps(method)
    def call(self: _Face[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return background().run(method(self._core, *args, **kwargs))

    return call


def _on_loop(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[_Face[C], P], R]:
    """A plain core method, called where the core lives: its state belongs to the loop."""

    @functools.wraps(method)
    def call(self: _Face[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def work() -> R:
            return method(self._core, *args, **kwargs)

        return background().run(work())

    return call


class Producer(_Face[core_producer.Producer]):
    def __init__(
        self, name_server: str | None = None, *, settings: ProducerSettings | None = None, **options: Any
    ) -> None:
        super().__init__(core_producer.Producer(name_server, settings=settings, **options))

    async def end(self) -> None:
        await self._core.close()

    send = _blocking(core_producer.Producer.send)
    send_oneway = _blocking(core_producer.Producer.send_oneway)
    send_many = _blocking(core_producer.Producer.send_many)
    send_batch = _blocking(core_producer.Producer.send_batch)
    queues = _blocking(core_producer.Producer.queues)


class PushConsumer(_Face[core_push.PushConsumer]):
    """Listeners are called as in the async client: plain functions on worker threads."""

    def __init__(
        self,
        name_server: str | None = None,
        *,
        listener: BatchListener | None = None,
        subscribe: Mapping[str, str] | None = None,
        settings: PushSettings | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            core_push.PushConsumer(
                name_server, listener=listener, subscribe=subscribe, settings=settings, **options
            )
        )

    async def end(self) -> None:
        await self._core.stop()

    subscribe = _on_loop(core_push.PushConsumer.subscribe)
    unsubscribe = _on_loop(core_push.PushConsumer.unsubscribe)
    suspend = _on_loop(core_push.PushConsumer.suspend)
    resume = _blocking(core_push.PushConsumer.resume)
    stop = _blocking(core_push.PushConsumer.stop)
    reset_offset_by_timestamp = _blocking(core_push.PushConsumer.reset_offset_by_timestamp)

    def on(self, topic: str, *, tags: str | None = None, sql: str | None = None) -> Callable[[H], H]:
        """As in the async client."""

        def register(handler: H) -> H:
            async def work() -> H:
                return self._core.on(topic, tags=tags, sql=sql)(handler)

            return background().run(work())

        return register

    def run(self) -> None:
        """Consumes until SIGINT or SIGTERM, then stops in an orderly way."""
        stopped = threading.Event()
        previous: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                previous[number] = signal.signal(number, lambda *_: stopped.set())
        try:
            with self:
                stopped.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class PullConsumer(_Face[core_pull.PullConsumer]):
    def __init__(
        self,
        name_server: str | None = None,
        *,
        subscribe: Mapping[str, str] | None = None,
        settings: PullSettings | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            core_pull.PullConsumer(name_server, subscribe=subscribe, settings=settings, **options)
        )

    async def end(self) -> None:
        await self._core.stop()

    poll = _blocking(core_pull.PullConsumer.poll)
    seek = _blocking(core_pull.PullConsumer.seek)
    seek_to_begin = _blocking(core_pull.PullConsumer.seek_to_begin)
    seek_to_end = _blocking(core_pull.PullConsumer.seek_to_end)
    seek_to_time = _blocking(core_pull.PullConsumer.seek_to_time)
    commit = _blocking(core_pull.PullConsumer.commit)
    committed = _blocking(core_pull.PullConsumer.committed)
    fetch_queues = _blocking(core_pull.PullConsumer.fetch_queues)
    stop = _blocking(core_pull.PullConsumer.stop)
    subscribe = _on_loop(core_pull.PullConsumer.subscribe)
    unsubscribe = _on_loop(core_pull.PullConsumer.unsubscribe)
    assign = _on_loop(core_pull.PullConsumer.assign)
    filter = _on_loop(core_pull.PullConsumer.filter)
    pause = _on_loop(core_pull.PullConsumer.pause)
    resume = _on_loop(core_pull.PullConsumer.resume)
    on_assignment = _on_loop(core_pull.PullConsumer.on_assignment)

    @property
    def assignment(self) -> list[Any]:
        return self._core.assignment

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages one by one, until the consumer is stopped."""
        while self._core.running:
            yield from self.poll()


class SimpleConsumer(_Face[core_simple.SimpleConsumer]):
    def __init__(
        self,
        name_server: str | None = None,
        *,
        subscribe: Mapping[str, str] | None = None,
        settings: SimpleSettings | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            core_simple.SimpleConsumer(name_server, subscribe=subscribe, settings=settings, **options)
        )

    async def end(self) -> None:
        await self._core.stop()

    receive = _blocking(core_simple.SimpleConsumer.receive)
    ack = _blocking(core_simple.SimpleConsumer.ack)
    ack_many = _blocking(core_simple.SimpleConsumer.ack_many)
    extend = _blocking(core_simple.SimpleConsumer.extend)
    nack = _blocking(core_simple.SimpleConsumer.nack)
    stop = _blocking(core_simple.SimpleConsumer.stop)
    subscribe = _on_loop(core_simple.SimpleConsumer.subscribe)
    unsubscribe = _on_loop(core_simple.SimpleConsumer.unsubscribe)
