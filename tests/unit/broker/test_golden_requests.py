"""Requests that the real client and tools sent to a real broker: ours understands each of them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from penstock.wire.command import decode_command

WIRE = Path(__file__).parents[2] / "golden" / "wire"


def test_no_recorded_request_surprises_the_broker(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = (WIRE / "pairs.bin").read_bytes()
    served = 0
    for pair in json.loads((WIRE / "pairs.json").read_text()):
        if pair["server"] != "broker" or pair["from"] != "client":
            continue
        start, size = pair["request"]["offset"], pair["request"]["size"]
        command = decode_command(data[start + 4 : start + size])
        caplog.clear()
        bench.broker.handle(bench.peer, command, bench.now_ms)
        bench.wait(20)
        problems = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert problems == [], f"{pair['name']} ({pair['label']}): {caplog.text}"
        served += 1
    assert served > 500
    oneway_or_held = served - len([c for c in bench.peer.received if c.is_response])
    bench.wait(40_000, step_ms=1_000)
    assert oneway_or_held < served / 2
