"""A broker that runs: the pure core between a server, a disk, the clock and its name servers."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Callable
from pathlib import Path

from penstock.broker.broker import Broker, check_tables
from penstock.broker.settings import BrokerSettings
from penstock.message.ids import pack_host
from penstock.runtime.clock import now_ms
from penstock.runtime.registration import Registrar
from penstock.runtime.routes import Routes
from penstock.runtime.worker import Worker
from penstock.store.commit_log import Flush
from penstock.store.disk import RealDisk
from penstock.store.store import Store
from penstock.transport.server import Server
from penstock.transport.tls import TlsSettings
from penstock.wire.command import Command
from penstock.wire.peer import Peer

log = logging.getLogger("penstock.runtime")

TICK_SECONDS = 0.02
"""How late a timer of the broker can be: delays, long polls, expiry."""
REFUSED_RETRY_MS = 1_000
"""A disk that refuses writes is not asked again more often, and its refusal is logged once."""


class BrokerRuntime:
    """Implements transport.Service for one broker. `open`, `start` and `stop` once each, on one loop."""

    worker = Worker
    """Where disk work is done; a simulation does it at once."""
    tick_seconds = TICK_SECONDS

    def __init__(
        self,
        settings: BrokerSettings,
        data: Path,
        *,
        host: str = "127.0.0.1",
        registrar: Registrar,
        tls: TlsSettings | None = None,
    ) -> None:
        self.settings = settings
        self.data = data
        self._registrar = registrar
        self._server = Server(self, host=host, port=settings.listen_port, tls=tls)
        self._sync = settings.flush_disk_type == "SYNC_FLUSH"
        self._timer: asyncio.TimerHandle | None = None
        self._refused_ms = 0
        """When the disk last refused a write; 0 while it takes them."""
        self._turn_ms = 0

    @property
    def address(self) -> str:
        """Where clients reach the broker."""
        return f"{self.settings.broker_ip1}:{self.settings.listen_port}"

    async def open(self) -> None:
        """Takes the port and the directory. Raises OSError and StoreError; then nothing is held."""
        self._server.bind()
        try:
            self.settings.listen_port = self._server.address[1]
            self.settings.store_path_root_dir = str(self.data)
            delays_ms = self.settings.delay_levels_ms()
            self.store = Store.open(
                RealDisk(self.data),
                self.settings.store_settings(),
                store_host=pack_host(self.settings.broker_ip1, self.settings.listen_port),
                delay_level_ms=lambda level: delays_ms[min(level, len(delays_ms)) - 1],
                look=check_tables,
                now_ms=now_ms(),
            )
            self._open_broker()
        except BaseException:
            self._server.unbind()
            raise

    def _open_broker(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = self.worker("penstock-flush")
        self._upkeep = self.worker("penstock-upkeep")
        try:
            self.broker = Broker(
                self.settings,
                self.store,
                now_ms=now_ms(),
                random=random.Random(),
                run_job=self._upkeep.submit,
            )
        except BaseException:
            self._upkeep.close()
            self._writer.close()
            self.store.close(now_ms())
            raise
        self._registrar.attach(self.broker, self.address)
        self._routes = self.broker.pop.assignments.routes = Routes(self._registrar)

    async def start(self) -> None:
        """Serves what `open` opened; ready when the name servers know of it."""
        await self._server.start()
        self._tick()
        await self._registrar.start()

    async def abandon(self) -> None:
        """Gives back what `open` took, when nothing was served."""
        self._server.unbind()
        await self._close()

    async def stop(self) -> None:
        """Leaves the name servers, answers what was asked, and closes the store cleanly."""
        self._routes.stop()
        await self._registrar.stop()
        await self._finish_flushes()
        await self._server.close()
        await self._close()

    async def _close(self) -> None:
        await self._finish_flushes()
        if self._timer is not None:
            self._timer.cancel()
        self._upkeep.close()
        self._writer.close()
        self.broker.close(now_ms())
        self.store.close(now_ms())

    async def _finish_flushes(self) -> None:
        """Waits until all that was appended is durable or has failed."""
        self._flush()
        # polled: at the end of a life, an event would be more machinery than it is worth
        while self.store.flushing:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def kill(self) -> None:
        """Ends as if the process had been killed: nothing more is written. For tests."""
        if self._timer is not None:
            self._timer.cancel()
        self._routes.stop()
        await self._registrar.drop()
        await self._server.close(drain_ms=0)
        self._upkeep.close()
        self._writer.close()
        self.store.abandon()

    # ---- transport.Service --------------------------------------------------------------------------

    def connected(self, peer: Peer) -> None:
        self.broker.connected(peer, now_ms())

    def disconnected(self, peer: Peer) -> None:
        self.broker.disconnected(peer, now_ms())

    def handle(self, peer: Peer, command: Command) -> None:
        now = self._turn_ms
        if not now:
            now = self._turn_ms = now_ms()  # one look at the clock for all requests of a turn
        self.broker.handle(peer, command, now)

    def batch_end(self) -> None:
        self._turn_ms = 0
        self._flush()
        self._registrar.changed()

    # ---- group commit -------------------------------------------------------------------------------

    def _flush(self) -> None:
        """While one group is on its way to the disk the next one gathers."""
        if self._refused_ms and not self.store.writable and now_ms() < self._refused_ms + REFUSED_RETRY_MS:
            return
        flush = self.store.take_flush()
        if flush is None:
            return
        if flush.journal is not None and flush.journal.begins:
            work = flush.run if self._sync else flush.write
            self._writer.submit(work, functools.partial(self._flushed, flush))
            return
        error = None
        try:
            flush.write()  # into memory of the operating system: a thread would cost more than it saves
        except OSError as problem:
            error = problem
        if self._sync and error is None:
            self._writer.submit(flush.sync, functools.partial(self._flushed, flush))
        else:
            self._flushed(flush, error)

    def _flushed(self, flush: Flush, error: OSError | None) -> None:
        arrivals = self.store.flushed(flush, error)
        if error is not None:
            if not self._refused_ms:
                log.error("%s: the disk refused a write: %s; sends are refused", self.data, error)
            self._refused_ms = now_ms()
            self.broker.flush_failed(error, now_ms())
            return
        if self._refused_ms and self.store.writable:
            log.warning("%s: the disk takes writes again, and so does the broker", self.data)
            self._refused_ms = 0
        self.broker.durable(arrivals, now_ms())
        self._flush()

    # ---- time ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self.tick_seconds, self._tick)
        now = now_ms()
        self.broker.tick(now)
        jobs: list[Callable[[], None]] = self.store.tick(now)
        for job in jobs:
            self._upkeep.submit(job)
        self._flush()
        self._registrar.changed()
