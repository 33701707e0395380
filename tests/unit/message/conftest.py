"""Golden data: what Apache RocketMQ computes and sends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="session")
def table() -> Callable[[str], dict[str, Any]]:
    def load(name: str) -> dict[str, Any]:
        return json.loads((GOLDEN / "tables" / f"{name}.json").read_text("utf-8"))

    return load


@pytest.fixture(scope="session")
def wire_bodies() -> list[tuple[str, bytes]]:
    """(direction and request name, body) of every recorded frame that has a body."""
    data = (GOLDEN / "wire" / "pairs.bin").read_bytes()

    def bodies() -> Iterator[tuple[str, bytes]]:
        for pair in json.loads((GOLDEN / "wire" / "pairs.json").read_text("utf-8")):
            for direction in ("request", "response"):
                if direction in pair:
                    place = pair[direction]
                    frame = data[place["offset"] : place["offset"] + place["size"]]
                    body = frame[8 + int.from_bytes(frame[5:8]) :]
                    if body:
                        yield f"{direction} {pair['name']}", body

    return list(bodies())
