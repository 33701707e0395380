"""`penstock topic ...` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.cli import main
from penstock.testing import RunningBroker, broker

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningBroker]:
    with broker() as running:
        yield running


@pytest.fixture
def topic(server: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command; gives its exit code and what it printed."""

    def run(verb: str, *args: str) -> tuple[int, str, str]:
        code = main(["topic", verb, "-n", server.name_server, *args])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def shown(topic: Command, name: str) -> dict[str, Any]:
    code, out, _ = topic("show", name, "--json")
    assert code == 0
    return dict(json.loads(out))


def test_a_topic_is_created_listed_shown_and_deleted(topic: Command, server: RunningBroker) -> None:
    code, out, _ = topic("create", "orders", "--queues", "3", "--perm", "R")
    assert code == 0
    assert out.splitlines()[1].split() == [server.broker_name, "3", "3", "R--", "no"]
    code, out, _ = topic("list")
    assert ["orders", server.broker_name, "3", "3", "R--"] in [line.split() for line in out.splitlines()]
    code, out, _ = topic("show", "orders")
    assert out.count(server.broker_name) == 4
    assert "consumer groups: none" in out
    code, out, _ = topic("delete", "orders")
    assert (code, out) == (0, f"deleted orders from {server.broker_name}\n")
    code, _, error = topic("show", "orders")
    assert code == 1
    assert error == "penstock: there is no topic orders, or no broker that serves it is alive\n"


def test_creating_again_changes_only_what_is_said(topic: Command) -> None:
    topic("create", "again", "--queues", "2", "--order", "-a", "message.type=FIFO")
    code, out, _ = topic("create", "again", "--write-queues", "5", "--json")
    assert code == 0
    (config,) = json.loads(out)["brokers"].values()
    assert (config["readQueueNums"], config["writeQueueNums"], config["order"]) == (2, 5, True)
    assert config["attributes"] == {"message.type": "FIFO"}
    topic("create", "again", "--no-order", "-a", "message.type=")
    (config,) = shown(topic, "again")["brokers"].values()
    assert (config["order"], config["attributes"]) == (False, {})


def test_system_topics_are_listed_only_when_asked(topic: Command, server: RunningBroker) -> None:
    topic("create", "mine")
    _, out, _ = topic("list", "--json")
    names = {entry["topic"] for entry in json.loads(out)}
    assert "mine" in names
    assert not names & {"TBW102", "DefaultCluster", server.broker_name, "DefaultCluster_REPLY_TOPIC"}
    _, out, _ = topic("list", "--all", "--json")
    assert {"TBW102", "mine", server.broker_name} <= {entry["topic"] for entry in json.loads(out)}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("create", "bad name"), "contains illegal characters"),
        (("create", "SCHEDULE_TOPIC_XXXX"), "conflict with system topic"),
        (("create", "t", "-a", "odd=1"), "unsupported key: odd"),
        (("create", "t", "-a", "odd"), "not of the form KEY=VALUE"),
        (("create", "t", "-c", "elsewhere"), "there is no cluster elsewhere; known: DefaultCluster"),
        (("create", "t", "--queues", "100000"), "queue count 100000"),
        (("delete", "nope"), "there is no topic nope"),
        (("delete", "TBW102"), "conflict with system topic"),
    ],
)
def test_an_error_is_one_line_and_exit_code_one(topic: Command, args: tuple[str, ...], text: str) -> None:
    code, out, error = topic(*args)
    assert (code, out) == (1, "")
    assert error.count("\n") == 1
    assert text in error


@pytest.mark.parametrize(
    "args", [("create", "t", "--queues", "0"), ("create", "t", "--perm", "Q"), ("show",)]
)
def test_wrong_usage_ends_with_exit_code_two(topic: Command, args: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        topic(*args)
    assert caught.value.code == 2


def test_a_name_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "-n", "127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("penstock: no name server can be reached: 127.0.0.1:1")
    assert error.count("\n") == 1
