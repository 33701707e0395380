"""A small service to talk to, and a way to run coroutines on both kinds of event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.transport.loop import loop_factory
from penstock.transport.server import Server
from penstock.wire.command import Command, encode_head, encode_response
from penstock.wire.peer import Peer


class EchoService:
    """Answers by code; remembers what happened.

    11 echoes, 12 does not answer, 13 answers with `big`, 14 fails, 15 sends a request, 16 hangs up.
    """

    def __init__(self, big: bytes = b"") -> None:
        self.peers: list[Peer] = []
        self.gone: list[Peer] = []
        self.handled: list[Command] = []
        self.batches = 0
        self.big = memoryview(big)

    def connected(self, peer: Peer) -> None:
        self.peers.append(peer)

    def disconnected(self, peer: Peer) -> None:
        self.gone.append(peer)

    def batch_end(self) -> None:
        self.batches += 1

    def handle(self, peer: Peer, command: Command) -> None:
        self.handled.append(command)
        if command.is_response:
            return
        match command.code:
            case 11:
                peer.send(encode_response(command, 0, ext=command.ext, body=command.body or b""))
            case 13:
                peer.send(encode_head(0, command.opaque, flag=1, body_size=len(self.big)), self.big)
            case 14:
                raise RuntimeError("a bug")
            case 15:
                peer.send(encode_head(40, 77))
            case 16:
                peer.close()


@pytest.fixture
def service() -> EchoService:
    return EchoService()


@pytest.fixture
def service_answering() -> Callable[[bytes], EchoService]:
    """Makes a service that answers code 13 with these bytes, not copied."""
    return EchoService


@pytest.fixture
def serving() -> Callable[..., Any]:
    """`async with serving(service) as address:` runs a server; keywords go to Server."""

    @asynccontextmanager
    async def serve(service: EchoService, **settings: Any):
        server = Server(service, host="127.0.0.1", port=0, **settings)
        await server.start()
        try:
            yield f"{server.address[0]}:{server.address[1]}"
        finally:
            await server.close(drain_ms=200)

    return serve


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    factory = loop_factory() if request.param == "uvloop" else asyncio.new_event_loop
    if factory is None:
        pytest.skip("no uvloop here")

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main, 30))

    return run


@pytest.fixture
def talking() -> Callable[..., Any]:
    """`async with talking(handler) as address:` is a server made of one plain coroutine."""

    @asynccontextmanager
    async def serve(handler: Callable[..., Coroutine[Any, Any, None]]):
        handlers = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handlers.append(asyncio.current_task())
            await handler(reader, writer)
            writer.transport.abort()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        yield "{}:{}".format(*server.sockets[0].getsockname())
        server.close()
        await asyncio.gather(*handlers)
        await server.wait_closed()

    return serve


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits for something that the other side brings about; fails if it does not."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Coroutine[Any, Any, None]]:
    return until


@pytest.fixture
def uvloop_run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """For what only uvloop promises: buffers are not copied, thousands of connections are cheap."""
    factory = loop_factory()
    if factory is None:
        pytest.skip("no uvloop here")

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main, 60))

    return run
