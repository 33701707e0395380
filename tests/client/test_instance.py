"""Client instances: who shares one, how it starts, what it tells brokers and what it answers them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock import ConsumeStatus, Message, MessageModel, Producer, PullConsumer, PushConsumer
from penstock.client.config import Timings
from penstock.client.instance import ServiceState
from penstock.errors import ConnectFailed, NoNameServer, RequestTimeout, SendFailed, WrongState
from penstock.testing import RunningBroker, broker
from penstock.transport.tls import TlsSettings, client_context
from penstock.wire.acl import sign
from penstock.wire.bodies import ConsumerConnection, HeartbeatData
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.headers import GetConsumerConnectionListHeader

HEARTBEAT = RequestCode.HEART_BEAT


def success(messages: Any, context: Any) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


@pytest.mark.scenario(1)
@pytest.mark.behaviour("START-2")
async def test_two_producers_with_default_names_have_instances_of_their_own(server: RunningBroker) -> None:
    async with (
        Producer(server.name_server, group="a") as first,
        Producer(server.name_server, group="b") as second,
    ):
        assert first.client_id != second.client_id
        assert first.instance is not second.instance
        ip, _, name = first.client_id.partition("@")
        assert ip.count(".") == 3
        assert name.split("#")[0] == str(os.getpid())


@pytest.mark.scenario(2)
@pytest.mark.behaviour("START-2", "RPC-1")
async def test_one_instance_name_means_one_instance_and_one_connection_to_a_broker(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    options: dict[str, Any] = {
        "instance_name": "x",
        "client_ip": "1.2.3.4",
        "unit_name": "u",
        "timings": quick,
    }
    async with cluster.running("b1"):
        producer = Producer(cluster.name_server, group="p", **options)
        consumer = PushConsumer(
            cluster.name_server, group="c", listener=success, subscribe={topic: "*"}, **options
        )
        async with producer, consumer:
            assert producer.client_id == consumer.client_id == "1.2.3.4@x@u"
            assert producer.instance is consumer.instance
            await producer.send(Message(topic, b"x"))
            await eventually(lambda: cluster.sent(RequestCode.PULL_MESSAGE))
            assert len(cluster.servers["b1"].peers) == 1
            assert len(cluster.servers["ns"].peers) == 1


@pytest.mark.scenario(3)
@pytest.mark.behaviour("START-5")
async def test_a_broadcasting_consumer_keeps_its_name_and_finds_its_offsets_again(
    cluster: Any, topic: str, quick: Timings, eventually: Any, tmp_path: Any
) -> None:
    def make() -> PushConsumer:
        return PushConsumer(
            cluster.name_server,
            group="g",
            listener=success,
            subscribe={topic: "*"},
            message_model=MessageModel.BROADCASTING,
            local_offset_dir=str(tmp_path),
            timings=quick,
        )

    async with cluster.running("b1"):
        cluster.feed(topic, {77: [77, 78]})
        async with make() as first:
            assert first.client_id.endswith("@DEFAULT")
            await eventually(lambda: 79 in first.offset_store.table(topic).values())
        before = len(cluster.sent(RequestCode.PULL_MESSAGE))
        async with make():
            await eventually(lambda: len(cluster.sent(RequestCode.PULL_MESSAGE)) > before)
        assert cluster.sent(RequestCode.PULL_MESSAGE)[before].ext["queueOffset"] == "79"


@pytest.mark.scenario(4)
async def test_a_pull_consumer_marks_its_requests_and_its_client_id(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"):
        async with PullConsumer(
            cluster.name_server, group="g", subscribe={topic: "*"}, timings=quick
        ) as consumer:
            assert consumer.client_id.endswith("@STREAM")
            await eventually(lambda: cluster.sent(RequestCode.LITE_PULL_MESSAGE))
        assert all(request.ext["ReqT"] == "0" for request in cluster.requests)


@pytest.mark.scenario(5)
@pytest.mark.behaviour("START-2")
async def test_a_second_consumer_of_a_group_on_one_instance_is_refused_and_the_first_goes_on(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    def make() -> PushConsumer:
        return PushConsumer(
            cluster.name_server,
            group="g",
            listener=success,
            subscribe={topic: "*"},
            instance_name="same",
            timings=quick,
        )

    async with cluster.running("b1"), make() as first:
        second = make()
        with pytest.raises(WrongState, match="has a consumer"):
            await second.start()
        assert first.running
        await eventually(lambda: first.rebalancer.queues)


@pytest.mark.scenario(6)
@pytest.mark.behaviour("START-6")
async def test_a_consumers_heartbeat_lists_the_inner_producer_and_goes_to_slaves_too(
    cluster: Any, topic: str, quick: Timings
) -> None:
    async with cluster.running("b1", replicas={"b1": [1]}):
        consumer = PushConsumer(
            cluster.name_server, group="g", listener=success, subscribe={topic: "a || b"}, timings=quick
        )
        async with consumer:
            assert {request.broker for request in cluster.sent(HEARTBEAT)} == {"b1", "b1-1"}
            data = HeartbeatData.decode(cluster.sent(HEARTBEAT, "b1")[0].command.body)
        assert [item.group_name for item in data.producer_data_set] == ["CLIENT_INNER_PRODUCER"]
        assert data.client_id == consumer.client_id
        subscribed = {item.topic: item for item in data.consumer_data_set[0].subscription_data_set}
        assert set(subscribed) == {topic, "%RETRY%g"}
        assert subscribed[topic].tags_set == ["a", "b"]
        assert subscribed[topic].code_set == [97, 98]
        assert data.consumer_data_set[0].consume_type == "CONSUME_PASSIVELY"


@pytest.mark.scenario(7)
async def test_a_producers_heartbeat_goes_to_masters_only(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with (
        cluster.running("b1", replicas={"b1": [1]}),
        Producer(cluster.name_server, group="p", topics=[topic], heartbeat_interval_ms=50, timings=quick),
    ):
        await eventually(lambda: len(cluster.sent(HEARTBEAT)) >= 3)
        assert {request.broker for request in cluster.sent(HEARTBEAT)} == {"b1"}


@pytest.mark.scenario(8)
@pytest.mark.behaviour("START-4")
async def test_an_address_that_leaves_its_route_is_forgotten_and_gets_no_heartbeat(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1", "b2"):
        consumer = PushConsumer(
            cluster.name_server,
            group="g",
            listener=success,
            subscribe={topic: "*"},
            route_interval_ms=50,
            heartbeat_interval_ms=50,
            timings=quick,
        )
        async with consumer:
            await eventually(lambda: cluster.sent(HEARTBEAT, "b2"))
            del cluster.broker_addrs["b2"]
            # the routes of topic and retry topic come one after the other
            known = consumer.instance.routes.addresses
            await eventually(lambda: "b2" not in known and not cluster.servers["b2"].peers)
            await asyncio.sleep(0.1)
            before = len(cluster.sent(HEARTBEAT, "b2"))
            await asyncio.sleep(0.2)
            assert len(cluster.sent(HEARTBEAT, "b2")) == before
            assert not cluster.servers["b2"].peers


@pytest.mark.behaviour("START-6")
async def test_a_real_broker_knows_the_consumer_after_its_start_and_forgets_it_at_its_stop(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    async with Producer(server.name_server, topics=[topic]) as producer:

        async def connections() -> list[str]:
            response = await producer.instance.remoting.request(
                server.address,
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                GetConsumerConnectionListHeader(consumer_group=group),
            )
            if response.code != ResponseCode.SUCCESS:
                return []
            return [item.client_id for item in ConsumerConnection.decode(response.body).connection_set]

        await producer.send(Message(topic, b"x"))
        async with PushConsumer(
            server.name_server, group=group, listener=success, subscribe={topic: "*"}, timings=quick
        ) as consumer:
            assert await connections() == [consumer.client_id]
        assert await connections() == []


# ---- states -------------------------------------------------------------------------------------------


@pytest.mark.behaviour("START-3")
async def test_a_start_passes_through_start_failed_to_running_and_cannot_be_repeated(
    cluster: Any, topic: str, quick: Timings
) -> None:
    async with cluster.running("b1"):
        states: list[ServiceState] = []
        consumer = PushConsumer(
            cluster.name_server, group="g", listener=success, subscribe={topic: "*"}, timings=quick
        )
        plain = cluster.handlers[("*", RequestCode.GET_ROUTEINFO_BY_TOPIC)]

        def route(request: Any) -> Any:
            states.append(consumer.instance.state)
            return plain(request)

        cluster.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        assert consumer._state is ServiceState.CREATE_JUST
        await consumer.start()
        assert states[0] is ServiceState.RUNNING
        assert consumer.instance.state is ServiceState.RUNNING
        with pytest.raises(WrongState, match="make a new one"):
            await consumer.start()
        await consumer.stop()
        assert consumer.instance.state is ServiceState.SHUTDOWN_ALREADY
        with pytest.raises(WrongState):
            await consumer.start()


@pytest.mark.behaviour("START-3")
async def test_a_start_that_failed_says_why_and_cannot_be_tried_again(quick: Timings) -> None:
    consumer = PushConsumer("127.0.0.1:1", group="g", listener=success, subscribe={"t": "*"}, timings=quick)
    with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1"):
        await consumer.start()
    assert consumer._state is ServiceState.START_FAILED
    with pytest.raises(WrongState, match="start failed"):
        await consumer.start()


@pytest.mark.behaviour("START-3")
async def test_a_client_without_any_name_server_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(NoNameServer, match="NAMESRV_ADDR"):
        await Producer(group="p").start()


@pytest.mark.behaviour("START-3")
async def test_the_name_server_comes_from_the_environment_if_it_is_not_given(
    server: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", server.name_server)
    async with Producer(group="p") as producer:
        assert (await producer.send(Message(topic, b"x"))).queue_offset == 0


@pytest.mark.behaviour("START-3")
async def test_name_servers_are_fetched_over_http_if_none_is_given(
    server: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{server.name_server}\nignored\n".encode())

        def log_message(self, *arguments: Any) -> None:
            return

    web = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    try:
        domain = f"127.0.0.1:{web.server_port}"
        async with Producer(group="p", discovery_domain=domain, unit_name="u") as producer:
            await producer.send(Message(topic, b"x"))
    finally:
        web.shutdown()
        thread.join()
        web.server_close()
    assert paths == ["/rocketmq/nsaddr-u?nofix=1"]


@pytest.mark.scenario(9)
async def test_a_dead_name_server_is_passed_over_and_the_living_one_kept(
    cluster: Any, topic: str, quick: Timings
) -> None:
    async with cluster.running("b1"):
        name_servers = f"127.0.0.1:1;{cluster.name_server}"
        async with Producer(name_servers, group="p", timings=quick) as producer:
            for _ in range(3):
                await producer.instance.update_route(topic)
            remoting = producer.instance.remoting
            assert remoting._servers[remoting._server_index] == cluster.name_server
            await producer.send(Message(topic, b"x"))


# ---- requests the broker sends ------------------------------------------------------------------------


@pytest.mark.scenario(14)
@pytest.mark.parametrize("code", [39, 326, 9999], ids=["check transaction", "push reply", "unknown"])
async def test_a_request_the_client_does_not_know_is_answered_not_supported(
    cluster: Any, topic: str, quick: Timings, eventually: Any, code: int
) -> None:
    async with cluster.running("b1"), Producer(cluster.name_server, topics=[topic], timings=quick):
        broker = cluster.servers["b1"]
        broker.ask(code)
        await eventually(lambda: broker.responses)
        assert broker.responses[0].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.behaviour("REB-6")
async def test_a_notice_that_the_group_changed_wakes_the_rebalance(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    slow = Timings(rebalance_interval_ms=60_000, rebalance_min_interval_ms=10)
    async with cluster.running("b1"):
        consumer = PushConsumer(
            cluster.name_server, group="g", listener=success, subscribe={topic: "*"}, timings=slow
        )
        async with consumer:
            await eventually(lambda: cluster.sent(RequestCode.PULL_MESSAGE))
            await asyncio.sleep(0.1)
            before = len(cluster.sent(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
            cluster.servers["b1"].ask(40, {"consumerGroup": "g"}, oneway=True)
            await eventually(lambda: len(cluster.sent(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) > before, 1.0)


# ---- remoting -----------------------------------------------------------------------------------------


@pytest.mark.scenario(10)
@pytest.mark.behaviour("RPC-3", "RPC-4", "RPC-5")
async def test_a_call_without_an_answer_fails_once_with_a_time_out(cluster: Any, topic: str) -> None:
    async with cluster.running("b1"), Producer(cluster.name_server, topics=[topic]) as producer:
        cluster.on(RequestCode.GET_MAX_OFFSET, lambda request: None)
        remoting = producer.instance.remoting
        address = cluster.servers["b1"].address
        with pytest.raises(RequestTimeout) as caught:
            await remoting.request(address, RequestCode.GET_MAX_OFFSET, {"topic": topic}, timeout_ms=100)
        assert caught.value.outcome_unknown


@pytest.mark.scenario(11)
@pytest.mark.behaviour("RPC-2", "RPC-4")
async def test_calls_under_way_fail_at_once_when_the_connection_is_lost(
    cluster: Any, topic: str, eventually: Any
) -> None:
    async with cluster.running("b1"), Producer(cluster.name_server, topics=[topic]) as producer:
        cluster.on(RequestCode.GET_MAX_OFFSET, lambda request: None)
        remoting, broker = producer.instance.remoting, cluster.servers["b1"]
        calls = [
            asyncio.ensure_future(
                remoting.request(broker.address, RequestCode.GET_MAX_OFFSET, timeout_ms=60_000)
            )
            for _ in range(3)
        ]
        await eventually(lambda: len(cluster.sent(RequestCode.GET_MAX_OFFSET)) == 3)
        channel = remoting.ready(broker.address)
        assert channel is not None
        for peer in list(broker.peers):
            peer.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [SendFailed] * 3
        assert channel.in_flight == 0
        assert remoting.ready(broker.address) is None
        await producer.send(Message(topic, b"x"))  # connects again
        assert remoting.ready(broker.address) is not None


@pytest.mark.scenario(12)
async def test_a_broker_that_goes_away_is_asked_once_more_on_a_new_connection(
    cluster: Any, topic: str
) -> None:
    peers: list[Any] = []

    def send(request: Any) -> Any:
        peers.append(request.peer)
        return request.reply(ResponseCode.GO_AWAY) if len(peers) == 1 else cluster.stored(request)

    async with cluster.running("b1"), Producer(cluster.name_server, topics=[topic]) as producer:
        cluster.on(RequestCode.SEND_MESSAGE_V2, send)
        await producer.send(Message(topic, b"x"))
    assert len(peers) == 2
    assert peers[0] is not peers[1]


@pytest.mark.behaviour("RPC-3")
async def test_an_address_that_refuses_connections_is_not_tried_again_at_once(server: RunningBroker) -> None:
    async with Producer(server.name_server) as producer:
        remoting = producer.instance.remoting
        with pytest.raises(ConnectFailed) as first:
            await remoting.connection("127.0.0.1:1")
        assert "a moment ago" not in str(first.value)
        with pytest.raises(ConnectFailed, match="a moment ago"):
            await remoting.connection("127.0.0.1:1")
        await asyncio.sleep(0.06)
        with pytest.raises(ConnectFailed) as third:
            await remoting.connection("127.0.0.1:1")
        assert "a moment ago" not in str(third.value)


@pytest.mark.behaviour("RPC-1")
async def test_callers_share_a_connection_that_is_being_made(cluster: Any) -> None:
    async with cluster.running("b1"), Producer(cluster.name_server) as producer:
        address = cluster.servers["b1"].address
        channels = await asyncio.gather(*(producer.instance.remoting.connection(address) for _ in range(5)))
        assert len({id(channel) for channel in channels}) == 1


@pytest.mark.behaviour("RPC-6")
async def test_hooks_run_around_every_request_and_requests_are_signed_last(cluster: Any, topic: str) -> None:
    seen: list[tuple[str, int]] = []

    class Hook:
        def before_request(self, address: str, code: int, ext: dict[str, str], body: Any) -> None:
            seen.append(("before", code))
            ext["colour"] = "red"

        def after_response(self, address: str, code: int, ext: dict[str, str], response: Any) -> None:
            seen.append(("after", code))

    async with (
        cluster.running("b1"),
        Producer(
            cluster.name_server,
            access_key="ak",
            secret_key="sk",
            security_token="token",
            namespace="ns1",
            rpc_hooks=[Hook()],
        ) as producer,
    ):
        await producer.send(Message(topic, b"x"))
        request = cluster.sent(RequestCode.SEND_MESSAGE_V2)[0]
    ext = dict(request.ext)
    assert (ext["nsd"], ext["ns"], ext["colour"], ext["AccessKey"]) == ("true", "ns1", "red", "ak")
    assert ext["SecurityToken"] == "token"
    signature = ext.pop("Signature")
    sign(ext, request.command.body or b"", "ak", "sk", "token")
    assert ext["Signature"] == signature
    assert ("before", RequestCode.SEND_MESSAGE_V2) in seen
    assert ("after", RequestCode.SEND_MESSAGE_V2) in seen


@pytest.mark.behaviour("RPC-7")
async def test_a_oneway_request_awaits_nothing(cluster: Any, topic: str, eventually: Any) -> None:
    async with cluster.running("b1"), Producer(cluster.name_server, topics=[topic]) as producer:
        cluster.on(RequestCode.SEND_MESSAGE_V2, lambda request: None)
        await producer.send_oneway(Message(topic, b"x"))
        await eventually(lambda: cluster.sent(RequestCode.SEND_MESSAGE_V2))
        assert cluster.sent(RequestCode.SEND_MESSAGE_V2)[0].command.is_oneway
        channel = producer.instance.remoting.ready(cluster.servers["b1"].address)
        assert channel is not None
        assert channel.in_flight == 0


@pytest.mark.scenario(13)
async def test_the_vip_channel_takes_sends_and_questions_but_no_pulls(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"):
        port = cluster.servers["b1"].server.address[1]
        await cluster.listen("vip", port - 2)
        options: dict[str, Any] = {"vip_channel": True, "timings": quick}
        async with Producer(cluster.name_server, group="p", **options) as producer:
            await producer.send(Message(topic, b"x"))
        consumer = PushConsumer(
            cluster.name_server, group="g", listener=success, subscribe={topic: "*"}, **options
        )
        async with consumer:
            await eventually(lambda: cluster.sent(RequestCode.PULL_MESSAGE))

        def where(code: int) -> set[str]:
            return {request.broker for request in cluster.sent(code)}

        assert where(RequestCode.SEND_MESSAGE_V2) == {"vip"}
        assert where(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == {"vip"}
        assert where(RequestCode.PULL_MESSAGE) == {"b1"}
        assert where(HEARTBEAT) == {"b1"}


@pytest.fixture
def certificate(tmp_path: Path) -> TlsSettings:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 1 "
        "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return TlsSettings(str(certificate), str(key), mode="enforcing")


async def test_tls_protects_the_whole_conversation(topic: str, certificate: TlsSettings) -> None:
    async with broker(flush="async", tls=certificate) as running:
        context = client_context(authorities=certificate.certificate)
        async with Producer(running.name_server, tls=context) as producer:
            assert (await producer.send(Message(topic, b"secret"))).queue_offset == 0
        with pytest.raises(NoNameServer):
            await Producer(running.name_server, topics=[topic], api_timeout_ms=500).start()
