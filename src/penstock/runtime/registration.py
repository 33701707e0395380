"""Keeps the name servers informed of one broker: at its start, at every change, every half minute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from penstock.broker.broker import Broker
from penstock.errors import PenstockError
from penstock.transport.client import Connection
from penstock.wire.bodies import TopicConfig
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Ext
from penstock.wire.headers import RegisterBrokerHeader, UnregisterBrokerHeader

log = logging.getLogger("penstock.runtime")

REGISTER_TIMEOUT_MS = 24_000
UNREGISTER_TIMEOUT_MS = 3_000
FIRST_ANSWER_SECONDS = 3.0
"""How long a start waits for the name servers; one that is away hears of the broker later."""
RETRY_SECONDS = 1.0
"""A name server that could not be reached is tried again this soon."""


class LocalNameServer(Protocol):
    """A name server in this process. It is told directly, so that a topic is known once its reply is out."""

    def call(self, code: int, header: Ext, body: bytes = b"") -> int:
        """The response code."""


class Registrar:
    """One broker's dealings with all its name servers."""

    def __init__(self, name_servers: Sequence[str] = (), *, local: LocalNameServer | None = None) -> None:
        self._links = [_Link(self, address) for address in name_servers]
        self._local = local
        self._refresh: asyncio.Task[None] | None = None

    async def start(self, broker: Broker, address: str) -> None:
        settings = broker.settings
        self._broker = broker
        self._period = min(60_000, max(10_000, settings.register_name_server_period)) / 1000
        self._header = RegisterBrokerHeader(
            broker_name=settings.broker_name,
            broker_addr=address,
            cluster_name=settings.broker_cluster_name,
            ha_server_addr=address,
            broker_id=settings.broker_id,
            enable_acting_master=False,
        )
        self._broker.take_registration_changes()
        if self._local is not None:
            self._local.call(RequestCode.REGISTER_BROKER, self._header, self._body())
        for link in self._links:
            link.start()
        self._refresh = asyncio.create_task(self._refresh_local())
        if self._links:
            waiting = [asyncio.create_task(link.first_answer.wait()) for link in self._links]
            _, late = await asyncio.wait(waiting, timeout=FIRST_ANSWER_SECONDS)
            for task in late:
                task.cancel()

    def changed(self) -> None:
        """Passes on topics that were created or changed since the last call."""
        changes = self._broker.take_registration_changes()
        if changes is None:
            return
        if self._local is not None:
            self._local.call(RequestCode.REGISTER_BROKER, self._header, self._body(changes))
        for link in self._links:
            link.wake()

    async def stop(self) -> None:
        """Takes the broker out of every name server."""
        header = UnregisterBrokerHeader(
            broker_name=self._header.broker_name,
            broker_addr=self._header.broker_addr,
            cluster_name=self._header.cluster_name,
            broker_id=self._header.broker_id,
        )
        if self._local is not None:
            self._local.call(RequestCode.UNREGISTER_BROKER, header)
        await asyncio.gather(*(link.leave(header) for link in self._links))
        await self.drop()

    async def drop(self) -> None:
        """Stops without a word, as a process that dies does."""
        if self._refresh is not None:
            self._refresh.cancel()
        for link in self._links:
            await link.stop()

    @property
    def header(self) -> RegisterBrokerHeader:
        return self._header

    @property
    def period(self) -> float:
        return self._period

    def _body(self, only: list[TopicConfig] | None = None) -> bytes:
        return self._broker.registration(0, only).encode()

    def full_body(self) -> bytes:
        return self._body()

    async def _refresh_local(self) -> None:
        while self._local is not None:
            await asyncio.sleep(self._period)
            self._local.call(RequestCode.REGISTER_BROKER, self._header, self._body())


class _Link:
    """The connection to one name server; a loop that registers when woken or when the period is over."""

    def __init__(self, registrar: Registrar, address: str) -> None:
        self._registrar = registrar
        self._address = address
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._due = asyncio.Event()
        self.first_answer = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        self._due.set()

    async def _run(self) -> None:
        while True:
            self._due.clear()
            registered = await self._register()
            wait = self._registrar.period if registered else RETRY_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._due.wait()
            except TimeoutError:
                pass

    async def _register(self) -> bool:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = await Connection.open(self._address)
            body = self._registrar.full_body()
            answer = await self._connection.request(
                RequestCode.REGISTER_BROKER, self._registrar.header, body, REGISTER_TIMEOUT_MS
            )
        except PenstockError as error:
            log.warning("name server %s was not told of this broker: %s", self._address, error)
            return False
        if answer.code != ResponseCode.SUCCESS:
            log.warning(
                "name server %s refused this broker: %d %s", self._address, answer.code, answer.remark
            )
            return False
        self.first_answer.set()
        return True

    async def leave(self, header: UnregisterBrokerHeader) -> None:
        await self._cancel()
        if self._connection is not None and not self._connection.closed:
            try:
                await self._connection.request(
                    RequestCode.UNREGISTER_BROKER, header, timeout_ms=UNREGISTER_TIMEOUT_MS
                )
            except PenstockError as error:
                log.warning("name server %s was not told that this broker leaves: %s", self._address, error)

    async def stop(self) -> None:
        await self._cancel()
        if self._connection is not None:
            await self._connection.close()

    async def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
