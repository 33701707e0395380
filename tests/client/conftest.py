"""A real broker for the client's tests, and a scripted one for answers that a healthy broker never gives.

Tests may be coroutines; each runs in a loop of its own and must leave no client instance behind. With
--server=apache the tests on the real broker run against Apache's, and only those.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import math
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock import SimpleConsumer
from penstock.admin import AdminClient, TopicSettings, set_consume_mode
from penstock.client import instance as instances
from penstock.client.config import Timings
from penstock.client.pulled import PulledMessage, PullInfo
from penstock.message.ids import pack_host
from penstock.message.properties import encode_properties
from penstock.message.queue import MessageQueue
from penstock.message.record import RecordView, encode_record
from penstock.testing import RunningBroker, broker
from penstock.transport.server import Server
from penstock.wire.bodies import (
    BrokerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    QueueData,
    SubscriptionGroupConfig,
    TopicRouteData,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command, encode_command, encode_response
from penstock.wire.headers import (
    GetMaxOffsetResponseHeader,
    GetMinOffsetResponseHeader,
    PullResponseHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetByTimestampResponseHeader,
    SendResponseHeader,
)
from penstock.wire.peer import Peer

QUICK_LEVELS = "1s 2s " + " ".join(["0s"] * 16)
"""Levels 1 and 2 take a moment; the levels of retries take none."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "scenario(number): scenarios at the end of the client chapter; pop-N: of the POP chapter"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--server") == "penstock":
        return
    here = Path(__file__).parent
    others = [
        item
        for item in items
        if here in item.path.parents and "server" not in getattr(item, "fixturenames", ())
    ]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        await pyfuncitem.obj(**arguments)
        await asyncio.sleep(0)
        left = [instance for instance in instances._instances.values() if instance.usable]
        assert not left, f"client instances left behind: {[item.client_id for item in left]}"

    asyncio.run(run())
    return True


@dataclass
class ApacheBroker:
    """What the tests ask of a broker, from Apache's."""

    name_server: str
    address: str
    metrics_url: str
    broker_name: str = "broker-a"
    give_back_s: float = 8.0
    """Until a message given back comes again: the reviver brings it, which looks now and then."""

    async def unfinished(self, group: str, topic: str) -> float:
        """From the metrics, the only place where the broker says what is in flight. It counts leases only
        in a group whose last heartbeat came from a client that does nothing but pop."""
        async with SimpleConsumer(self.name_server, group=group, subscribe={topic: "*"}):
            return await asyncio.to_thread(self._unfinished, group)

    def _unfinished(self, group: str) -> float:
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        names = ("rocketmq_consumer_ready_messages{", "rocketmq_consumer_inflight_messages{")
        found = [
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(names) and f'consumer_group="{group}"' in line
        ]
        return sum(found) if found else math.inf  # not known yet


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[RunningBroker | ApacheBroker]:
    settings: dict[str, Any] = {
        "messageDelayLevel": QUICK_LEVELS,
        "enablePropertyFilter": "true",
        "useServerSideResetOffset": "false",
    }
    if request.config.getoption("--server") == "apache":
        sys.path.insert(0, str(Path(__file__).parent.parent / "interop"))
        import apache

        port = apache.free_port()
        settings |= {
            "metricsExporterType": "PROM",
            "metricsPromExporterHost": "127.0.0.1",
            "metricsPromExporterPort": port,
        }
        with apache.cluster(settings=settings) as cluster:
            url = f"http://127.0.0.1:{port}/metrics"
            yield ApacheBroker(cluster.name_server, cluster.brokers[0].address, url)
        return
    with broker(flush="async", settings=settings) as running:
        yield running


_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


@pytest.fixture
def quick() -> Timings:
    """The protocol's times, shortened in proportion as far as a test needs it."""
    return Timings(
        rebalance_interval_ms=1_000,
        rebalance_min_interval_ms=20,
        lock_retry_ms=50,
        pull_error_ms=60,
        pull_paused_ms=50,
        flow_control_ms=10,
        offset_illegal_ms=100,
        resubmit_ms=100,
        lock_first_ms=50,
        relock_failed_ms=60,
        reset_offset_wait_ms=100,
        offline_check_ms=100,
        persist_first_ms=50,
    )


SetMode = Callable[..., Awaitable[None]]


@pytest.fixture
def set_mode(server: RunningBroker | ApacheBroker, topic: str, group: str) -> SetMode:
    """`await set_mode("POP", share=0, queues=4)` for the test's group and topic, which it creates."""

    async def apply(mode: str, share: int = 0, queues: int = 4) -> None:
        async with AdminClient(server.name_server) as admin:
            await admin.create_topic(topic, TopicSettings(read_queues=queues, write_queues=queues))
            await admin.update_group(SubscriptionGroupConfig(group_name=group))
            await set_consume_mode(admin, topic, group, mode, share)

    return apply


