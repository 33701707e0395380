"""Keeps name servers informed of a broker: at its start, at every change of a topic, every half minute."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable, Sequence
from typing import Protocol

from penstock.broker.broker import Broker
from penstock.errors import NoNameServer, PenstockError
from penstock.runtime.clock import now_ms
from penstock.transport.client import Connection
from penstock.wire.bodies import KVTable, TopicConfig
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command, Ext
from penstock.wire.headers import RegisterBrokerHeader, UnregisterBrokerHeader

log = logging.getLogger("penstock.runtime")

REGISTER_TIMEOUT_MS = 24_000
UNREGISTER_TIMEOUT_MS = 3_000
ASK_TIMEOUT_MS = 3_000
FIRST_ANSWER_SECONDS = 3.0
"""How long a start waits for the name servers; one that is away hears of the broker later."""
RETRY_SECONDS = 1.0
"""A name server that could not be reached is tried again this soon."""


class LocalNameServer(Protocol):
    """A name server in this process. It is told directly, so that a topic is known once its reply is out."""

    def call(self, code: int, header: Ext, body: bytes = b"") -> Command: ...


class Registrar:
    """One broker's dealings with all its name servers."""

    def __init__(
        self,
        name_servers: Sequence[str] = (),
        *,
        local: LocalNameServer | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self._links = [_Link(self, address) for address in name_servers]
        self.local = local
        self._refresh: asyncio.TimerHandle | None = None

    def attach(self, broker: Broker, address: str) -> None:
        """Says whom this is about and where clients reach it."""
        settings = broker.settings
        self._broker = broker
        self.period = min(60_000, max(10_000, settings.register_name_server_period)) / 1000
        self.header = RegisterBrokerHeader(
            broker_name=settings.broker_name,
            broker_addr=address,
            cluster_name=settings.broker_cluster_name,
            ha_server_addr=address,
            broker_id=settings.broker_id,
            enable_acting_master=False,
        )
        self._broker.take_registration_changes()

    async def start(self) -> None:
        """Tells every name server; waits a little for their answers."""
        if self.local is not None:
            self._refresh_local(self.local)
        for link in self._links:
            link.start()
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
        if self.local is not None:
            self.answered(self.local.call(RequestCode.REGISTER_BROKER, self.header, self.body(changes)))
        for link in self._links:
            link.tell(changes)

    def body(self, only: Iterable[TopicConfig] | None = None) -> bytes:
        """All topics, or some that changed."""
        return self._broker.registration(now_ms(), None if only is None else list(only)).encode()

    def answered(self, answer: Command) -> None:
        """The answer to a registration names the topics that administrators want ordered."""
        if answer.body:
            self._broker.topics.mark_ordered(KVTable.decode(answer.body).table, now_ms())

    async def ask(self, code: int, header: Ext) -> Command:
        """The answer of the first name server that gives one. Raises PenstockError if none does."""
        problem: PenstockError = NoNameServer("there is no name server")
        for link in self._links:
            try:
                return await link.ask(code, header)
            except PenstockError as error:
                problem = error
        raise problem

    async def stop(self) -> None:
        """Takes the broker out of every name server."""
        header = UnregisterBrokerHeader(
            broker_name=self.header.broker_name,
            broker_addr=self.header.broker_addr,
            cluster_name=self.header.cluster_name,
            broker_id=self.header.broker_id,
        )
        if self.local is not None:
            self.local.call(RequestCode.UNREGISTER_BROKER, header)
        await asyncio.gather(*(link.leave(header) for link in self._links))
        await self.drop()

    async def drop(self) -> None:
        """Stops without a word, as a process that dies does."""
        if self._refresh is not None:
            self._refresh.cancel()
        for link in self._links:
            await link.stop()

    def _refresh_local(self, local: LocalNameServer) -> None:
        self.answered(local.call(RequestCode.REGISTER_BROKER, self.header, self.body()))
        self._refresh = asyncio.get_running_loop().call_later(self.period, self._refresh_local, local)


class _Link:
    """The connection to one name server, and what it has not heard yet."""

    def __init__(self, registrar: Registrar, address: str) -> None:
        self._registrar = registrar
        self._address = address
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._changes: dict[str, TopicConfig] = {}
        self._due = asyncio.Event()
        self._reachable = True
        self.first_answer = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def tell(self, changes: Iterable[TopicConfig]) -> None:
        self._changes.update({config.topic_name: config for config in changes})
        self._due.set()

    async def _run(self) -> None:
        """Everything at first and once in a period; changes at once; everything again after a failure."""
        in_full = True
        while True:
            self._due.clear()
            if not await self._register(in_full):
                in_full = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                async with asyncio.timeout(self._registrar.period):
                    await self._due.wait()
                in_full = False
            except TimeoutError:
                in_full = True

    async def _register(self, in_full: bool) -> bool:
        changes, self._changes = self._changes, {}
        try:
            if self._connection is None or self._connection.closed:
                in_full = True  # with the connection the name server has lost everything
                self._connection = await Connection.open(
                    self._address, tls=self._registrar.tls, on_close=lambda _: self._due.set()
                )
            body = self._registrar.body(None if in_full else changes.values())
            answer = await self._connection.request(
                RequestCode.REGISTER_BROKER, self._registrar.header, body, REGISTER_TIMEOUT_MS
            )
            if answer.code != ResponseCode.SUCCESS:
                return self._failed(f"code {answer.code} {answer.remark or ''}")
            self._registrar.answered(answer)
        except PenstockError as error:
            return self._failed(str(error))
        self._reachable = True
        self.first_answer.set()
        return True

    def _failed(self, reason: str) -> bool:
        """Said once, not at every try."""
        level = logging.WARNING if self._reachable else logging.DEBUG
        self._reachable = False
        log.log(level, "name server %s does not know of this broker: %s", self._address, reason)
        return False

    async def ask(self, code: int, header: Ext) -> Command:
        if self._connection is None or self._connection.closed:
            raise NoNameServer(f"name server {self._address} is not connected")
        return await self._connection.request(code, header, timeout_ms=ASK_TIMEOUT_MS)

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
