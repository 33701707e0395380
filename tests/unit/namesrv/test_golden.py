"""What Apache's name server answered in recorded sessions, ours answers, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.wire import dialect
from penstock.wire.bodies import TopicRouteData
from penstock.wire.command import decode_command

GOLDEN = Path(__file__).parents[2] / "golden" / "wire"
OURS = {318, 319}
"""Settings: names of files and thread pools differ."""
COUNTS = {205, 206, 224, 327}
"""Every topic counts here, and the recordings are samples: not all registrations are in them."""


def pairs(recording):
    data = (GOLDEN / "pairs.bin").read_bytes()
    rows = [
        row
        for row in json.loads((GOLDEN / "pairs.json").read_text())
        if row["recording"] == recording and row["server"] == "namesrv" and row["code"] not in OURS | COUNTS
    ]
    for row in sorted(rows, key=lambda row: row["request"]["time"]):
        cut = [
            data[part["offset"] : part["offset"] + part["size"]]
            for part in (row["request"], row.get("response"))
            if part
        ]
        yield row, cut[0], decode_command(cut[1][4:]) if len(cut) == 2 else None


def content(body):
    return _unordered(dialect.loads(body)) if body else None


def _unordered(value):
    """Arrays made from sets come in any order."""
    if isinstance(value, dict):
        return {key: _unordered(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((_unordered(item) for item in value), key=repr)
    return value


def know_topic(bench, request, expected):
    """Registers a topic whose registration was not sampled, as the recorded route shows it."""
    topic = request.ext["topic"]
    if expected.code == 0 and topic not in bench.server.routes.topics:
        bench.ask(217, {"topic": topic}, TopicRouteData.decode(expected.body).encode())


@pytest.mark.parametrize("recording", ["rocketmq-namesrv", "rocketmq", "options", "acl"])
def test_recorded_sessions_get_the_same_answers(bench, recording):
    compared = 0
    for row, request, expected in pairs(recording):
        if expected is None or (recording, row["label"]) == ("options", "shutdown"):  # a lost connection
            continue
        bench.now_ms = int(row["request"]["time"] * 1000)
        if row["code"] == 105:
            know_topic(bench, decode_command(request[4:]), expected)
        bench.tell(request)
        answer = bench.peer.received.pop()
        where = f"{row['label']} ({row['code']}, row {row['id']})"
        assert answer.code == expected.code, where
        assert answer.ext == expected.ext, where
        assert content(answer.body) == content(expected.body), where
        compared += 1
    assert compared > 5


def test_route_bodies_are_equal_to_the_byte(bench):
    compared = set()
    for row, request, expected in pairs("rocketmq-namesrv"):
        if row["code"] == 103:
            bench.tell(request)
        if row["code"] == 105 and expected.code == 0:
            know_topic(bench, decode_command(request[4:]), expected)
            bench.tell(request)
            assert bench.peer.received.pop().body == expected.body, row["label"]
            compared.add(row["label"])
    assert compared >= {"namesrv/route", "namesrv/route-old-client", "namesrv/route-standard-json"}
