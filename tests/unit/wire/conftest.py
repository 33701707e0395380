"""Frames recorded between real servers and clients (tests/golden/wire)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.wire.command import Command, decode_command

FOLDER = Path(__file__).parents[2] / "golden" / "wire"


@dataclass(frozen=True)
class Recorded:
    """One frame; `request_code` also says what a response answers."""

    request_code: int
    name: str
    kind: str
    frame: bytes

    @property
    def command(self) -> Command:
        return decode_command(self.frame[4:])


@pytest.fixture(scope="session")
def recorded() -> list[Recorded]:
    data = (FOLDER / "pairs.bin").read_bytes()
    frames = []
    for pair in json.loads((FOLDER / "pairs.json").read_text()):
        for kind in ("request", "response"):
            if kind in pair:
                offset, size = pair[kind]["offset"], pair[kind]["size"]
                frames.append(Recorded(pair["code"], pair["name"], kind, data[offset : offset + size]))
    return frames
