from __future__ import annotations

import asyncio
import socket
import time

import pytest

from penstock.testing.virtual_loop import VirtualLoop


def test_hours_pass_in_an_instant() -> None:
    async def sleep() -> float:
        await asyncio.sleep(36_000)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(sleep()) == pytest.approx(36_000)
    assert time.monotonic() - began < 10


def test_a_wait_that_nothing_can_end_is_an_error_and_not_a_hang() -> None:
    loop = VirtualLoop()
    future = loop.create_future()
    with pytest.raises(RuntimeError, match="come to a stand"):
        loop.run_until_complete(future)
    loop.close()


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(data)


class Collect(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


def test_bytes_arrive_in_order_and_an_end_is_seen_at_the_other_end() -> None:
    async def talk() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
            peers: list[Echo] = []

            def accept() -> Echo:
                peers.append(Echo())
                return peers[-1]

            server = await loop.create_server(accept, sock=sock)
            transport, protocol = await loop.create_connection(Collect, "127.0.0.1", port)
            for number in range(200):
                transport.write(b"%03d" % number)
            await asyncio.sleep(1)
            assert protocol.data == b"".join(b"%03d" % number for number in range(200))
            assert isinstance(peers[0].transport, asyncio.Transport)
            peers[0].transport.abort()
            await asyncio.sleep(1)
            assert protocol.lost
            server.close()
            with pytest.raises(ConnectionRefusedError):
                await loop.create_connection(Collect, "127.0.0.1", port)

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(3)) as runner:
        runner.run(talk())
