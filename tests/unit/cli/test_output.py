from __future__ import annotations

import argparse
import json

import pytest

from penstock.cli.output import add_name_server, print_json, print_table
from penstock.wire.bodies import TopicConfig


def test_columns_are_as_wide_as_their_content_and_numbers_go_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("NAME", "COUNT", "RATE"), [("orders", 5, 1.0), ("a", 1200, 0.256)])
    assert capsys.readouterr().out == ("NAME    COUNT  RATE\norders      5  1.00\na        1200  0.26\n")


def test_wide_characters_count_twice_and_control_characters_are_not_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("NAME", "X"), [("中文", "a"), ("\x1b[2J", None)])
    assert capsys.readouterr().out == "NAME  X\n中文  a\n?[2J\n"


def test_a_table_without_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "X"), [])
    assert capsys.readouterr().out == "NAME  X\n"


def test_json_has_the_protocols_member_names(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": TopicConfig("orders"), "a": [1]})
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == ["a", "b"]
    assert shown["b"]["topicName"] == "orders"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [(None, "127.0.0.1:9876"), ("", "127.0.0.1:9876"), ("ns:1;ns:2", "ns:1;ns:2")],
)
def test_the_name_server_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: str | None, expected: str
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    if environment is not None:
        monkeypatch.setenv("NAMESRV_ADDR", environment)
    parser = argparse.ArgumentParser()
    add_name_server(parser)
    assert parser.parse_args([]).name_server == expected
    assert parser.parse_args(["-n", "here:1"]).name_server == "here:1"
