"""A broker core on a real store in a temporary directory, driven by hand: no sockets, threads or clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.message.ids import pack_host
from penstock.message.record import RecordView, split_records
from penstock.store.disk import RealDisk
from penstock.store.store import Store
from penstock.wire.command import ONEWAY_FLAG, Command, decode_command, encode_command
from penstock.wire.frame import FrameDecoder
from penstock.wire.headers.base import HeaderStruct

START_MS = 1_794_797_297_000
SMALL = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": str(50 * 20),
    "maxHashSlotNum": "100",
    "maxIndexNum": "200",
    "listenPort": "10911",
    "brokerName": "broker-a",
}


class RecordingPeer:
    """A connection that keeps what it is sent."""

    def __init__(self, port: int = 33154) -> None:
        self.remote = ("127.0.0.1", port)
        self.remote_host = pack_host(*self.remote)
        self.closed = False
        self.frames = FrameDecoder()
        self.received: list[Command] = []

    def send(self, *parts: bytes | memoryview) -> None:
        for part in parts:
            self.received += [decode_command(frame) for frame in self.frames.feed(bytes(part))]

    def close(self) -> None:
        self.closed = True


class Bench:
    """The broker with its clock and its flush thread, both turned by hand."""

    def __init__(self, directory: Path, properties: dict[str, str]) -> None:
        self.directory = directory
        self.now_ms = START_MS
        self.peer = RecordingPeer()
        self.properties = {**SMALL, **properties}
        self._opaque = 0
        self.open()

    def open(self) -> None:
        self.settings = BrokerSettings.from_properties(self.properties)
        delays_ms = self.settings.delay_levels_ms()
        self.store = Store.open(
            RealDisk(self.directory),
            self.settings.store_settings(),
            store_host=pack_host("127.0.0.1", 10911),
            delay_level_ms=lambda level: delays_ms[min(level, len(delays_ms)) - 1],
            now_ms=self.now_ms,
        )
        self.broker = Broker(self.settings, self.store, now_ms=self.now_ms, random=random.Random(7))

    def close(self) -> None:
        self.broker.close(self.now_ms)
        self.store.close(self.now_ms)

    def flush(self) -> None:
        """Everything appended or journaled so far becomes durable."""
        flush = self.store.take_flush()
        if flush is not None:
            flush.run()
            self.broker.durable(self.store.flushed(flush), self.now_ms)

    def wait(self, ms: int, *, step_ms: int = 50) -> None:
        """Time passes, and the disk keeps up."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + step_ms)
            self.broker.tick(self.now_ms)
            self.flush()

    def request(
        self,
        code: int,
        ext: dict[str, Any] | HeaderStruct | None = None,
        body: bytes = b"",
        *,
        peer: RecordingPeer | None = None,
        oneway: bool = False,
        version: int = 513,
    ) -> int:
        """Hands a request to the broker, through the wire format; tells its opaque number."""
        self._opaque += 1
        if isinstance(ext, dict):
            ext = {key: _text(value) for key, value in ext.items()}
        frame = encode_command(
            code, self._opaque, flag=ONEWAY_FLAG if oneway else 0, ext=ext, body=body, version=version
        )
        self.broker.handle(peer or self.peer, decode_command(frame[4:]), self.now_ms)
        return self._opaque

    def ask(self, code: int, ext: Any = None, body: bytes = b"", **options: Any) -> Command:
        """The answer to a request, once the disk has done its part."""
        peer = options.get("peer") or self.peer
        opaque = self.request(code, ext, body, **options)
        self.flush()
        (answer,) = [command for command in peer.received if command.opaque == opaque and command.is_response]
        return answer

    def answered(self, opaque: int, peer: RecordingPeer | None = None) -> Command | None:
        found = [c for c in (peer or self.peer).received if c.opaque == opaque and c.is_response]
        return found[0] if found else None

    def new_peer(self, port: int = 40_000) -> RecordingPeer:
        return RecordingPeer(port)

    # ---- the requests that most tests need ------------------------------------------------------

    @staticmethod
    def send_fields(
        topic: str,
        *,
        queue_id: int = 0,
        properties: str = "",
        sys_flag: int = 0,
        reconsume_times: int = 0,
        batch: bool = False,
        default_topic: str = "TBW102",
        queues: int = 4,
        flag: int = 0,
        born_ms: int = START_MS,
        **others: Any,
    ) -> dict[str, Any]:
        return {
            "a": "P",
            "b": topic,
            "c": default_topic,
            "d": queues,
            "e": queue_id,
            "f": sys_flag,
            "g": born_ms,
            "h": flag,
            "i": properties,
            "j": reconsume_times,
            "k": False,
            "m": batch,
            **others,
        }

    @staticmethod
    def pull_fields(
        topic: str,
        offset: int = 0,
        *,
        queue_id: int = 0,
        group: str = "PullG",
        sys_flag: int = 4,
        subscription: str | None = "*",
        commit: int = 0,
        most: int = 32,
        suspend_ms: int = 1000,
        expression_type: str = "TAG",
        version: int = 0,
        **others: Any,
    ) -> dict[str, Any]:
        fields = {
            **others,
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": most,
            "sysFlag": sys_flag,
            "commitOffset": commit,
            "suspendTimeoutMillis": suspend_ms,
            "subVersion": version,
            "expressionType": expression_type,
        }
        if subscription is not None:
            fields["subscription"] = subscription
        return fields

    def send(self, topic: str, body: bytes = b"x", **fields: Any) -> Command:
        return self.ask(310, self.send_fields(topic, **fields), body)

    def pull(self, topic: str, offset: int = 0, **fields: Any) -> Command:
        return self.ask(11, self.pull_fields(topic, offset, **fields))

    def stored(self, topic: str, queue_id: int = 0) -> list[RecordView]:
        """All records of a queue, as the store has them."""
        records: list[RecordView] = []
        while len(records) < self.store.max_offset(topic, queue_id):
            result = self.store.get(topic, queue_id, len(records), 32)
            assert result.count
            records += split_records(b"".join(result.parts))
        return records


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.fixture
def new_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes brokers on the same directory, one after the other."""
    open_ones: list[Bench] = []

    def make(**properties: str) -> Bench:
        bench = Bench(tmp_path / "store", properties)
        open_ones.append(bench)
        return bench

    yield make
    for bench in open_ones:
        bench.store.close(bench.now_ms)


@pytest.fixture
def bench(new_bench: Callable[..., Bench]) -> Bench:
    return new_bench()
