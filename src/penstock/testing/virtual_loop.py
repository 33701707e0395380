"""An event loop whose clock jumps: hours pass in seconds, and connections are made of memory.

When nothing is ready, time goes forward to the next timer. Servers and clients in the loop talk over an
in-memory network with delays of its own random numbers, so that a seed reproduces a run. Work in threads has
no place here: the clock would not wait for it.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import socket
from collections.abc import Callable, Iterable
from typing import Any

START_MS = 1_800_000_000_000
"""When a simulation begins, in milliseconds since 1970."""
POLL_EVERY = 64
"""Real file descriptors (the loop's own wake-up pipe) are looked at once in so many turns."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, moves the clock on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns += 1
        ready = super().select(0) if self._turns % POLL_EVERY == 0 or timeout is None else []
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("the simulation has come to a stand: no timer is set and nothing is ready")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, seed: int = 0) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self.network = Network(self, random.Random(seed))

    def time(self) -> float:
        return self._jumping.now

    def wall_ns(self) -> int:
        """The simulated wall clock."""
        return START_MS * 1_000_000 + int(self._jumping.now * 1e9)

    async def create_server(self, protocol_factory: Any, *_: Any, **options: Any) -> Any:
        return self.network.listen(protocol_factory, options["sock"])

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: str | None = None, port: int | None = None, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await self.network.connect(protocol_factory, port or 0)


class Network:
    """Who listens on which port, and how long bytes take. Bytes of one connection stay in order."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, slowest_ms: float = 2.0) -> None:
        self.loop = loop
        self._rng = rng
        self._slowest = slowest_ms / 1000
        self._listeners: dict[int, Callable[[], asyncio.Protocol]] = {}
        self._next_port = 50_000

    def delay(self) -> float:
        return self._rng.random() * self._slowest

    def listen(self, factory: Callable[[], asyncio.Protocol], sock: socket.socket) -> _Listener:
        port: int = sock.getsockname()[1]
        self._listeners[port] = factory
        return _Listener(self, port, sock)

    def unlisten(self, port: int) -> None:
        self._listeners.pop(port, None)

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(self.delay())
        accept = self._listeners.get(port)
        if accept is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self._next_port += 1
        here, there = ("127.0.0.1", self._next_port % 65_536 or 1), ("127.0.0.1", port)
        near = MemoryTransport(self, here, there)
        far = MemoryTransport(self, there, here)
        near.other, far.other = far, near
        far.attach(accept())
        protocol = factory()
        near.attach(protocol)
        return near, protocol


class _Listener:
    """What a server asks of the thing that listens for it."""

    def __init__(self, network: Network, port: int, sock: socket.socket) -> None:
        self._network, self._port, self._sock = network, port, sock

    def close(self) -> None:
        self._network.unlisten(self._port)
        self._sock.close()

    async def wait_closed(self) -> None:
        return


class MemoryTransport(asyncio.Transport):
    """One end of a connection; what is written arrives at the other end a little later."""

    other: MemoryTransport

    def __init__(self, network: Network, own: tuple[str, int], peer: tuple[str, int]) -> None:
        super().__init__({"sockname": own, "peername": peer})
        self._network = network
        self._loop = network.loop
        self._protocol: asyncio.Protocol | None = None
        self._arrival = 0.0
        self._closing = False
        self._lost = False
        self._paused = False
        self._unread: list[bytes] = []

    def attach(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    # ---- output -------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._closing:
            self._send(self.other._arrive, bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def _send(self, what: Callable[..., None], *arguments: Any) -> None:
        earliest = self._loop.time() + self._network.delay()
        self._arrival = max(earliest, self._arrival + 1e-6)
        self._loop.call_at(self._arrival, what, *arguments)

    # ---- input --------------------------------------------------------------------------------------

    def _arrive(self, data: bytes) -> None:
        if self._lost or self._closing:
            return
        if self._paused:
            self._unread.append(data)
        elif self._protocol is not None:
            self._protocol.data_received(data)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        unread, self._unread = self._unread, []
        for data in unread:
            self._arrive(data)

    # ---- end ----------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send(self.other._end, None)
            self._loop.call_soon(self._end, None)

    def abort(self) -> None:
        self.close()

    def _end(self, error: Exception | None) -> None:
        self._closing = True
        if not self._lost:
            self._lost = True
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    # ---- buffers: memory takes everything -----------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0
