"""Whatever a request says, the broker answers it once and survives."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.message.ids import pack_host
from penstock.store.disk import RealDisk
from penstock.store.store import Store
from penstock.wire.command import Command, decode_command, encode_command

WIRE = Path(__file__).parents[1] / "golden" / "wire"
START_MS = 1_794_797_297_000
DESTRUCTIVE = {25}
"""UPDATE_BROKER_CONFIG: it may rightly switch off what the others need."""


def recorded_requests() -> dict[int, list[Command]]:
    """By code, up to eight requests of the real client."""
    data = (WIRE / "pairs.bin").read_bytes()
    found: dict[int, list[Command]] = {}
    for pair in json.loads((WIRE / "pairs.json").read_text()):
        if pair["server"] == "broker" and pair["from"] == "client" and pair["code"] not in DESTRUCTIVE:
            start, size = pair["request"]["offset"], pair["request"]["size"]
            command = decode_command(data[start + 4 : start + size])
            known = found.setdefault(command.code, [])
            if len(known) < 8:
                known.append(command)
    return found


class Peer:
    remote = ("127.0.0.1", 40_000)
    remote_host = pack_host("127.0.0.1", 40_000)
    closed = False

    def __init__(self) -> None:
        self.answers = 0

    def send(self, *parts: bytes | memoryview) -> None:
        frame = b"".join(parts)
        if decode_command(frame[4:]).is_response:
            self.answers += 1

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    properties = {"mappedFileSizeCommitLog": str(1 << 23), "maxHashSlotNum": "100", "maxIndexNum": "200"}
    broker_settings = BrokerSettings.from_properties({**properties, "enablePropertyFilter": "true"})
    store = Store.open(
        RealDisk(tmp_path_factory.mktemp("store")),
        broker_settings.store_settings(),
        store_host=pack_host("127.0.0.1", 10911),
        delay_level_ms=lambda level: 1000,
        now_ms=START_MS,
    )
    yield Broker(broker_settings, store, now_ms=START_MS, random=random.Random(1))
    store.close(START_MS)


REQUESTS = recorded_requests()
STRANGE = st.one_of(
    st.sampled_from(
        ["", " ", "-1", "0", "1", "99999999999999999999", "-9223372036854775808", "true", "null"]
    ),
    st.sampled_from(["2147483647", "9223372036854775807", "%RETRY%g", "../x", "a/b", "TBW102", "||", "*"]),
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.text(max_size=20),
)


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_request_with_strange_fields_is_answered_once(
    broker: Broker, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    code = data.draw(st.sampled_from(sorted(REQUESTS)))
    original = data.draw(st.sampled_from(REQUESTS[code]))
    ext = dict(original.ext)
    for key in data.draw(st.lists(st.sampled_from(sorted(ext) or ["x"]), max_size=3)):
        if data.draw(st.booleans()):
            ext.pop(key, None)
        else:
            ext[key] = data.draw(STRANGE)
    body = original.body or b""
    if data.draw(st.integers(0, 3)) == 0:
        cut = data.draw(st.integers(0, len(body)))
        body = body[:cut] + data.draw(st.binary(max_size=8)) + body[cut + data.draw(st.integers(0, 8)) :]
    peer = Peer()
    caplog.clear()
    frame = encode_command(code, 5, flag=original.flag, ext=ext, body=body, version=original.version)
    broker.handle(peer, decode_command(frame[4:]), START_MS)
    flush = broker.store.take_flush()
    if flush is not None:
        flush.run()
        broker.durable(broker.store.flushed(flush), START_MS)
    broker.disconnected(peer, START_MS)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert peer.answers <= (0 if original.is_oneway else 1)


def test_after_all_that_the_broker_still_works(broker: Broker) -> None:
    (send, *_) = REQUESTS[310]
    peer = Peer()
    broker.handle(peer, send, START_MS)
    flush = broker.store.take_flush()
    assert flush is not None
    flush.run()
    broker.durable(broker.store.flushed(flush), START_MS)
    assert peer.answers == 1
