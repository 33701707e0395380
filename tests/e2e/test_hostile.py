"""A `penstock serve` of its own under lasting bad treatment: floods of damaged frames, and a disk that takes
no more. It goes on serving the others, its memory stays bounded, and nothing it confirmed is lost."""

from __future__ import annotations

import json
import random
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Message, sync
from penstock.wire.codes import ResponseCode
from penstock.wire.command import Command, decode_command, encode_command
from penstock.wire.frame import FrameDecoder

WIRE = Path(__file__).parents[1] / "golden" / "wire"
ROUND_FRAMES = 4_000
"""In a round of the flood."""
LEFT_BEHIND_BYTES = 8 << 20
"""After two rounds everything has its size; what further ones may add (measured: 1 MB a round)."""


class Wire:
    """One plain connection that does nothing wrong."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self._decoder = FrameDecoder()

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        self.socket.sendall(encode_command(code, 7, ext=ext, body=body))
        while True:
            data = self.socket.recv(1 << 16)
            assert data, "the connection was closed"
            for frame in self._decoder.feed(data):
                command = decode_command(frame)
                if command.is_response:
                    return command


@pytest.fixture
def connect() -> Iterator[Callable[[str], Wire]]:
    wires: list[Wire] = []

    def connect(address: str) -> Wire:
        wires.append(Wire(address))
        return wires[-1]

    yield connect
    for wire in wires:
        wire.socket.close()


def send_fields(topic: str) -> dict[str, str]:
    values = ("p", topic, "TBW102", "4", "0", "0", "1", "0", "", "0", "false")
    return {**dict(zip("abcdefghijk", values, strict=True)), "m": "false"}


def pull_fields(topic: str, offset: int) -> dict[str, str]:
    fields = {"consumerGroup": "g", "topic": topic, "queueId": "0", "queueOffset": str(offset)}
    fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    return {**fields, "subscription": "*", "subVersion": "0", "expressionType": "TAG"}


def serves(wire: Wire, topic: str = "good") -> None:
    sent = wire.ask(310, send_fields(topic), b"x")
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    pulled = wire.ask(11, pull_fields(topic, int(sent.ext["queueOffset"])))
    assert pulled.code == ResponseCode.SUCCESS, pulled.remark


# ---- a flood of damaged frames ----------------------------------------------------------------------


def recorded_frames() -> list[bytes]:
    """Requests as real clients sent them, whole frames."""
    data = (WIRE / "pairs.bin").read_bytes()
    pairs = json.loads((WIRE / "pairs.json").read_text())
    requests = [pair["request"] for pair in pairs if pair["from"] == "client"]
    return [data[item["offset"] : item["offset"] + item["size"]] for item in requests]


def damaged(frame: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut out, put in or doubled; sometimes with the lengths made to fit again."""
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2 and len(data) > 16:
            del data[at : at + rng.randint(1, 8)]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            data[at:at] = data[at : at + rng.randint(1, 64)]
    if rng.random() < 0.6:
        data[:4] = struct.pack(">i", len(data) - 4)
    if rng.random() < 0.3:
        data[4:8] = frame[4:8]
    return bytes(data)


