"""Requests over real sockets to servers that run in a thread of their own."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from penstock.wire.command import Command, decode_command, encode_command


class RawClient:
    """One plain blocking connection: what is sent and received is exactly what the test says."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._opaque = 0

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, timeout: float = 10
    ) -> Command:
        self.tell(code, ext, body)
        return self.hear(timeout)

    def tell(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        self._opaque += 1
        self._socket.sendall(encode_command(code, self._opaque, ext=ext, body=body))

    def hear(self, timeout: float = 10) -> Command:
        self._socket.settimeout(timeout)
        (size,) = struct.unpack(">i", self._read(4))
        return decode_command(self._read(size))

    def send(self, topic: str, body: bytes, *, queue_id: int = 0) -> Command:
        """A message to an existing or automatic topic."""
        ext = {
            "a": "test-producer",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": "0",
            "g": "1794797297000",
            "h": "0",
            "i": "",
            "j": "0",
            "k": "false",
            "m": "false",
        }
        return self.ask(310, ext, body)

    def pull(self, topic: str, offset: int, *, queue_id: int = 0, hold_ms: int = 0) -> Command:
        ext = {
            "consumerGroup": "test-group",
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "6" if hold_ms else "4",  # the expression is in the request; held if nothing is there
            "commitOffset": "0",
            "suspendTimeoutMillis": str(hold_ms),
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        return self.ask(11, ext, timeout=10 + hold_ms / 1000)

    def closed_by_server(self) -> bool:
        self._socket.settimeout(10)
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("closed by the server")
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def connect() -> Iterator[Callable[[str], RawClient]]:
    clients = []

    def open_client(address: str) -> RawClient:
        clients.append(RawClient(address))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


@contextmanager
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def port_in_use() -> Iterator[int]:
    with busy_port() as port:
        yield port