@pytest.fixture
def nothing_left(
    server: RunningBroker | ApacheBroker, group: str, topic: str
) -> Callable[[], Awaitable[None]]:
    """Waits until the broker has nothing ready, in flight or put off for the test's popping group."""

    async def unfinished() -> float:
        if isinstance(server, ApacheBroker):
            return await server.unfinished(group, topic)
        async with AdminClient(server.name_server) as admin:
            lags = await admin.group_lags(group)
        return sum(lag.ready + lag.in_flight + lag.delayed for lag in lags)

    async def wait() -> None:
        deadline = time.monotonic() + 15
        while left := await unfinished():
            assert time.monotonic() < deadline, f"{left} messages are still there after 15 s"
            await asyncio.sleep(0.05)

    return wait


Eventually = Callable[..., Awaitable[None]]


@pytest.fixture
def eventually() -> Eventually:
    """Waits for a condition; fails with what it saw last."""

    async def wait(condition: Callable[[], Any], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (
                f"still not true after {seconds} s: {inspect.getsource(condition)}"
            )
            await asyncio.sleep(0.01)

    return wait


# ---- a scripted cluster -------------------------------------------------------------------------------

Answer = bytes | None
Handler = Callable[["Request"], Answer]


@dataclass
class Request:
    """One request as it arrived."""

    broker: str
    command: Command
    peer: Peer
    at: float

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def ext(self) -> dict[str, str]:
        return self.command.ext

    def reply(
        self, code: int = ResponseCode.SUCCESS, header: Any = None, body: bytes = b"", remark: str = ""
    ) -> bytes:
        return encode_response(self.command, code, remark or None, header, body)


class ScriptedServer:
    """One listening address; hands every request to the cluster."""

    def __init__(self, cluster: ScriptedCluster, name: str, port: int = 0) -> None:
        self.cluster = cluster
        self.name = name
        self.peers: list[Peer] = []
        self.server = Server(self, host="127.0.0.1", port=port)
        self.responses: list[Command] = []

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server.address)

    def connected(self, peer: Peer) -> None:
        self.peers.append(peer)

    def handle(self, peer: Peer, command: Command) -> None:
        if command.is_response:
            self.responses.append(command)
            return
        request = Request(self.name, command, peer, time.monotonic())
        self.cluster.requests.append(request)
        handler = self.cluster.handlers.get((self.name, command.code)) or self.cluster.handlers.get(
            ("*", command.code)
        )
        answer = handler(request) if handler else request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if answer is not None and not command.is_oneway:
            peer.send(answer)

    def batch_end(self) -> None:
        return

    def disconnected(self, peer: Peer) -> None:
        self.peers.remove(peer)

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", oneway: bool = False
    ) -> None:
        """Sends a request to the client that connected last."""
        self.peers[-1].send(encode_command(code, 7, flag=2 if oneway else 0, ext=ext or {}, body=body))


