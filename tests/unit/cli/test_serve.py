"""`penstock serve`, `namesrv` and `broker` as processes: ready, serving, stopping, and refusing to start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from penstock.errors import SendFailed
from penstock.transport.client import Connection
from penstock.transport.tls import client_context
from penstock.wire.bodies import ClusterInfo, TopicRouteData


def ask(address, code, ext=None, body=b""):
    async def main():
        connection = await Connection.open(address)
        try:
            return await connection.request(code, ext, body, timeout_ms=10_000)
        finally:
            await connection.close()

    return asyncio.run(main())


def send(address, topic, body):
    letters = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return ask(address, 310, {**letters, "i": "", "j": "0", "k": "false", "m": "false"}, body)


def count(address, topic):
    return int(ask(address, 30, {"topic": topic, "queueId": "0"}).ext["offset"])


def brokers(name_server):
    return sorted(ClusterInfo.decode(ask(name_server, 106).body).broker_addr_table)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_is_ready_serves_and_stops_cleanly(start, tmp_path, number):
    serve = start("serve")
    assert serve.facts["brokers"] == [
        {"name": "penstock", "address": serve.addresses[0], "pid": serve.process.pid}
    ]
    assert send(serve.addresses[0], "orders", b"x").code == 0
    assert ask(serve.name_server, 105, {"topic": "orders"}).code == 0
    code, output, errors = serve.stop(number)
    assert (code, errors) == (0, "")
    assert not (tmp_path / "data" / "abort").exists()
    for fact in (serve.name_server, serve.addresses[0], str(tmp_path / "data"), "sync"):
        assert fact in output
    again = start("serve")
    assert count(again.addresses[0], "orders") == 1


def test_killed_and_started_again_nothing_acknowledged_is_lost(start):
    serve = start("serve")
    for n in range(20):
        assert send(serve.addresses[0], "orders", b"%d" % n).code == 0
    serve.stop(signal.SIGKILL)
    assert count(start("serve").addresses[0], "orders") == 20


def test_serve_is_ready_in_under_a_second(start, tmp_path):
    """Without the time in which it could have run but the machine did something else."""
    times = []
    for n in range(3):
        begin = time.time()
        serve = start("serve", "--data", str(tmp_path / str(n)))
        scheduled = Path(f"/proc/{serve.process.pid}/schedstat")
        kept_waiting = int(scheduled.read_text().split()[1]) / 1e9 if scheduled.exists() else 0
        times.append((tmp_path / f"ready-{n}").stat().st_mtime - begin - kept_waiting)
        serve.stop()
    assert min(times) < 1, times


def test_shards_are_brokers_of_their_own_under_one_name_server(start, tmp_path):
    serve = start("serve", "--shards", "2")
    assert [broker["name"] for broker in serve.facts["brokers"]] == ["broker-0", "broker-1"]
    assert len({broker["pid"] for broker in serve.facts["brokers"]} | {serve.process.pid}) == 3
    assert brokers(serve.name_server) == ["broker-0", "broker-1"]
    for address in serve.addresses:
        assert send(address, "orders", b"x").code == 0
    route = TopicRouteData.decode(ask(serve.name_server, 105, {"topic": "orders"}).body)
    assert [queues.broker_name for queues in route.queue_datas] == ["broker-0", "broker-1"]
    assert serve.stop()[0] == 0
    for n in (0, 1):
        assert (tmp_path / "data" / f"broker-{n}" / "commitlog").is_dir()
        assert not (tmp_path / "data" / f"broker-{n}" / "abort").exists()


def test_a_shard_that_dies_stops_all_with_an_error(start):
    serve = start("serve", "--shards", "2")
    os.kill(serve.facts["brokers"][0]["pid"], signal.SIGKILL)
    code, _, errors = serve.end()
    assert code == 1
    assert "broker-0" in errors
    assert "Traceback" not in errors


def test_shards_end_when_their_parent_is_killed(start):
    serve = start("serve", "--shards", "2")
    serve.stop(signal.SIGKILL)
    deadline = time.monotonic() + 30
    for broker in serve.facts["brokers"]:
        while Path(f"/proc/{broker['pid']}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_broker_registers_with_name_servers_elsewhere(start, tmp_path):
    first = start("namesrv", "--data", str(tmp_path / "n1"))
    second = start("namesrv", "--data", str(tmp_path / "n2"))
    servers = f"{first.name_server};{second.name_server}"
    broker = start(
        "broker", "--name-server", servers, "--set", "brokerName=b1", "--set", "brokerClusterName=X"
    )
    assert first.facts["brokers"] == []
    for namesrv in (first, second):
        assert brokers(namesrv.name_server) == ["b1"]
    assert send(broker.addresses[0], "orders", b"x").code == 0
    assert broker.stop()[0] == 0
    for namesrv in (first, second):
        assert brokers(namesrv.name_server) == []
        assert namesrv.stop()[0] == 0


@pytest.mark.parametrize("kind", ["toml", "conf"])
def test_settings_come_from_a_file_and_from_the_command_line(start, tmp_path, kind):
    config = tmp_path / f"broker.{kind}"
    quote = '"' if kind == "toml" else ""
    config.write_text(
        f"# settings\nbrokerName = {quote}from-file{quote}\ndefaultTopicQueueNums = 3\n"
        f"autoCreateTopicEnable=true\nflushDiskType = {quote}ASYNC_FLUSH{quote}\n"
    )
    serve = start("serve", "--config", str(config), "--set", "defaultTopicQueueNums=2")
    assert serve.facts["brokers"][0]["name"] == "from-file"
    assert send(serve.addresses[0], "orders", b"x").code == 0
    route = TopicRouteData.decode(ask(serve.name_server, 105, {"topic": "orders"}).body)
    assert route.queue_datas[0].write_queue_nums == 2
    _, output, _ = serve.stop()
    assert "async" in output


@pytest.mark.parametrize("shards", ["1", "2"])
def test_tls_is_set_by_the_keys_of_apache(start, shards):
    pem = Path(__file__).parents[1] / "transport" / "tls"
    keys = {"mode": "enforcing", "certPath": pem / "certificate.pem", "keyPath": pem / "key.pem"}
    settings = (text for key, value in keys.items() for text in ("--set", f"tls.server.{key}={value}"))
    serve = start("serve", "--shards", shards, *settings)

    async def main(tls, address, code):
        connection = await Connection.open(address, tls=tls)
        answer = await connection.request(code)
        await connection.close()
        return answer.body

    trusting = client_context(authorities=str(pem / "certificate.pem"))
    shown = asyncio.run(main(trusting, serve.addresses[0], 26))
    assert b"listenPort" in shown
    assert b"tls.server" not in shown
    known = ClusterInfo.decode(asyncio.run(main(trusting, serve.name_server, 106)))
    assert len(known.broker_addr_table) == int(shards)
    with pytest.raises(SendFailed):
        asyncio.run(main(None, serve.addresses[0], 26))


def fails(result, *texts):
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    for text in ("penstock: ", *texts):
        assert text in line


def test_a_locked_directory_is_a_one_line_error(start, penstock, tmp_path):
    start("serve")
    fails(
        penstock("serve", "--data", str(tmp_path / "data"), "--namesrv-port", "0", "--broker-port", "0"),
        "lock",
    )


@pytest.mark.parametrize("option", ["--namesrv-port", "--broker-port"])
def test_a_port_in_use_is_a_one_line_error(penstock, tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--namesrv-port": "0", "--broker-port": "0", option: port}
        arguments = [text for pair in ports.items() for text in pair]
        fails(penstock("serve", "--data", str(tmp_path / "data"), *arguments), port, "in use")


def test_a_directory_that_is_not_ours_is_refused_and_unchanged(penstock, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    result = penstock("serve", "--data", str(tmp_path), "--namesrv-port", "0", "--broker-port", "0")
    fails(result, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_damaged_file_is_named_and_unchanged(start, penstock, tmp_path):
    serve = start("serve")
    send(serve.addresses[0], "orders", b"x" * 1000)
    serve.stop()
    (log,) = (tmp_path / "data" / "commitlog").iterdir()
    os.truncate(log, 100)
    result = penstock("serve", "--data", str(tmp_path / "data"), "--namesrv-port", "0", "--broker-port", "0")
    fails(result, log.name)
    assert log.stat().st_size == 100


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "listenPort"], "KEY=VALUE"),
        (["--set", "defaultTopicQueueNums=many"], "defaultTopicQueueNums"),
        (["--config", "/nowhere/broker.conf"], "/nowhere/broker.conf"),
        (["--shards", "0"], "--shards"),
        (["--host", "not an address"], "not an address"),
        (["--set", "brokerName=my broker"], "brokerName=my broker: expected a name without blanks"),
        (["--set", "brokerClusterName="], "brokerClusterName=: expected a name"),
        (["--set", "tls.server.mode=perhaps"], "tls.server.mode"),
        (["--set", "tls.server.mode=enforcing"], "tls.server.certPath"),
    ],
)
def test_wrong_settings_are_one_line_errors(penstock, tmp_path, arguments, text):
    fails(penstock("serve", "--data", str(tmp_path / "data"), "--broker-port", "0", *arguments), text)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("nowhere", "'nowhere' is not an address; write host:port"),
        (" ; ", "--name-server: an address is needed"),
    ],
)
def test_a_broker_with_a_wrong_name_server_does_not_start(penstock, tmp_path, address, text):
    arguments = ["--data", str(tmp_path / "data"), "--broker-port", "0", "--name-server", address]
    fails(penstock("broker", *arguments), text)
    assert not (tmp_path / "data").exists()


def test_help_has_examples_and_the_version_is_shown(penstock):
    assert "penstock serve" in penstock("--help").stdout
    assert penstock("--version").stdout.startswith("penstock 0.")
    assert penstock().returncode == 2
