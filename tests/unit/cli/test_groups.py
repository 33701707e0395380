"""`penstock group ...` and `penstock mqadmin ...` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from penstock import ConsumeFrom, Message, sync
from penstock.cli import main
from penstock.cli.groups import offsets_text
from penstock.testing import RunningBroker, broker

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningBroker]:
    with broker(flush="async") as running:
        yield running


@pytest.fixture
def command(server: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command; gives its exit code and what it printed."""

    def run(*args: str) -> tuple[int, str, str]:
        try:
            code = main([*args, "-n", server.name_server])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def put(server: RunningBroker, topic: str, count: int) -> None:
    with sync.Producer(server.name_server) as producer:
        producer.send_many([Message(topic, b"%d" % number) for number in range(count)])


@pytest.mark.behaviour("POP-1")
def test_a_mode_is_set_and_shown(server: RunningBroker, command: Command) -> None:
    command("topic", "create", "modes", "--queues", "2")
    code, out, _ = command("group", "mode", "get", "moody")
    assert code == 0
    assert out == "no mode is set for group moody on any topic: it takes the brokers' default, PULL\n"
    code, out, _ = command("group", "mode", "set", "moody", "modes", "pop", "--share", "3")
    assert (code, out) == (0, f"group moody pops topic modes on {server.broker_name}\n")
    code, out, _ = command("group", "mode", "get", "moody")
    assert rows(out) == [
        ["TOPIC", "BROKER", "MODE", "SHARED", "QUEUES"],
        ["modes", server.broker_name, "POP", "3"],
    ]
    command("group", "mode", "set", "moody", "modes", "PULL")
    code, out, _ = command("group", "mode", "get", "moody", "modes", "--json")
    assert json.loads(out) == [
        {
            "brokerName": server.broker_name,
            "consumerGroup": "moody",
            "mode": "PULL",
            "popShareQueueNum": 0,
            "topic": "modes",
        }
    ]


@pytest.mark.behaviour("POP-1")
def test_apaches_command_sets_the_mode_on_a_cluster_or_a_broker(
    server: RunningBroker, command: Command
) -> None:
    command("topic", "create", "named", "--queues", "2")
    options = ["-t", "named", "-g", "apaches", "-m", "POP", "-q", "8"]
    code, out, _ = command("mqadmin", "setConsumeMode", "-c", "DefaultCluster", *options)
    assert code == 0
    assert out.splitlines() == [
        f"set consume mode to {server.address} success.",
        "topic[named] group[apaches] consume mode[POP] popShareQueueNum[8]",
    ]
    _, out, _ = command("group", "mode", "get", "apaches", "--json")
    assert [(mode["mode"], mode["popShareQueueNum"]) for mode in json.loads(out)] == [("POP", 8)]
    long = ["--topicName", "named", "--groupName", "apaches", "--mode", "PULL"]
    code, _, _ = command("mqadmin", "setConsumeMode", "--brokerAddr", server.address, *long)
    assert code == 0
    _, out, _ = command("group", "mode", "get", "apaches", "--json")
    assert [(mode["mode"], mode["popShareQueueNum"]) for mode in json.loads(out)] == [("PULL", 0)]


def test_what_cannot_be_set_is_refused_with_a_reason(command: Command) -> None:
    command("topic", "create", "refused", "--queues", "1")
    assert command("group", "mode", "set", "g", "nowhere", "POP")[::2] == (
        1,
        "penstock: there is no topic nowhere, or no broker that serves it is alive\n",
    )
    code, _, error = command("group", "mode", "set", "bad group", "refused", "POP")
    assert code == 1
    assert "bad group" in error
    code, _, error = command("group", "mode", "set", "g", "refused", "PUSH")
    assert code == 2
    assert "invalid choice: 'PUSH'" in error
    code, _, error = command("mqadmin", "setConsumeMode", "-t", "refused", "-g", "g", "-m", "POP")
    assert code == 2
    assert "one of the arguments -b/--brokerAddr -c/--clusterName is required" in error
    code, _, error = command(
        "mqadmin", "setConsumeMode", "-c", "Elsewhere", "-t", "refused", "-g", "g", "-m", "POP"
    )
    assert (code, error) == (1, "penstock: there is no cluster Elsewhere; known: DefaultCluster\n")
    code, _, error = command(
        "mqadmin", "setConsumeMode", "-c", "DefaultCluster", "-t", "nowhere", "-g", "g", "-m", "POP"
    )
    assert code == 1
    assert "code 17" in error