@dataclass
class ScriptedCluster:
    """A name server and brokers whose answers a test writes itself. Everything else works plainly."""

    queues: int = 1
    servers: dict[str, ScriptedServer] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    handlers: dict[tuple[str, int], Handler] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    offsets: dict[MessageQueue, int] = field(default_factory=dict)
    broker_addrs: dict[str, dict[int, str]] = field(default_factory=dict)
    filter_servers: dict[str, list[str]] = field(default_factory=dict)
    perm: int = 6
    known_topics: set[str] | None = None

    async def start(self, *brokers: str, replicas: dict[str, list[int]] | None = None) -> None:
        await self.listen("ns")
        for name in brokers:
            self.broker_addrs[name] = {0: (await self.listen(name)).address}
        for name, broker_ids in (replicas or {}).items():
            for broker_id in broker_ids:
                replica = await self.listen(f"{name}-{broker_id}")
                self.broker_addrs[name][broker_id] = replica.address
        for code, handler in self._plain().items():
            self.handlers.setdefault(("*", code), handler)

    async def listen(self, name: str, port: int = 0) -> ScriptedServer:
        """One more address, which no route names."""
        server = ScriptedServer(self, name, port)
        await server.server.start()
        self.servers[name] = server
        return server

    async def stop(self) -> None:
        for server in self.servers.values():
            await server.server.close(0)

    @contextlib.asynccontextmanager
    async def running(
        self, *brokers: str, replicas: dict[str, list[int]] | None = None
    ) -> AsyncIterator[None]:
        await self.start(*brokers, replicas=replicas)
        try:
            yield
        finally:
            await self.stop()

    @property
    def name_server(self) -> str:
        return self.servers["ns"].address

    def on(self, code: int, handler: Handler, broker: str = "*") -> None:
        self.handlers[(broker, code)] = handler

    def sent(self, code: int, broker: str | None = None) -> list[Request]:
        return [item for item in self.requests if item.code == code and broker in (None, item.broker)]

    def _plain(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: lambda request: request.reply(),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda request: request.reply(
                body=GetConsumerListByGroupResponseBody(self.ids).encode()
            ),
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: lambda request: request.reply(
                header=GetMaxOffsetResponseHeader(offset=77)
            ),
            RequestCode.GET_MIN_OFFSET: lambda request: request.reply(
                header=GetMinOffsetResponseHeader(offset=0)
            ),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda request: request.reply(
                header=SearchOffsetByTimestampResponseHeader(offset=33)
            ),
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: lambda request: request.reply(),
            RequestCode.CONSUMER_SEND_MSG_BACK: lambda request: request.reply(),
            RequestCode.SEND_MESSAGE_V2: self.stored,
            RequestCode.SEND_BATCH_MESSAGE: self.stored,
            RequestCode.PULL_MESSAGE: lambda request: None,
            RequestCode.LITE_PULL_MESSAGE: lambda request: None,
        }

    def _route(self, request: Request) -> Answer:
        topic = request.ext["topic"]
        if self.known_topics is not None and topic not in self.known_topics:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST)
        count = 1 if topic.startswith("%RETRY%") else self.queues
        route = TopicRouteData(
            queue_datas=[QueueData(name, count, count, self.perm) for name in self.broker_addrs],
            broker_datas=[BrokerData("c", name, dict(addrs)) for name, addrs in self.broker_addrs.items()],
            filter_server_table=self.filter_servers,
        )
        return request.reply(body=route.encode(strict=True))

    def _heartbeat(self, request: Request) -> Answer:
        client_id = HeartbeatData.decode(request.command.body).client_id
        if client_id not in self.ids:
            self.ids.append(client_id)
        return request.reply()

    def _query_offset(self, request: Request) -> Answer:
        offset = self.offsets.get(self.queue_of(request))
        if offset is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND)
        return request.reply(header=QueryConsumerOffsetResponseHeader(offset=offset))

    def _update_offset(self, request: Request) -> Answer:
        self.offsets[self.queue_of(request)] = int(request.ext["commitOffset"])
        return request.reply()

    def _lock(self, request: Request) -> Answer:
        queues = LockBatchRequestBody.decode(request.command.body).mq_set
        return request.reply(body=LockBatchResponseBody(queues).encode())

    @staticmethod
    def queue_of(request: Request) -> MessageQueue:
        return MessageQueue(request.ext["topic"], request.ext["bname"], int(request.ext["queueId"]))

    @staticmethod
    def stored(request: Request) -> Answer:
        ids = "7F0000010000A7E50000000000000000"
        header = SendResponseHeader(msg_id=ids, queue_id=int(request.ext["e"]), queue_offset=5)
        return request.reply(header=header)

    # ---- pulls --------------------------------------------------------------------------------------

    @staticmethod
    def pulled(
        request: Request,
        code: int = ResponseCode.SUCCESS,
        *,
        offsets: list[int] | None = None,
        next_offset: int | None = None,
        properties: dict[str, str] | None = None,
        max_offset: int = 100,
        suggest: int = 0,
        reconsume_times: int = 0,
    ) -> bytes:
        """An answer to a pull, with a message at each of the offsets."""
        asked = int(request.ext["queueOffset"])
        offsets = offsets or []
        if next_offset is None:
            next_offset = offsets[-1] + 1 if offsets else asked
        records = [
            encode_record(
                topic=request.ext["topic"].encode(),
                queue_id=int(request.ext["queueId"]),
                flag=0,
                queue_offset=offset,
                physical_offset=offset * 1000,
                sys_flag=0,
                born_ms=1,
                born_host=pack_host("127.0.0.1", 1),
                store_ms=2,
                store_host=pack_host("127.0.0.1", 10911),
                reconsume_times=reconsume_times,
                prepared_offset=0,
                body=b"%d" % offset,
                properties=encode_properties({"UNIQ_KEY": f"id-{offset}", **(properties or {})}).encode(),
            )
            for offset in offsets
        ]
        header = PullResponseHeader(
            suggest_which_broker_id=suggest,
            next_begin_offset=next_offset,
            min_offset=0,
            max_offset=max_offset,
        )
        return request.reply(code, header, b"".join(records))

    def feed(self, topic: str, messages: dict[int, list[int]], **options: Any) -> None:
        """Pulls of a topic at offset k get messages at the listed offsets; other pulls wait."""

        def handler(request: Request) -> Answer:
            offsets = messages.get(int(request.ext["queueOffset"]))
            if request.ext["topic"] != topic or offsets is None:
                return None
            return self.pulled(request, offsets=offsets, **options)

        self.on(RequestCode.PULL_MESSAGE, handler)


@pytest.fixture
def cluster() -> ScriptedCluster:
    """Not started: a test does `async with cluster.running("broker"):` in its own loop."""
    return ScriptedCluster()


@pytest.fixture
def make_message() -> Callable[[int], PulledMessage]:
    """A message as it lies in a process queue."""

    def make(offset: int) -> PulledMessage:
        record = encode_record(
            topic=b"T",
            queue_id=0,
            flag=0,
            queue_offset=offset,
            physical_offset=offset * 1000,
            sys_flag=0,
            born_ms=1,
            born_host=pack_host("127.0.0.1", 1),
            store_ms=2,
            store_host=pack_host("127.0.0.1", 2),
            reconsume_times=0,
            prepared_offset=0,
            body=b"body",
            properties=b"",
        )
        return PulledMessage(RecordView(record), PullInfo(MessageQueue("T", "b1", 0), 0, 0))

    return make
