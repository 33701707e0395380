"""A name server and a broker, running: what goes in comes out, also after a stop or a kill."""

from __future__ import annotations

import time

import pytest

from penstock.errors import StoreLocked
from penstock.message.record import split_records
from penstock.testing import broker
from penstock.wire.bodies import ClusterInfo, TopicRouteData


def bodies(answer):
    return [bytes(record.body) for record in split_records(answer.body or b"")]


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_message_goes_in_and_comes_out(connect, flush):
    with broker(flush=flush) as b:
        client = connect(b.address)
        sent = client.send("orders", b"hello")
        assert (sent.code, sent.ext["queueOffset"]) == (0, "0")
        pulled = client.pull("orders", 0)
        assert pulled.code == 0
        assert bodies(pulled) == [b"hello"]


def test_a_topic_is_in_the_route_once_the_send_that_created_it_is_answered(connect):
    with broker() as b:
        client, names = connect(b.address), connect(b.name_server)
        assert names.ask(105, {"topic": "orders"}).code == 17
        assert client.send("orders", b"x").code == 0
        route = TopicRouteData.decode(names.ask(105, {"topic": "orders"}).body)
        assert [data.broker_addrs for data in route.broker_datas] == [{0: b.address}]
        assert [queues.write_queue_nums for queues in route.queue_datas] == [4]


def test_a_held_pull_is_answered_when_a_message_arrives(connect):
    with broker() as b:
        producer, consumer = connect(b.address), connect(b.address)
        producer.send("orders", b"first")
        consumer.tell(
            11,
            {
                "consumerGroup": "g",
                "topic": "orders",
                "queueId": "0",
                "queueOffset": "1",
                "maxMsgNums": "32",
                "sysFlag": "6",
                "commitOffset": "0",
                "suspendTimeoutMillis": "8000",
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
            },
        )
        with pytest.raises(TimeoutError):
            consumer.hear(0.2)
        begin = time.monotonic()
        producer.send("orders", b"second")
        assert bodies(consumer.hear()) == [b"second"]
        assert time.monotonic() - begin < 2


def test_a_held_pull_is_answered_when_its_time_is_over(connect):
    with broker() as b:
        client = connect(b.address)
        client.send("orders", b"first")
        begin = time.monotonic()
        assert client.pull("orders", 1, hold_ms=300).code == 19
        assert 0.2 < time.monotonic() - begin < 3


def test_messages_survive_a_clean_stop_and_a_kill(connect):
    with broker() as b:
        client = connect(b.address)
        address, name_server = b.address, b.name_server
        for n in range(100):
            assert client.send("orders", b"%d" % n).code == 0
        b.restart()
        assert (b.address, b.name_server) == (address, name_server)
        client = connect(b.address)
        assert client.send("orders", b"100").ext["queueOffset"] == "100"
        b.kill()
        b.start()
        client = connect(b.address)
        seen = []
        while len(seen) < 101:
            answer = client.pull("orders", len(seen))
            assert answer.code == 0
            seen += bodies(answer)
        assert seen == [b"%d" % n for n in range(101)]


def test_a_clean_stop_leaves_no_mark_and_a_kill_does(connect):
    with broker() as b:
        connect(b.address).send("orders", b"x")
        b.kill()
        assert (b.data_dir / "abort").exists()
        b.start()
        b.stop()
        assert not (b.data_dir / "abort").exists()


def test_sends_that_are_on_their_way_at_a_stop_are_stored_if_answered(connect):
    with broker() as b:
        client = connect(b.address)
        for _ in range(200):
            client.tell(310, _send_ext(), b"x" * 1000)
        b.stop()
        answered = 0
        try:
            while client.hear(1).code == 0:
                answered += 1
        except (ConnectionError, TimeoutError):
            pass
        b.start()
        answer = connect(b.address).ask(30, {"topic": "orders", "queueId": "0"})
        assert int(answer.ext["offset"]) >= answered


def _send_ext():
    letters = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return {**letters, "i": "", "j": "0", "k": "false", "m": "false"}


def test_stopping_takes_the_broker_out_of_the_name_server_and_gives_back_directory_and_ports(
    connect, tmp_path
):
    with broker(tmp_path / "data") as first, pytest.raises(StoreLocked, match="lock"):
        broker(tmp_path / "data").start()
    with broker(tmp_path / "data") as again:
        info = ClusterInfo.decode(connect(again.name_server).ask(106).body)
        assert list(info.broker_addr_table) == [again.broker_name]
    assert first.data_dir == again.data_dir


def test_a_broker_in_a_test_starts_quickly():
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        with broker():
            times.append(time.perf_counter() - begin)
    assert min(times) < 0.1


def test_a_port_in_use_is_an_error_and_leaves_nothing_behind(port_in_use, tmp_path):
    with pytest.raises(OSError, match=str(port_in_use)):
        broker(tmp_path, settings={"listenPort": str(port_in_use)}).start()
    with broker(tmp_path):
        pass


def test_bad_frames_close_their_connection_and_the_broker_goes_on(connect):
    with broker() as b:
        bad, good = connect(b.address), connect(b.address)
        bad._socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert bad.closed_by_server()
        assert good.send("orders", b"x").code == 0


def test_idle_costs_almost_no_cpu():
    with broker():
        time.sleep(0.2)
        begin = time.process_time()
        time.sleep(1)
        assert time.process_time() - begin < 0.05


def test_the_fixture_gives_a_running_broker(penstock_broker, connect):
    assert connect(penstock_broker.address).send("orders", b"x").code == 0


def test_the_broker_is_an_async_context_manager_too(connect):
    import asyncio

    async def main():
        async with broker() as b:
            return await asyncio.to_thread(lambda: connect(b.address).send("orders", b"x").code)

    assert asyncio.run(main()) == 0
