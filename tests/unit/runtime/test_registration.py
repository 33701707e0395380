"""What name servers hear of a broker, and when: over real sockets, from a broker that runs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock.broker.settings import BrokerSettings
from penstock.namesrv import NamesrvSettings
from penstock.runtime import registration, routes
from penstock.runtime.broker import BrokerRuntime
from penstock.runtime.namesrv import NamesrvRuntime
from penstock.runtime.registration import Registrar
from penstock.testing import SMALL_FILES, RunningBroker
from penstock.transport.client import Connection
from penstock.transport.server import Server
from penstock.wire.bodies import QueueData, RegisterBrokerBody, TopicRouteData
from penstock.wire.codes import RequestCode
from penstock.wire.command import decode_command, encode_command, encode_response

SEND = {
    "a": "p",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1",
    "h": "0",
    "i": "",
    "j": "0",
    "k": "false",
}


class SpyNameServer:
    """Takes every registration and remembers it."""

    def __init__(self, body=b"", code=0):
        self.requests = []
        self.peers = []
        self.body = body
        self.code = code

    def connected(self, peer):
        self.peers.append(peer)

    def disconnected(self, peer):
        pass

    def batch_end(self):
        pass

    def handle(self, peer, command):
        self.requests.append(command)
        peer.send(encode_response(command, self.code, body=self.body))

    def registrations(self):
        return [
            sorted(RegisterBrokerBody.decode(r.body).topic_config_serialize_wrapper.topic_config_table)
            for r in self.requests
            if r.code == RequestCode.REGISTER_BROKER
        ]


@asynccontextmanager
async def serving(service):
    server = Server(service, host="127.0.0.1", port=0)
    await server.start()
    try:
        yield "{}:{}".format(*server.address)
    finally:
        await server.close()


@asynccontextmanager
async def running_broker(tmp_path, *name_servers, **settings):
    properties = {**SMALL_FILES, "listenPort": "0", "brokerName": "b1", **settings}
    runtime = BrokerRuntime(
        BrokerSettings.from_properties(properties), tmp_path / "data", registrar=Registrar(name_servers)
    )
    await runtime.open()
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


async def send(address, topic):
    connection = await Connection.open(address)
    answer = await connection.request(310, {**SEND, "b": topic}, b"x")
    await connection.close()
    return answer.code


async def until(condition, seconds=30.0):
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.05)


def test_a_start_registers_everything_and_a_stop_unregisters(tmp_path):
    spy = SpyNameServer()

    async def main():
        async with serving(spy) as address, running_broker(tmp_path, address) as broker:
            (registered,) = spy.registrations()
            assert {"TBW102", "b1", "DefaultCluster"} <= set(registered)
            assert spy.requests[0].ext["brokerAddr"] == broker.address
            spy.requests.clear()
        assert [request.code for request in spy.requests] == [RequestCode.UNREGISTER_BROKER]

    asyncio.run(main())


def test_a_new_topic_is_told_at_once_and_alone(tmp_path):
    spy = SpyNameServer()

    async def main():
        async with serving(spy) as address, running_broker(tmp_path, address) as broker:
            assert await send(broker.address, "orders") == 0
            await until(lambda: len(spy.registrations()) == 2)
            assert spy.registrations()[1] == ["orders"]

    asyncio.run(main())


def test_a_lost_connection_is_made_again_and_everything_told_again(tmp_path):
    spy = SpyNameServer()

    async def main():
        async with serving(spy) as address, running_broker(tmp_path, address):
            spy.peers[0].close()
            await until(lambda: len(spy.registrations()) == 2)
            assert spy.registrations()[1] == spy.registrations()[0]

    asyncio.run(main())


def test_a_refused_registration_is_tried_again_and_reported_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(registration, "FIRST_ANSWER_SECONDS", 0.1)
    spy = SpyNameServer(code=1)

    async def main():
        async with serving(spy) as address, running_broker(tmp_path, address):
            await until(lambda: len(spy.registrations()) >= 3)
            spy.code = 0
            tried = len(spy.registrations())
            await until(lambda: len(spy.registrations()) > tried)
            await asyncio.sleep(0.2)
            assert len(spy.registrations()) <= tried + 2

    asyncio.run(main())
    assert caplog.text.count("does not know of this broker") == 1


def test_a_name_server_that_is_away_at_the_start_hears_of_the_broker_when_it_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(registration, "FIRST_ANSWER_SECONDS", 0.1)

    async def main():
        first = NamesrvRuntime(NamesrvSettings(listen_port=0), tmp_path / "n")
        await first.start()
        address = first.address
        await first.stop()
        async with running_broker(tmp_path, address):
            port = int(address.rpartition(":")[2])
            again = NamesrvRuntime(NamesrvSettings(listen_port=port), tmp_path / "n")
            await again.start()
            connection = await Connection.open(address)

            async def known():
                return (await connection.request(105, {"topic": "TBW102"})).code == 0

            for _ in range(100):
                if await known():
                    break
                await asyncio.sleep(0.05)
            route = TopicRouteData.decode((await connection.request(105, {"topic": "TBW102"})).body)
            assert [data.broker_name for data in route.broker_datas] == ["b1"]
            await connection.close()
        await again.stop()

    asyncio.run(main())


def test_order_topics_of_the_name_server_become_ordered(tmp_path):
    spy = SpyNameServer()

    async def main():
        async with serving(spy) as address, running_broker(tmp_path, address) as broker:
            await send(broker.address, "orders")
            await until(lambda: len(spy.registrations()) == 2)
            spy.body = b'{"table":{"orders":"b1:4","unknown":"b1:4"}}'
            await send(broker.address, "more")
            await until(lambda: broker.broker.topics.table["orders"].order)
            assert "unknown" not in broker.broker.topics.table

    asyncio.run(main())


def test_a_broker_knows_the_queues_of_its_topics_on_all_brokers(tmp_path, monkeypatch):
    """What consumers that leave their rebalance to the broker are told comes from the name server."""
    monkeypatch.setattr(routes, "REFRESH_SECONDS", 0.05)

    async def main():
        namesrv = NamesrvRuntime(NamesrvSettings(listen_port=0), tmp_path / "namesrv")
        await namesrv.start()
        address = namesrv.address
        async with (
            running_broker(tmp_path / "1", address) as first,
            running_broker(tmp_path / "2", address, brokerName="b2") as second,
        ):
            known = first.broker.pop.assignments.routes
            assert known.queues("shared") is None
            assert await send(first.address, "shared") == 0
            await until(lambda: known.queues("shared") is not None)
            assert {queue.broker_name for queue in known.queues("shared")} == {"b1"}
            assert await send(second.address, "shared") == 0
            await until(lambda: {queue.broker_name for queue in known.queues("shared")} == {"b1", "b2"})
            connection = await Connection.open(second.address)
            await connection.request(215, {"topic": "shared"})
            await connection.close()
            await namesrv.stop()  # what was known goes on being the answer
            await asyncio.sleep(0.2)
            assert known.queues("shared")

    asyncio.run(main())


def test_a_route_whose_first_answer_was_slow_is_kept_up_to_date_all_the_same(monkeypatch):
    """The time for a refresh comes while the first answer is still on its way."""
    monkeypatch.setattr(routes, "REFRESH_SECONDS", 0.02)

    class SlowAtFirst:
        local = None
        asked = 0

        async def ask(self, code, header):
            self.asked += 1
            await asyncio.sleep(0.1 if self.asked == 1 else 0)
            data = QueueData("b1", self.asked, self.asked, 6)
            body = TopicRouteData(queue_datas=[data], broker_datas=[]).encode(strict=True)
            return decode_command(encode_command(0, 1, flag=1, body=body)[4:])

    async def main():
        registrar = SlowAtFirst()
        known = routes.Routes(registrar)
        assert known.queues("t") is None
        await until(lambda: registrar.asked > 2)
        assert len(known.queues("t")) >= 2
        known.stop()

    asyncio.run(main())


def test_a_broker_beside_its_name_server_knows_queues_at_once(tmp_path):
    with RunningBroker() as running:
        known = running.node.broker.broker.pop.assignments.routes
        assert asyncio.run(send(running.address, "here")) == 0
        assert len(known.queues("here")) == 4
        assert known.queues("nothing") is None
