"""A name server and a broker in one process: what `penstock serve` and the tests run."""

from __future__ import annotations

from pathlib import Path

from penstock.broker.settings import BrokerSettings
from penstock.namesrv import NamesrvSettings
from penstock.runtime.broker import BrokerRuntime
from penstock.runtime.namesrv import NamesrvRuntime
from penstock.runtime.registration import Registrar
from penstock.transport.tls import TlsSettings


class Node:
    """The data directory is the broker's; the name server keeps its few files in a corner of it."""

    def __init__(
        self,
        broker: BrokerSettings,
        data: Path,
        *,
        host: str = "127.0.0.1",
        namesrv_port: int = 0,
        tls: TlsSettings | None = None,
    ) -> None:
        self.namesrv = NamesrvRuntime(
            NamesrvSettings(listen_port=namesrv_port), data / "penstock" / "namesrv", host=host, tls=tls
        )
        self.broker = BrokerRuntime(broker, data, host=host, registrar=Registrar(local=self.namesrv), tls=tls)

    async def start(self) -> None:
        """The broker first: a directory that cannot be used must be found before anything is served."""
        await self.broker.open()
        try:
            await self.namesrv.start()
        except BaseException:
            await self.broker.abandon()
            raise
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.namesrv.stop()

    async def kill(self) -> None:
        """Ends as if the process had been killed. For tests."""
        await self.broker.kill()
        await self.namesrv.stop(drain_ms=0)
