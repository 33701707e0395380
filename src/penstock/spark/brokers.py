"""Connections of one Spark process: made on first use, kept for all its later tasks.

Spark's code is blocking and its processes live from task to task, so each process has one event loop in a
thread of its own, and one set of connections for each list of name servers.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from penstock.client.api import BrokerApi
from penstock.client.config import parse_addresses
from penstock.client.remoting import Remoting
from penstock.errors import RequestTimeout
from penstock.transport.loop import loop_factory

T = TypeVar("T")

LARGEST_REUSED_BYTES: Final = 32 << 20
"""Buffers up to this size come from the heap, the most that glibc allows; a pull answer has 4 MiB."""

KEPT_FREE_BYTES: Final = 64 << 20
"""Free memory at the end of the heap beyond this goes back to the system."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


class Brokers:
    """The calls of `api` from blocking code. Everything on `api` runs on the loop's thread: use `run`."""

    def __init__(self, name_server: str) -> None:
        self.name_server = name_server
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        threading.Thread(target=self._loop.run_forever, name="penstock-spark", daemon=True).start()
        self.api: BrokerApi = self.run(self._open())

    async def _open(self) -> BrokerApi:
        remoting = Remoting()
        remoting.set_name_servers(parse_addresses(self.name_server))
        return BrokerApi(remoting)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_ms: int | None = None) -> T:
        future = self.start(coroutine)
        try:
            return future.result(None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            if not future.cancel():
                raise
            raise RequestTimeout(f"no answer by way of {self.name_server} in {timeout_ms} ms") from None


_open_brokers: dict[tuple[int, str], Brokers] = {}
_lock = threading.Lock()
_frozen = False


def brokers(name_server: str) -> Brokers:
    """This process's connections; a forked child makes its own."""
    key = (os.getpid(), name_server)
    with _lock:
        if key not in _open_brokers:
            _open_brokers[key] = Brokers(name_server)
        return _open_brokers[key]


def settle_worker() -> None:
    """Once in a Python worker: Spark runs a full collection after every task, which walks over everything
    that is loaded; frozen objects are left out of it."""
    global _frozen
    if not _frozen:
        _keep_freed_memory()
        gc.collect()
        gc.freeze()
        _frozen = True


def _keep_freed_memory() -> None:
    """Each batch needs a few buffers of some MiB. The C library would get them from the kernel and give them
    back every time, and the kernel clears every page anew: a third of the cost of receiving."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:  # elsewhere than with glibc nothing has to be kept from it
        mallopt(_M_MMAP_THRESHOLD, LARGEST_REUSED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
