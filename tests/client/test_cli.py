"""`penstock send` and `penstock tail` against a real broker."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from penstock import sync
from penstock.admin import AdminClient
from penstock.cli import main
from penstock.testing import RunningBroker, broker


def test_a_message_sent_from_the_command_line_is_shown_by_tail(
    server: RunningBroker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name_server = ["-n", server.name_server]
    assert (
        main(["send", topic, '{"id": 17}', "--tag", "paid", "--key", "17", "-p", "colour=red", *name_server])
        == 0
    )
    message_id, queue, _, offset = capsys.readouterr().out.split()
    assert len(message_id) == 32
    assert queue.startswith(f"{server.broker_name}/")
    assert offset == "0"
    assert main(["tail", topic, "--from", "first", "-c", "1", *name_server]) == 0
    line = capsys.readouterr().out
    assert '[paid]  {"id": 17}' in line


def test_lines_of_the_input_become_messages(
    server: RunningBroker, topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n\nthree\n")))
    assert main(["send", topic, "--queue-key", "k", "-n", server.name_server]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["tail", topic, "--from", "first", "-c", "3", "--json", "-n", server.name_server]) == 0
    text = capsys.readouterr().out.replace("}\n{", "},{")
    shown = json.loads(f"[{text}]")
    assert [item["body"] for item in shown] == ["one", "two", "three"]
    assert [item["queueOffset"] for item in shown] == [0, 1, 2]


def test_tail_shows_what_comes_from_now_on(
    server: RunningBroker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name_server = ["-n", server.name_server]
    main(["send", topic, "old", *name_server])
    tail = threading.Thread(target=main, args=(["tail", topic, "-t", "a", "-c", "1", *name_server],))
    tail.start()
    for _ in range(100):
        main(["send", topic, "ignored", "--tag", "b", *name_server])
        main(["send", topic, "new", "--tag", "a", *name_server])
        time.sleep(0.05)
        if not tail.is_alive():
            break
    tail.join(5)
    assert not tail.is_alive()
    shown = [line for line in capsys.readouterr().out.splitlines() if "[a]" in line]
    assert len(shown) == 1
    assert shown[0].endswith("new")


def test_bytes_that_are_no_text_are_sent_as_they_are(
    server: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n")))
    assert main(["send", topic, "-n", server.name_server]) == 0
    assert main(["send", topic, os.fsdecode(b"\xfd"), "-n", server.name_server]) == 0
    bodies = set()
    with sync.SimpleConsumer(server.name_server, group="raw", subscribe={topic: "*"}) as consumer:
        while len(bodies) < 2:
            bodies |= {message.body for message in consumer.receive()}
    assert bodies == {b"\xff\xfe", b"\xfd"}


def test_tail_leaves_neither_a_group_nor_an_offset_behind(capsys: pytest.CaptureFixture[str]) -> None:
    async def groups() -> list[str]:
        async with AdminClient(running.name_server) as admin:
            return await admin.groups(running.address)

    with broker() as running:
        main(["send", "orders", "x", "-n", running.name_server])
        before = asyncio.run(groups())
        assert main(["tail", "orders", "--from", "first", "-c", "1", "-n", running.name_server]) == 0
        assert asyncio.run(groups()) == before
        capsys.readouterr()
        main(["topic", "show", "orders", "--json", "-n", running.name_server])
        assert json.loads(capsys.readouterr().out)["consumerGroups"] == []


def test_an_interrupt_while_a_command_loads_ends_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(command: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.parser", interrupted)
    assert main(["tail", "orders"]) == 130


def test_a_reader_that_has_enough_ends_tail_quietly(server: RunningBroker, topic: str) -> None:
    main(["send", topic, "one", "-n", server.name_server])
    command = [sys.executable, "-m", "penstock.cli", "tail", topic, "--from", "first"]
    with subprocess.Popen(
        [*command, "-n", server.name_server], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert b"one" in tail.stdout.readline()
        tail.stdout.close()
        main(["send", topic, "two", "-n", server.name_server])
        assert tail.wait(20) == 128 + 13
        assert tail.stderr.read() == b""


def test_mistakes_are_one_line_that_says_what_to_do(
    server: RunningBroker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tail", topic, "-n", server.name_server]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert main(["send", topic, "x", "-p", "nonsense", "-n", server.name_server]) == 1
    assert "NAME=VALUE" in capsys.readouterr().err
    assert main(["send", topic, "x", "-n", "127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "127.0.0.1:1: Connection refused; start one with `penstock serve`, or say where it is" in error
    main(["send", topic, "x", "-n", server.name_server])
    assert main(["tail", topic, "--sql", "price >", "-n", server.name_server]) == 1
    assert "code 23" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["tail", topic, "-c", "0", "-n", server.name_server])
    assert caught.value.code == 2
    assert "a whole number from 1 on is needed, not '0'" in capsys.readouterr().err
