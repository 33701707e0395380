"""The client's side of a connection: many requests in flight, each answered exactly once.

A request's place in the response table is its permit: it is taken when the request is made and given back
when the future is completed, by the response, the loss of the connection, or the time-out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, cast
from weakref import WeakKeyDictionary

from penstock import limits
from penstock.errors import ConnectFailed, ProtocolError, RequestTimeout, SendFailed, TooManyRequests
from penstock.wire.codes import ResponseCode
from penstock.wire.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Command,
    Ext,
    decode_command,
    encode_command,
    encode_head,
    encode_request,
    encode_response,
)
from penstock.wire.frame import FrameDecoder
from penstock.wire.headers.base import HeaderStruct

log = logging.getLogger("penstock.transport")

CONNECT_TIMEOUT_MS = 3_000
CLOSE_TIMEOUT_MS = 1_000
"""How long a closing connection waits for the peer to take what was sent."""
MAX_IN_FLIGHT = 65_535
"""Protocol default, for requests and for oneways that have not left yet."""
SEPARATE_BODY_BYTES = 64 * 1024
"""From this size a body is handed to the socket as it is instead of being copied into its frame."""
GATHERED_BYTES = 16 * 1024
"""Small frames leave together up to this size: the peer works on them while the next ones are made."""
SWEEP_MS = 50
"""The response table is looked through at most this often, so a time-out can be late by this much."""


class RpcHook(Protocol):
    """Called around every request; `ext` may be changed before it is sent, for example to sign it."""

    def before_request(
        self, address: str, code: int, ext: dict[str, str], body: bytes | memoryview
    ) -> None: ...

    def after_response(self, address: str, code: int, ext: dict[str, str], response: Command) -> None: ...


class _Pending(NamedTuple):
    future: asyncio.Future[Command]
    deadline: float
    code: int
    ext: dict[str, str] | None  # kept only for hooks


_new_tuple: Final = tuple.__new__  # what a NamedTuple's own constructor calls, at half the cost


class _Turn:
    """The connections of a loop that have gathered frames. Whenever something leaves at once, they go first:
    who asks one connection about what was told another must not overtake it."""

    __slots__ = ("gathering",)

    def __init__(self) -> None:
        self.gathering: list[Connection] = []

    def flush(self) -> None:
        gathering, self.gathering = self.gathering, []
        for connection in gathering:
            connection.flush()


_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn]] = WeakKeyDictionary()

RequestCallback = Callable[["Connection", Command], None]
CloseCallback = Callable[["Connection"], None]


class Connection(asyncio.Protocol):
    """One connection to a broker or name server. Make it with `Connection.open`."""

    def __init__(
        self,
        address: str,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        idle_ms: int = limits.CONNECTION_IDLE_MS,
        hooks: Sequence[RpcHook] = (),
        on_request: RequestCallback | None = None,
        on_close: CloseCallback | None = None,
    ) -> None:
        self.address = address
        self.closed = False
        self._max_in_flight = max_in_flight
        self._idle_seconds = idle_ms / 1000
        self._hooks = tuple(hooks)
        self._on_request = on_request
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._pending: dict[int, _Pending] = {}
        self._opaque = 0
        self._turn = _turns.setdefault(self._loop, _Turn())
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._congested = False
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_due = math.inf
        self._active = True
        self._error: Exception | None = None
        self._gone = asyncio.Event()

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        tls: ssl.SSLContext | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        idle_ms: int = limits.CONNECTION_IDLE_MS,
        hooks: Sequence[RpcHook] = (),
        on_request: RequestCallback | None = None,
        on_close: CloseCallback | None = None,
    ) -> Connection:
        """Connects to `host:port`. Raises ConnectFailed, and then nothing has been sent."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConnectFailed(f"{address} is not an address of the form host:port")
        connection = cls(
            address,
            max_in_flight=max_in_flight,
            idle_ms=idle_ms,
            hooks=hooks,
            on_request=on_request,
            on_close=on_close,
        )
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                await connection._loop.create_connection(
                    lambda: connection,
                    host.strip("[]"),
                    int(port),
                    ssl=tls,
                    server_hostname=host if tls else None,
                )
        except TimeoutError:
            raise ConnectFailed(f"{address}: no connection in {connect_timeout_ms} ms") from None
        except OSError as error:  # ssl.SSLError is one, too
            raise ConnectFailed(f"{address}: {error.strerror or error}") from error
        return connection

    # ---- requests -----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    @property
    def has_room(self) -> bool:
        """Whether another request can be sent now."""
        return not self._congested and len(self._pending) < self._max_in_flight

    async def request(
        self, code: int, header: Ext | None = None, body: bytes | memoryview = b"", timeout_ms: int = 3_000
    ) -> Command:
        """Sends a request and waits for its response, whatever its code is.

        Raises SendFailed when the connection is lost, RequestTimeout, or TooManyRequests when no place in
        flight became free in time.
        """
        deadline = self._loop.time() + timeout_ms / 1000
        while not self.has_room and not self.closed:
            await self._room(deadline)
        left_ms = max(1, round((deadline - self._loop.time()) * 1000))
        return await self.request_nowait(code, header, body, left_ms)

    def request_nowait(
        self, code: int, header: Ext | None = None, body: bytes | memoryview = b"", timeout_ms: int = 3_000
    ) -> asyncio.Future[Command]:
        """Like `request`, but gives the future. Raises TooManyRequests at once when all places are taken.

        Where no other answer is awaited the frame leaves at once, for somebody waits for this one. Among
        others it leaves with those made in this loop turn.
        """
        if self.closed:
            raise SendFailed(f"{self.address}: {self._error or 'the connection is closed'}")
        pending = self._pending
        if len(pending) >= self._max_in_flight:
            raise TooManyRequests(f"{self.address}: {len(pending)} requests are in flight")
        ext = self._send(code, 0, header, body)
        future: asyncio.Future[Command] = self._loop.create_future()
        deadline = self._loop.time() + timeout_ms / 1000
        pending[self._opaque] = _new_tuple(_Pending, (future, deadline, code, ext))
        if deadline + SWEEP_MS / 1000 < self._sweep_due:
            self._sweep_at(deadline)
        return future

    async def oneway(self, code: int, header: Ext | None = None, body: bytes | memoryview = b"") -> None:
        """Sends a request that gets no response; waits only while the peer does not read."""
        if self._congested:
            deadline = self._loop.time() + CONNECT_TIMEOUT_MS / 1000
            while self._congested and not self.closed:
                await self._room(deadline)
        self.oneway_nowait(code, header, body)

    def oneway_nowait(self, code: int, header: Ext | None = None, body: bytes | memoryview = b"") -> None:
        """Raises TooManyRequests while the peer does not read what was sent before."""
        if self.closed:
            raise SendFailed(f"{self.address}: {self._error or 'the connection is closed'}")
        if self._congested:
            raise TooManyRequests(f"{self.address} does not read what was sent before")
        self._send(code, ONEWAY_FLAG, header, body)

    def respond(
        self,
        request: Command,
        code: int,
        remark: str | None = None,
        header: Ext | None = None,
        body: bytes = b"",
    ) -> None:
        """Answers a request of the server; does nothing for a oneway or on a closed connection."""
        if not request.is_oneway and not self.closed:
            self._write(encode_response(request, code, remark, header, body))

    def _send(
        self, code: int, flag: int, header: Ext | None, body: bytes | memoryview
    ) -> dict[str, str] | None:
        """Under the next opaque number."""
        ext: dict[str, str] | None = None
        if self._hooks:
            header = ext = header.to_ext() if isinstance(header, HeaderStruct) else dict(header or {})
            for hook in self._hooks:
                hook.before_request(self.address, code, ext, body)
        self._opaque = opaque = self._opaque + 1 & 0x7FFF_FFFF
        if len(body) >= SEPARATE_BODY_BYTES:
            self._write(encode_head(code, opaque, flag=flag, ext=header, body_size=len(body)), body)
            return ext
        if header is None:
            frame = encode_command(code, opaque, flag=flag, body=body)
        else:
            frame = encode_request(code, opaque, flag, header, body)
        if self._pending or flag:
            self._write(frame)
        else:
            if self._turn.gathering:
                self._turn.flush()
            self._active = True
            self._transport.write(frame)
        return ext

    # ---- output -------------------------------------------------------------------------------------

    def _write(self, *parts: bytes | memoryview) -> None:
        if not self._out:
            if not self._turn.gathering:
                self._loop.call_soon(self._turn.flush)
            self._turn.gathering.append(self)
        self._out += parts
        self._out_bytes += len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if self._out_bytes >= GATHERED_BYTES:
            self._turn.flush()

    def flush(self) -> None:
        """Hands to the socket what was gathered; called by itself at the turn's end."""
        out, size = self._out, self._out_bytes
        if not out or self.closed:
            return
        self._out, self._out_bytes = [], 0
        self._active = True
        if len(out) == 1:
            self._transport.write(out[0])
        elif size <= 2 * SEPARATE_BODY_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        self._wake()

    async def _room(self, deadline: float) -> None:
        """Waits until the socket takes bytes or a request in flight is done."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise TooManyRequests(
                f"{self.address}: no room for another request in time ({len(self._pending)} in flight)"
            ) from None

    def _wake(self) -> None:
        room = self._max_in_flight - len(self._pending)
        while self._waiters and room > 0:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1

    # ---- input --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by duck typing only
        self._transport.set_write_buffer_limits(high=limits.CONNECTION_WRITE_BUFFER_BYTES)
        self._idle_timer = self._loop.call_later(self._idle_seconds, self._close_if_idle)

    def data_received(self, data: bytes) -> None:
        self._active = True
        try:
            for frame in self._decoder.feed(data):
                command = decode_command(frame)
                if command.flag & RESPONSE_FLAG:
                    self._complete(command)
                else:
                    self._serve(command)
        except ProtocolError as error:
            log.warning("%s sent what is not a frame, connection closed: %s", self.address, error)
            self._lost(error)
            self._transport.abort()
            return
        if self._waiters:
            self._wake()

    def _complete(self, response: Command) -> None:
        pending = self._pending.pop(response.opaque, None)
        if pending is None:  # it timed out before, and its caller has been told
            return
        if pending.ext is not None:
            for hook in self._hooks:
                hook.after_response(self.address, pending.code, pending.ext, response)
        if not pending.future.done():
            pending.future.set_result(response)

    def _serve(self, request: Command) -> None:
        if self._on_request is None:
            remark = f"request type {request.code} not supported"
            self.respond(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            return
        try:
            self._on_request(self, request)
        except Exception as error:
            log.exception("request %s from %s failed", request.code, self.address)
            self.respond(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    # ---- time ---------------------------------------------------------------------------------------

    def _sweep_at(self, when: float) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_due = max(when, self._loop.time() + SWEEP_MS / 1000)
        self._sweep_timer = self._loop.call_at(self._sweep_due, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        self._sweep_due = math.inf
        now = self._loop.time()
        expired = [opaque for opaque, pending in self._pending.items() if pending.deadline <= now]
        for opaque in expired:
            pending = self._pending.pop(opaque)
            if not pending.future.done():
                pending.future.set_exception(
                    RequestTimeout(f"{self.address}: no answer to request {pending.code} in time")
                )
        if self._pending:
            self._sweep_at(min(pending.deadline for pending in self._pending.values()))
        if expired:
            self._wake()

    def _close_if_idle(self) -> None:
        if self._active or self._pending:
            self._active = False
            self._idle_timer = self._loop.call_later(self._idle_seconds, self._close_if_idle)
        else:
            self.abort()

    # ---- end ----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Sends what was written, then closes; requests in flight fail with SendFailed."""
        if not self.closed:
            self.flush()
            self._lost(None)
            self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()

    def abort(self) -> None:
        if not self.closed:
            self._lost(None)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self._lost(exc)

    def _lost(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        self._error = error
        self._idle_timer.cancel()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            if not entry.future.done():
                entry.future.set_exception(
                    SendFailed(
                        f"{self.address}: {error or 'the connection was closed'} before the answer came"
                    )
                )
        while self._waiters:
            self._wake()
        if self._on_close is not None:
            self._on_close(self)
