"""The server's side of connections: frames in, replies out, nobody harmed by a bad or slow peer.

There is no task and no timer per connection: a connection costs memory only while bytes move. One sweep
looks after idle connections and half-sent frames. Replies of one loop turn leave in one write. A connection
that sends more than its share of a turn is not read from until the others had theirs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from typing import cast

from penstock import limits
from penstock.errors import ProtocolError
from penstock.message.ids import pack_host
from penstock.transport.service import Service
from penstock.transport.tls import CLIENT_HELLO, TlsLayer, TlsSettings
from penstock.wire.codes import ResponseCode
from penstock.wire.command import Command, decode_command, encode_response
from penstock.wire.frame import Frame, FrameDecoder, FrameError

log = logging.getLogger("penstock.transport")

Part = bytes | memoryview

LISTEN_BACKLOG = 1024
JOIN_BYTES = 32 * 1024
"""Replies below this are copied into one buffer: one write of it is cheaper than a vector of small ones."""


class Server:
    def __init__(
        self,
        service: Service,
        *,
        host: str,
        port: int,
        idle_ms: int = limits.CONNECTION_IDLE_MS,
        half_frame_ms: int = limits.HALF_FRAME_MS,
        tls: TlsSettings | None = None,
    ) -> None:
        self.service = service
        self.address = (host, port)
        self.tls_context = None if tls is None else tls.server_context()
        self.tls_enforced = tls is not None and tls.mode == "enforcing"
        self.peers: set[ServerPeer] = set()
        self._sweep_ms = max(10, min(idle_ms, half_frame_ms) // 6)
        self.idle_sweeps = -(-idle_ms // self._sweep_ms)
        self.half_frame_sweeps = -(-half_frame_ms // self._sweep_ms)
        self._no_peers = asyncio.Event()
        self._no_peers.set()
        self._dirty: list[ServerPeer] = []
        self._turn_due = False
        self.turn = 0
        """Number of this turn of the loop."""
        self._next: list[ServerPeer] = []  # have more to be served than fitted in this turn
        self._bound: socket.socket | None = None

    def bind(self) -> None:
        """Takes the port, so that a service can know its address before it serves; clients wait."""
        host, port = self.address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._bound = socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}"
            ) from None
        self.address = self._bound.getsockname()[:2]

    def unbind(self) -> None:
        """Gives the port back when the service turned out not to be able to serve."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    async def start(self) -> None:
        """Serves. Raises OSError when the address cannot be had."""
        self._loop = asyncio.get_running_loop()
        if self._bound is None:
            self.bind()
        assert self._bound is not None
        self._listener = await self._loop.create_server(
            lambda: ServerPeer(self), sock=self._bound, backlog=LISTEN_BACKLOG
        )
        self._sweep_timer = self._loop.call_later(self._sweep_ms / 1000, self._sweep)

    async def close(self, drain_ms: int = 1_000) -> None:
        """Stops listening, lets replies on their way leave for `drain_ms`, then closes every connection."""
        self._listener.close()
        self._sweep_timer.cancel()
        if drain_ms:
            for peer in list(self.peers):
                peer.close()
            try:
                async with asyncio.timeout(drain_ms / 1000):
                    await self._no_peers.wait()
            except TimeoutError:
                log.info("%d peers did not take their last replies in %d ms", len(self.peers), drain_ms)
        for peer in list(self.peers):
            peer.abort()
        await self._no_peers.wait()
        await self._listener.wait_closed()

    def joined(self, peer: ServerPeer) -> None:
        self.peers.add(peer)
        self._no_peers.clear()
        self.service.connected(peer)

    def left(self, peer: ServerPeer) -> None:
        self.peers.remove(peer)
        if not self.peers:
            self._no_peers.set()
        self.service.disconnected(peer)

    def note_output(self, peer: ServerPeer) -> None:
        self._dirty.append(peer)
        self.note_input()

    def note_input(self) -> None:
        """Ends this turn when everything that is ready now has been read."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._end_turn)

    def serve_in_next_turn(self, peer: ServerPeer) -> None:
        self._next.append(peer)

    def _end_turn(self) -> None:
        self.turn += 1
        try:
            self.service.batch_end()
        finally:
            self._turn_due = False  # not before: answers that the service gives just now leave below
            dirty, self._dirty = self._dirty, []
            for peer in dirty:
                peer.flush()
            if self._next:
                self._loop.call_soon(self._serve_next)  # runs when all that is ready now has been read

    def _serve_next(self) -> None:
        peers, self._next = self._next, []
        for peer in peers:
            peer.serve_rest()

    def _sweep(self) -> None:
        for peer in list(self.peers):
            peer.sweep()
        self._sweep_timer = self._loop.call_later(self._sweep_ms / 1000, self._sweep)


class ServerPeer(asyncio.Protocol):
    """One connection, as the service sees it."""

    __slots__ = (
        "_active",
        "_backlog",
        "_congested",
        "_decoder",
        "_half_sweeps",
        "_idle_sweeps",
        "_out",
        "_out_bytes",
        "_plain",
        "_served",
        "_server",
        "_tls",
        "_transport",
        "_turn",
        "_unsent_bytes",
        "_waits_for_turn",
        "closed",
        "remote",
        "remote_host",
    )

    _transport: asyncio.Transport
    remote: tuple[str, int]
    remote_host: bytes

    def __init__(self, server: Server) -> None:
        self._server = server
        self._decoder = FrameDecoder()
        self._tls: TlsLayer | None = None
        self._plain = False  # known to be a plain connection: its first byte has been seen
        self._out: list[Part] = []
        self._out_bytes = 0
        self._congested = False
        self._backlog: list[Frame] = []  # read but not served: the peer does not read, or has had its share
        self._turn = 0
        self._served = 0  # requests in that turn
        self._waits_for_turn = False
        self._active = True
        self._idle_sweeps = 0
        self._half_sweeps = 0
        self._unsent_bytes = 0
        self.closed = False

    # ---- what the service uses ----------------------------------------------------------------------

    def send(self, *parts: Part) -> None:
        if self.closed:
            return
        out = self._out
        if not out:
            self._server.note_output(self)
        out += parts
        self._out_bytes += len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if self._out_bytes > limits.CONNECTION_WRITE_BUFFER_BYTES:
            self.flush()

    def close(self) -> None:
        """Closes after what was sent has left."""
        if not self.closed:
            self.flush()
            self.closed = True
            self._backlog = []
            self._transport.close()

    def abort(self) -> None:
        """Closes at once; what has not left is dropped."""
        self.closed = True
        self._transport.abort()

    # ---- output -------------------------------------------------------------------------------------

    def flush(self) -> None:
        out, size = self._out, self._out_bytes
        if not out or self.closed:
            return
        self._out, self._out_bytes = [], 0
        if not self._unsent_bytes:  # else only what the peer takes counts as life, see sweep
            self._active = True
        if self._tls is not None:
            data = self._tls.encrypt(out)
            if data:
                self._transport.write(data)
        elif len(out) == 1:
            self._transport.write(out[0])
        elif size <= JOIN_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def pause_writing(self) -> None:
        """The peer does not read: serve it no more requests, and let TCP tell it so."""
        self._congested = True
        if not self.closed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._congested = False
        if not self._waits_for_turn:
            self._serve_backlog()

    def serve_rest(self) -> None:
        """It is this connection's turn again."""
        self._waits_for_turn = False
        if not self._congested:
            self._serve_backlog()

    def _serve_backlog(self) -> None:
        frames, self._backlog = self._backlog, []
        self._serve(frames)
        if self._congested or self._waits_for_turn or self.closed:
            return
        self._transport.resume_reading()
        if self._tls is not None and self._tls.ended:
            self.close()

    # ---- input --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by duck typing only
        self._transport.set_write_buffer_limits(high=limits.CONNECTION_WRITE_BUFFER_BYTES)
        peername = transport.get_extra_info("peername")
        if not peername:  # reset before it was accepted
            self.closed = True
            self._transport.abort()
            return
        self.remote = peername[:2]
        self.remote_host = pack_host(*self.remote)
        self._server.joined(self)

    def data_received(self, data: bytes) -> None:
        self._active = True
        if not self._plain:
            data = self._first_bytes(data)
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            self._serve(self._backlog + error.frames, in_turns=False)  # there is no later turn
            self._refuse(error)
            return
        if frames:
            self._half_sweeps = 0
            if self._congested or self._waits_for_turn:  # some loops deliver what they had read before
                self._backlog += frames
            else:
                self._serve(frames)
        if self._tls is not None and self._tls.ended and not self._waits_for_turn:
            self.close()

    def _serve(self, frames: list[Frame], *, in_turns: bool = True) -> None:
        """As many of them as this turn has room for; the rest waits for the next."""
        server = self._server
        server.note_input()
        if self._turn != server.turn:
            self._turn, self._served = server.turn, 0
        room = limits.TURN_REQUESTS - self._served
        self._served += len(frames)
        handle = server.service.handle
        for done, frame in enumerate(frames, 1):
            try:
                command = decode_command(frame)
            except ProtocolError as error:
                self._refuse(error)
                return
            try:
                handle(self, command)
            except Exception as error:
                self._fail(command, error)
            if self._congested or self.closed:
                self._backlog = [] if self.closed else frames[done:]
                break
            if in_turns and (done >= room or self._out_bytes > limits.TURN_ANSWER_BYTES):
                self._wait_for_turn(frames[done:])
                break

    def _wait_for_turn(self, frames: list[Frame]) -> None:
        self._backlog = frames
        self._waits_for_turn = True
        self._transport.pause_reading()
        self._server.serve_in_next_turn(self)

    def _first_bytes(self, data: bytes) -> bytes:
        """Tells TLS from plain connections, and takes the TLS off."""
        server = self._server
        if self._tls is None:
            if data[0] != CLIENT_HELLO or server.tls_context is None:
                if server.tls_enforced:
                    self._refuse(ProtocolError("plain connection to a server that takes only TLS"))
                    return b""
                self._plain = True
                return data
            self._tls = TlsLayer(server.tls_context)
        try:
            data, answer = self._tls.receive(data)
        except ssl.SSLError as error:
            self._refuse(error)
            return b""
        if answer:
            self._transport.write(answer)
        return data

    def _fail(self, command: Command, error: Exception) -> None:
        """A bug in the service: its request gets an answer, and everybody else goes on."""
        log.exception("request %s from %s:%d failed", command.code, *self.remote)
        if not command.is_response and not command.is_oneway:
            remark = f"{type(error).__name__}: {error}"
            self.send(encode_response(command, ResponseCode.SYSTEM_ERROR, remark))

    def _refuse(self, error: Exception) -> None:
        log.info("connection from %s:%d closed: %s", *self.remote, error)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._out, self._backlog = [], []
        if self in self._server.peers:
            self._server.left(self)

    # ---- time ---------------------------------------------------------------------------------------

    def sweep(self) -> None:
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._active = True
        self._unsent_bytes = unsent_bytes
        if self._active:
            self._active = False
            self._idle_sweeps = 0
        else:
            self._idle_sweeps += 1
            if self._idle_sweeps >= self._server.idle_sweeps:
                self._drop("idle" if not unsent_bytes else "it does not read")
                return
        if self._decoder.pending or (self._tls is not None and self._tls.handshaking):
            self._half_sweeps += 1
            if self._half_sweeps > self._server.half_frame_sweeps:
                self._drop("a frame was begun and not completed in time")

    def _drop(self, reason: str) -> None:
        log.info("connection from %s:%d closed: %s", *self.remote, reason)
        self.abort()