def flood(address: str, frames: list[bytes], rng: random.Random) -> None:
    """One frame after the other on connections that are replaced when the other side hangs up."""
    host, port = address.split(":")
    at = 0
    while at < len(frames):
        with socket.create_connection((host, int(port)), timeout=20) as wire:
            wire.settimeout(0.02)
            try:
                for _ in range(rng.randint(1, 40)):
                    if at == len(frames):
                        break
                    wire.sendall(frames[at])
                    at += 1
                    if rng.random() < 0.5 and not wire.recv(1 << 16):
                        break
            except OSError:
                pass  # it closes, or waits for the rest of a frame: as it should


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_a_flood_of_damaged_frames_harms_nobody_and_leaves_no_memory_behind(
    start: Callable[..., Any], connect: Callable[[str], Wire]
) -> None:
    serve = start("serve", "--flush", "async")
    address, rng, originals = serve.addresses[0], random.Random(5), recorded_frames()
    good = connect(address)
    serves(good)
    sizes = []
    for _ in range(4):
        threads = []
        for target in (address, address, serve.name_server):
            frames = [damaged(rng.choice(originals), rng) for _ in range(ROUND_FRAMES // 3)]
            threads.append(threading.Thread(target=flood, args=(target, frames, random.Random(rng.random()))))
            threads[-1].start()
        while any(thread.is_alive() for thread in threads):
            serves(good)
            time.sleep(0.02)
        sizes.append(resident_bytes(serve.process.pid))
    serves(good)
    assert sizes[-1] - sizes[1] < LEFT_BEHIND_BYTES, [size >> 20 for size in sizes]
    with sync.Producer(serve.name_server) as producer:
        assert producer.send(Message("good", b"through the client")).queue_offset >= 0
    code, _, errors = serve.stop()
    assert code == 0
    assert "Traceback" not in errors


# ---- many who do nothing ----------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_ten_thousand_idle_connections_are_held_and_others_are_served(
    start: Callable[..., Any], connect: Callable[[str], Wire]
) -> None:
    serve = start("serve", "--flush", "async")
    good = connect(serve.addresses[0])
    serves(good)
    before = resident_bytes(serve.process.pid)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    host, port = serve.addresses[0].split(":")
    idle: list[socket.socket] = []
    try:
        for number in range(10_000):
            idle.append(socket.create_connection((host, int(port)), timeout=20))
            if number % 1_000 == 0:
                serves(good)
        for wire in idle[::500]:  # the last byte proves that the connection is known, not just in the backlog
            frame = encode_command(28, 3)
            wire.sendall(frame)
            assert len(wire.recv(1 << 16)) > 4
        serves(good)
        per_connection = (resident_bytes(serve.process.pid) - before) / len(idle)
    finally:
        for wire in idle:
            wire.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert per_connection < 8_192
    serves(good)
    descriptors = Path(f"/proc/{serve.process.pid}/fd")
    deadline = time.monotonic() + 20
    while len(list(descriptors.iterdir())) > 100:
        assert time.monotonic() < deadline, "connections that were closed are still held"
        time.sleep(0.1)
    assert serve.stop()[::2] == (0, "")


# ---- a disk that takes no more ----------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs limits of another process")
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_when_the_disk_takes_no_more_sends_are_refused_reads_go_on_and_it_recovers(
    start: Callable[..., Any], connect: Callable[[str], Wire], flush: str
) -> None:
    """No byte of a file may lie behind the limit: to the broker that is a disk that refuses writes."""
    sizes = ("--set", f"mappedFileSizeCommitLog={1 << 22}", "--set", "mappedFileSizeConsumeQueue=20000")
    serve = start("serve", "--flush", flush, *sizes)
    wire = connect(serve.addresses[0])
    body = b"m" * 10_000
    assert wire.ask(310, send_fields("full"), body).code == ResponseCode.SUCCESS  # makes the log's first file
    confirmed = [0]
    unlimited = resource.prlimit(serve.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(serve.process.pid, resource.RLIMIT_FSIZE, (1 << 20, unlimited[1]))
    for _ in range(300):
        answer = wire.ask(310, send_fields("full"), body)
        if answer.code != ResponseCode.SUCCESS:
            break
        confirmed.append(int(answer.ext["queueOffset"]))
    assert confirmed == list(range(len(confirmed)))
    assert 50 < len(confirmed) < 110
    for _ in range(3):
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "File too large" in (answer.remark or ""), "it says what the disk said"
        assert wire.ask(11, pull_fields("full", 0)).code == ResponseCode.SUCCESS
        assert wire.ask(30, {"topic": "full", "queueId": "0"}).ext["offset"] == str(len(confirmed))
        answer = wire.ask(310, send_fields("full"), body)

    resource.prlimit(serve.process.pid, resource.RLIMIT_FSIZE, unlimited)
    deadline = time.monotonic() + 30
    while (answer := wire.ask(310, send_fields("full"), body)).code != ResponseCode.SUCCESS:
        assert time.monotonic() < deadline, answer.remark
        time.sleep(0.05)
    assert int(answer.ext["queueOffset"]) == len(confirmed)
    assert serve.stop()[0] == 0
    again = connect(start("serve", *sizes).addresses[0])
    assert again.ask(30, {"topic": "full", "queueId": "0"}).ext["offset"] == str(len(confirmed) + 1)
    for offset in range(0, len(confirmed) + 1, 16):
        pulled = again.ask(11, pull_fields("full", offset))
        assert pulled.code == ResponseCode.SUCCESS
        assert body in (pulled.body or b"")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs limits of another process")
def test_a_disk_that_takes_nothing_is_logged_once_and_not_at_every_try(
    start: Callable[..., Any], connect: Callable[[str], Wire]
) -> None:
    serve = start("serve")
    wire = connect(serve.addresses[0])
    serves(wire)
    unlimited = resource.prlimit(serve.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(serve.process.pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
    end = time.monotonic() + 2
    while time.monotonic() < end:
        assert wire.ask(310, send_fields("new"), b"x").code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert wire.ask(11, pull_fields("good", 0)).code == ResponseCode.SUCCESS
        time.sleep(0.02)
    resource.prlimit(serve.process.pid, resource.RLIMIT_FSIZE, unlimited)
    deadline = time.monotonic() + 30
    while (answer := wire.ask(310, send_fields("new"), b"x")).code != ResponseCode.SUCCESS:
        assert time.monotonic() < deadline, answer.remark
        time.sleep(0.05)
    assert answer.ext["queueOffset"] == "0"
    code, _, errors = serve.stop()
    assert code == 0
    lines = errors.splitlines()
    assert sum("the disk refused a write" in line for line in lines) == 1, errors
    assert sum("takes writes again" in line for line in lines) == 1, errors
    assert len(lines) < 10, errors
