"""A name server that runs: the pure core between a server, the clock and its small files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.errors import StoreError
from penstock.message.ids import pack_host
from penstock.namesrv import NameServer, NamesrvSettings
from penstock.runtime.clock import now_ms
from penstock.store.config_files import ConfigFiles
from penstock.store.disk import RealDisk
from penstock.transport.server import Server
from penstock.transport.tls import TlsSettings
from penstock.wire.command import Command, Ext, decode_command, encode_command
from penstock.wire.peer import Peer

TICK_SECONDS = 1.0


class NamesrvRuntime:
    """Implements transport.Service for one name server. `start` and `stop` once each, on one loop."""

    def __init__(
        self,
        settings: NamesrvSettings,
        data: Path,
        *,
        host: str = "127.0.0.1",
        tls: TlsSettings | None = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._server = Server(self, host=host, port=settings.listen_port, tls=tls)
        self._local = _LocalPeer()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        host, port = self._server.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> None:
        try:
            self._data.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise StoreError(f"{self._data}: Not a directory; give another data directory") from None
        files = ConfigFiles(RealDisk(self._data))
        self._core = NameServer(self._settings, files, now_ms=now_ms())
        await self._server.start()
        self._loop = asyncio.get_running_loop()
        self._tick()

    async def stop(self, drain_ms: int = 1_000) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._server.close(drain_ms=drain_ms)

    def call(self, code: int, header: Ext, body: bytes = b"") -> Command:
        """A request of a broker in the same process."""
        self._local.answers.clear()
        request = decode_command(encode_command(code, 0, ext=header, body=body)[4:])
        self._core.handle(self._local, request, now_ms())
        return decode_command(self._local.answers[-1][4:])

    # ---- transport.Service --------------------------------------------------------------------------

    def connected(self, peer: Peer) -> None:
        """A connection says nothing about itself until it asks."""

    def disconnected(self, peer: Peer) -> None:
        self._core.disconnected(peer, now_ms())

    def handle(self, peer: Peer, command: Command) -> None:
        self._core.handle(peer, command, now_ms())

    def batch_end(self) -> None:
        """Nothing waits for the end of a turn here."""

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        self._core.tick(now_ms())


class _LocalPeer:
    """The connection of the broker in this process, without a connection."""

    remote = ("127.0.0.1", 0)
    remote_host = pack_host("127.0.0.1", 0)
    closed = False

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def send(self, *parts: bytes | memoryview) -> None:
        self.answers.append(b"".join(parts))

    def close(self) -> None:
        """It lives as long as the process."""
