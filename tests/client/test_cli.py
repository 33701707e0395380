"""`penstock send` and `penstock tail` against a real broker."""

from __future__ import annotations

import io
import json
import threading
import time

import pytest

from penstock.cli import main
from penstock.testing import RunningBroker


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
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n\nthree\n"))
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


def test_mistakes_are_one_line_that_says_what_to_do(
    server: RunningBroker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tail", topic, "-n", server.name_server]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert main(["send", topic, "x", "-p", "nonsense", "-n", server.name_server]) == 1
    assert "NAME=VALUE" in capsys.readouterr().err
    assert main(["send", topic, "x", "-n", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
