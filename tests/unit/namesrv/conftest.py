"""A name server core with its files in memory, its peers recorded and its clock turned by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.namesrv import NameServer, NamesrvSettings
from penstock.wire.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicRouteData,
)
from penstock.wire.command import Command, decode_command, encode_command
from penstock.wire.frame import FrameDecoder

START_MS = 1_794_797_297_000


class RecordingPeer:
    remote = ("127.0.0.1", 5)
    remote_host = bytes(8)

    def __init__(self) -> None:
        self.closed = False
        self.received: list[Command] = []

    def send(self, *parts: bytes | memoryview) -> None:
        frames = FrameDecoder().feed(b"".join(parts))
        self.received += [decode_command(frame) for frame in frames]

    def close(self) -> None:
        self.closed = True


class MemoryFiles(dict[str, bytes]):
    def load(self, name: str) -> bytes | None:
        return self.get(name)

    def save(self, name: str, data: bytes) -> None:
        self[name] = data


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.files = MemoryFiles()
        self.now_ms = START_MS
        self.peer = RecordingPeer()
        self.server = NameServer(NamesrvSettings(**settings), self.files, now_ms=self.now_ms)

    def restart(self) -> None:
        self.server = NameServer(NamesrvSettings(), self.files, now_ms=self.now_ms)

    def ask(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        peer: RecordingPeer | None = None,
        version: int = 513,
        flag: int = 0,
    ) -> Command:
        """The answer to a request; a oneway has none, so that fails."""
        self.tell(encode_command(code, 1, ext=ext, body=body, version=version, flag=flag), peer=peer)
        return (peer or self.peer).received.pop()

    def tell(self, frame: bytes, peer: RecordingPeer | None = None) -> None:
        (inner,) = FrameDecoder().feed(frame)
        self.server.handle(peer or self.peer, decode_command(inner), self.now_ms)

    def register(
        self,
        name: str = "broker-a",
        address: str = "10.0.0.1:10911",
        broker_id: int = 0,
        topics: dict[str, int] | None = None,
        *,
        counter: int = 1,
        state: int = 0,
        peer: RecordingPeer | None = None,
        cluster: str = "C",
        **ext: str,
    ) -> Command:
        """Registers topics given as name -> perm."""
        topics = {"T": 6, "U": 6} if topics is None else topics
        configs = {topic: TopicConfig(topic, 4, 4, perm) for topic, perm in topics.items()}
        version = DataVersion(state, START_MS, counter)
        body = RegisterBrokerBody(TopicConfigAndMappingSerializeWrapper(configs, version))
        header = {
            "brokerName": name,
            "brokerAddr": address,
            "clusterName": cluster,
            "haServerAddr": address + "9",
            "brokerId": str(broker_id),
            **ext,
        }
        return self.ask(103, header, body.encode(), peer=peer)

    def route(self, topic: str, **ext: str) -> TopicRouteData | None:
        answer = self.ask(105, {"topic": topic, **ext})
        return TopicRouteData.decode(answer.body) if answer.code == 0 else None

    def perms(self, topic: str) -> dict[str, int]:
        route = self.route(topic)
        return {} if route is None else {queues.broker_name: queues.perm for queues in route.queue_datas}


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def new_bench() -> Callable[..., Bench]:
    return Bench


@pytest.fixture
def new_peer() -> Callable[[], RecordingPeer]:
    return RecordingPeer
