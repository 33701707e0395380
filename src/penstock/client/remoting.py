"""Connections by address: made on first use, shared by all requests, replaced when broken.

There is no reconnecting in the background: the next request to a lost address connects again, and an
address that cannot be reached is not asked again before a short pause, so that a dead broker costs its
callers an error and not a time-out each.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence

from penstock.errors import ConnectFailed, NoNameServer, RemotingError, RequestTimeout, SendFailed, WrongState
from penstock.transport.client import Connection, RpcHook
from penstock.wire.codes import ResponseCode
from penstock.wire.command import Command, Ext

Body = bytes | memoryview
RequestHandler = Callable[[Connection, Command], None]

FIRST_BACKOFF_MS = 50
LONGEST_BACKOFF_MS = 2_000


class Channel(Connection):
    """A connection that remembers when its peer was heard last."""

    heard: float = 0.0

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        super().data_received(data)


class _Backoff:
    """When an address that refused connections may be tried again."""

    __slots__ = ("delay_ms", "error", "until")

    def __init__(self, error: ConnectFailed, delay_ms: int, now: float) -> None:
        self.error = error
        self.delay_ms = delay_ms
        self.until = now + delay_ms / 1000


class Remoting:
    """All of a client instance's connections. `on_open` and `on_lost` are told of those that come and go."""

    def __init__(
        self,
        *,
        connect_timeout_ms: int = 3_000,
        max_in_flight: int = 65_535,
        tls: ssl.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
        on_request: RequestHandler | None = None,
        on_open: Callable[[str], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connect_timeout_ms = connect_timeout_ms
        self._max_in_flight = max_in_flight
        self._tls = tls
        self._hooks = tuple(hooks)
        self._on_request = on_request
        self._on_open = on_open
        self._on_lost = on_lost
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._backoffs: dict[str, _Backoff] = {}
        self._closed = False
        self._servers: list[str] = []
        self._server_index = 0

    # ---- connections --------------------------------------------------------------------------------

    def ready(self, address: str) -> Channel | None:
        """The connection to an address if it is there now."""
        channel = self._channels.get(address)
        return None if channel is None or channel.closed else channel

    async def connection(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is not None and not channel.closed:
            return channel
        if self._closed:
            raise WrongState("the client is closed")
        backoff = self._backoffs.get(address)
        if backoff is not None and self._loop.time() < backoff.until:
            raise ConnectFailed(f"{backoff.error} (tried a moment ago)")
        connecting = self._connecting.get(address)
        if connecting is None:
            connecting = self._loop.create_task(self._connect(address), name=f"connect {address}")
            # A caller may be cancelled while it waits; the error then has no other reader.
            connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._connecting[address] = connecting
        return await asyncio.shield(connecting)

    async def _connect(self, address: str) -> Channel:
        try:
            channel = await Channel.open(
                address,
                connect_timeout_ms=self._connect_timeout_ms,
                tls=self._tls,
                max_in_flight=self._max_in_flight,
                hooks=self._hooks,
                on_request=self._on_request,
                on_close=self._lost,
            )
        except ConnectFailed as error:
            last = self._backoffs.get(address)
            delay_ms = FIRST_BACKOFF_MS if last is None else min(2 * last.delay_ms, LONGEST_BACKOFF_MS)
            self._backoffs[address] = _Backoff(error, delay_ms, self._loop.time())
            raise
        finally:
            self._connecting.pop(address, None)
        assert isinstance(channel, Channel)
        self._backoffs.pop(address, None)
        if self._closed:
            channel.abort()
            raise WrongState("the client is closed")
        self._channels[address] = channel
        if self._on_open is not None:
            self._on_open(address)
        return channel

    def _lost(self, connection: Connection) -> None:
        if self._on_lost is not None and not self._closed:
            self._on_lost(connection.address)

    def forget(self, address: str) -> None:
        """Closes the connection to an address that no route names any more."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.abort()

    async def close(self) -> None:
        self._closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel in channels.values()))

    # ---- requests -----------------------------------------------------------------------------------

    async def request(
        self, address: str, code: int, header: Ext | None = None, body: Body = b"", timeout_ms: int = 3_000
    ) -> Command:
        """One request and its response; connecting counts against the time.

        A server that is going away is asked once more on a new connection. A connection on which nothing
        was heard since the request was sent is given up with it, or a dead peer would be asked for ever.
        """
        gone_away = False
        while True:
            began = self._loop.time()
            channel = self._channels.get(address)
            if channel is None or channel.closed:
                channel = await self._connected(address, timeout_ms)
                timeout_ms -= int((self._loop.time() - began) * 1000)
                if timeout_ms <= 0:
                    raise ConnectFailed(f"{address}: no time left after connecting")
            try:
                if channel.has_room:  # the usual case, without one more coroutine
                    response = await channel.request_nowait(code, header, body, timeout_ms)
                else:
                    response = await channel.request(code, header, body, timeout_ms)
            except RequestTimeout:
                if channel.heard < began:
                    channel.abort()
                raise
            if response.code != ResponseCode.GO_AWAY:
                return response
            self.forget(address)
            if gone_away:
                raise SendFailed(f"{address} is shutting down")
            gone_away = True

    async def _connected(self, address: str, timeout_ms: int) -> Channel:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.connection(address)
        except TimeoutError:
            raise ConnectFailed(f"{address}: no connection in {timeout_ms} ms") from None

    async def oneway(self, address: str, code: int, header: Ext | None = None, body: Body = b"") -> None:
        channel = self.ready(address) or await self.connection(address)
        if channel.has_room:
            channel.oneway_nowait(code, header, body)
        else:
            await channel.oneway(code, header, body)

    # ---- name servers -------------------------------------------------------------------------------

    @property
    def name_servers(self) -> list[str]:
        return list(self._servers)

    def set_name_servers(self, addresses: Sequence[str]) -> None:
        """Shuffled, so that many clients spread; the server in use is kept if it is still listed."""
        if set(addresses) == set(self._servers):
            return
        chosen = self._servers[self._server_index] if self._servers else None
        self._servers = random.sample(list(addresses), len(addresses))
        self._server_index = 0
        if chosen in self._servers:
            self._server_index = self._servers.index(chosen)
        elif chosen is not None:
            self.forget(chosen)

    async def name_server_request(
        self, code: int, header: Ext | None = None, body: Body = b"", timeout_ms: int = 3_000
    ) -> Command:
        """Asks the server in use; if it does not answer, the others in turn, and stays with that one."""
        if not self._servers:
            raise NoNameServer(
                "no name server is configured: pass name_server='host:port' or set NAMESRV_ADDR"
            )
        errors: list[str] = []
        for _ in self._servers:
            address = self._servers[self._server_index % len(self._servers)]
            try:
                return await self.request(address, code, header, body, timeout_ms)
            except RemotingError as error:
                errors.append(str(error))
                self._server_index = (self._server_index + 1) % len(self._servers)
        raise NoNameServer("no name server can be reached: " + "; ".join(errors))
