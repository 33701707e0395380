"""A real broker inside the test process."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from penstock.broker.settings import BrokerSettings
from penstock.errors import WrongState
from penstock.runtime.node import Node
from penstock.transport.loop import loop_factory
from penstock.transport.tls import TlsSettings

T = TypeVar("T")

SMALL_FILES: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": "120000",
    "maxHashSlotNum": "20000",
    "maxIndexNum": "80000",
}
"""Files that a test fills and removes quickly."""


class RunningBroker:
    """A broker with its name server, in a thread and a loop of its own, on free loopback ports."""

    def __init__(
        self,
        data: Path | str | None = None,
        *,
        flush: str = "sync",
        settings: Mapping[str, str] | None = None,
        tls: TlsSettings | None = None,
    ) -> None:
        self._data = data
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._flush = flush
        self._settings = dict(settings or {})
        self._tls = tls
        self._ports = (0, 0)
        self._node: Node | None = None

    @property
    def data_dir(self) -> Path:
        """Where the messages are; without `data`, a temporary directory that exists until `close`."""
        if self._data is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="penstock-")
            self._data = self._temporary.name
        return Path(self._data)

    @property
    def name_server(self) -> str:
        """`host:port` for clients."""
        return self.node.namesrv.address

    @property
    def address(self) -> str:
        """`host:port` of the broker itself."""
        return self.node.broker.address

    @property
    def broker_name(self) -> str:
        return self.node.broker.settings.broker_name

    @property
    def node(self) -> Node:
        """The servers themselves; their objects belong to the loop's thread."""
        if self._node is None:
            raise WrongState("the broker is not running")
        return self._node

    # ---- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts, on the same ports as before if it ran before."""
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-broker", daemon=True)
        self._thread.start()
        try:
            self._run(self._start())
        except BaseException:
            self._end_loop()
            raise

    async def _start(self) -> None:
        namesrv_port, broker_port = self._ports
        properties = {
            **SMALL_FILES,
            "flushDiskType": f"{self._flush.upper()}_FLUSH",
            "listenPort": str(broker_port),
            **self._settings,
        }
        settings = BrokerSettings.from_properties(properties)
        node = Node(settings, self.data_dir, namesrv_port=namesrv_port, tls=self._tls)
        await node.start()
        self._node = node
        self._ports = (int(self.name_server.rpartition(":")[2]), int(self.address.rpartition(":")[2]))

    def stop(self) -> None:
        """A clean stop; the data stays until `close`."""
        self._run(self.node.stop())
        self._end_loop()

    def kill(self) -> None:
        """Ends without a clean stop, as kill -9 does: what was not on disk is gone."""
        self._run(self.node.kill())
        self._end_loop()

    def restart(self) -> None:
        """Stops cleanly and starts again on the same data and ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops if it runs, and removes the temporary directory."""
        try:
            if self._node is not None:
                self.stop()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._node = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---- context --------------------------------------------------------------------------------

    def __enter__(self) -> RunningBroker:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> RunningBroker:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def broker(
    data: Path | str | None = None,
    *,
    flush: str = "sync",
    settings: Mapping[str, str] | None = None,
    tls: TlsSettings | None = None,
) -> RunningBroker:
    """A real broker for a test: `with broker() as b:` or `async with broker() as b:`.

    Without `data` it starts empty and leaves nothing behind. `settings` are keys of Apache's broker.conf.
    """
    return RunningBroker(data, flush=flush, settings=settings, tls=tls)