def test_leases_show_what_is_in_flight_by_whom_and_until_when(
    server: RunningBroker, command: Command
) -> None:
    command("topic", "create", "leased", "--queues", "1")
    command("group", "mode", "set", "lessees", "leased", "POP")
    put(server, "leased", 10)
    consumer = sync.SimpleConsumer(
        server.name_server,
        group="lessees",
        subscribe={"leased": "*"},
        consume_from=ConsumeFrom.FIRST_OFFSET,
        instance_name="tenant",
    )
    with consumer:
        held = consumer.receive(max_messages=6, invisible_ms=60_000)
        consumer.ack(held[2])
        consumer.extend(held[5], 90_000)
        code, out, _ = command("group", "leases", "lessees")
        assert code == 0
        table = rows(out)
        assert table[0][:5] == ["TOPIC", "BROKER", "QUEUE", "OFFSETS", "STATE"]
        assert table[1][:6] == ["leased", server.broker_name, "0", "0-1,3-4", "in", "flight"]
        assert table[2][:6] == ["leased", server.broker_name, "0", "5", "put", "off"]
        assert "@tenant" in table[1][6]
        assert out.endswith("\n5 message(s) in flight\n")
        _, out, _ = command("group", "leases", "lessees", "--topic", "leased", "--limit", "1")
        assert out.endswith("\n5 message(s) in flight, 4 of them shown\n")
        _, out, _ = command("group", "leases", "lessees", "--json")
        body = json.loads(out)
        assert body["total"] == 5
        assert [lease["offsets"] for lease in body["leases"]] == [[0, 1, 3, 4], [5]]

        _, out, _ = command("group", "show", "lessees", "--json")
        shown = json.loads(out)
        (lag,) = [lag for lag in shown["lags"] if lag["topic"] == "leased"]
        assert (lag["mode"], lag["ready"], lag["inFlight"], lag["delayed"]) == ("POP", 4, 4, 1)
        assert 0 <= lag["oldestAgeMs"] < 60_000
        assert [client["clientId"].endswith("@tenant") for client in shown["clients"]] == [True]
        code, out, _ = command("group", "show", "lessees")
        assert rows(out)[1][:6] == ["lessees", "leased", "POP", "4", "4", "1"]
        assert "@tenant" in out
    code, out, _ = command("group", "leases", "nobody")
    assert code == 1


def test_pull_groups_are_listed_beside_pop_groups(server: RunningBroker, command: Command) -> None:
    command("topic", "create", "shared", "--queues", "1")
    put(server, "shared", 7)
    consumer = sync.PullConsumer(
        server.name_server,
        group="pullers",
        subscribe={"shared": "*"},
        consume_from=ConsumeFrom.FIRST_OFFSET,
        pull_batch=3,
    )
    with consumer:
        while not (polled := consumer.poll(1_000)):
            pass
        consumer.commit(persist=True)
    code, out, _ = command("group", "list", "--topic", "shared")
    assert code == 0
    assert ["pullers", "shared", "PULL", str(7 - len(polled)), "0", "0"] in [row[:6] for row in rows(out)]
    _, out, _ = command("group", "list", "--json")
    (lag,) = [lag for lag in json.loads(out) if lag["topic"] == "shared"]
    assert (lag["group"], lag["ready"]) == ("pullers", 7 - len(polled))
    code, _, error = command("group", "show", "nobody")
    assert (code, error) == (1, "penstock: there is no group nobody\n")
    _, out, _ = command("group", "show", "pullers")
    assert "no consumer is online" in out


def test_offsets_are_written_as_ranges() -> None:
    assert offsets_text([7]) == "7"
    assert offsets_text([3, 4, 5, 8, 10, 11, 12]) == "3-5,8,10-12"
    assert offsets_text([]) == ""
