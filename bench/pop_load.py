"""Consumers for the POP benchmark: plain sockets, one request at a time each, little decoded."""

from __future__ import annotations

import base64
import json
import re
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

POP, ACK, BATCH_ACK, SEND = 200050, 200051, 200151, 310
GROUP_LATENCY = "latency"
_LENGTH = struct.Struct(">ii")
_FOUND = b'"code":0,'
_TIMES = re.compile(
    rb'(?=.*"startOffsetInfo":"(?P<starts>[^"]*)")(?=.*"msgOffsetInfo":"(?P<offsets>[^"]*)")'
    rb'(?=.*"popTime":"(?P<pop>\d+)")(?=.*"reviveQid":"(?P<revive>\d+)")',
    re.DOTALL,
)


def frame(code: int, ext: dict[str, object], body: bytes = b"") -> bytes:
    head = json.dumps(
        {
            "code": code,
            "extFields": {key: str(value) for key, value in ext.items()},
            "flag": 0,
            "language": "PYTHON",
            "opaque": 1,
            "serializeTypeCurrentRPC": "JSON",
            "version": 513,
        },
        separators=(",", ":"),
    ).encode()
    return _LENGTH.pack(4 + len(head) + len(body), len(head)) + head + body


@dataclass
class Popped:
    """One answer with messages: what is needed to ack them."""

    pop_ms: int
    revive: int
    batches: list[tuple[str, int, int, list[int]]]
    """(retry flag, queue id, start offset, offsets)."""

    @property
    def count(self) -> int:
        return sum(len(offsets) for *_, offsets in self.batches)


@dataclass
class Work:
    """What all consumers of a run do, and what they have done."""

    topic: str
    group: str
    broker_name: str
    most: int
    invisible_ms: int = 600_000
    poll_ms: int = 0
    ack: str = "each"
    """each, batch, or none."""
    messages: int = 0
    empty: int = 0
    pop_seconds: list[float] = field(default_factory=list)
    seen: Callable[[Popped, memoryview], None] | None = None

    def __post_init__(self) -> None:
        self.request = frame(
            POP,
            {
                "consumerGroup": self.group,
                "topic": self.topic,
                "queueId": -1,
                "maxMsgNums": self.most,
                "invisibleTime": self.invisible_ms,
                "pollTime": self.poll_ms,
                "bornTime": 0,
                "initMode": 0,
                "expType": "TAG",
                "exp": "*",
                "order": "false",
            },
        )
        head = '{"code":200051,"extFields":{"consumerGroup":"%s","topic":"%s","queueId":"%%d","offset":"%%d",'
        tail = '"extraInfo":"%%d %%d %d %%d %%s %s %%d %%d"},"flag":0,"language":"PYTHON","opaque":1}'
        text = head % (self.group, "%s") + tail % (self.invisible_ms, self.broker_name)
        self._ack_head = {
            "0": text.replace("%s", self.topic, 1).encode(),
            "1": text.replace("%s", f"%%RETRY%%{self.group}_{self.topic}", 1).encode(),
        }

    def acks(self, popped: Popped) -> tuple[bytes, int]:
        """The requests that end it, and how many answers they bring."""
        if self.ack == "batch":
            entries = [
                {
                    "c": self.group,
                    "t": self.topic,
                    "r": flag,
                    "so": start,
                    "q": queue_id,
                    "rq": popped.revive,
                    "pt": popped.pop_ms,
                    "it": self.invisible_ms,
                    "b": _bits(start, offsets),
                }
                for flag, queue_id, start, offsets in popped.batches
            ]
            body = json.dumps({"acks": entries, "brokerName": self.broker_name}).encode()
            return frame(BATCH_ACK, {}, body), 1
        heads = []
        for flag, queue_id, start, offsets in popped.batches:
            text = self._ack_head[flag]
            heads += [
                text % (queue_id, x, start, popped.pop_ms, popped.revive, flag.encode(), queue_id, x)
                for x in offsets
            ]
        return b"".join([_LENGTH.pack(4 + len(h), len(h)) + h for h in heads]), len(heads)


def _bits(start: int, offsets: list[int]) -> str:
    bits = 0
    for offset in offsets:
        bits |= 1 << offset - start
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def read_pop(head: bytes) -> Popped | None:
    """None if nothing was found."""
    if _FOUND not in head[:64] and _FOUND not in head:
        return None
    found = _TIMES.match(head)
    if found is None:
        return None
    starts = [item.split(" ") for item in found["starts"].decode().split(";")]
    offsets = [item.split(" ") for item in found["offsets"].decode().split(";")]
    batches = [
        (flag, int(queue_id), int(start), [int(x) for x in listed.split(",")])
        for (flag, queue_id, start), (_, _, listed) in zip(starts, offsets, strict=True)
    ]
    return Popped(int(found["pop"]), int(found["revive"]), batches)


class Consumer:
    """Pops, acks, pops again."""

    def __init__(self, address: tuple[str, int], work: Work) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.work = work
        self.waits_for = 0
        """Answers to acks that are still to come; 0 while a pop is out."""
        self.held = 0
        self.idle = True
        self._buffer = bytearray()
        self._asked = 0.0

    def pop(self) -> None:
        self._asked = time.perf_counter()
        self.idle = False
        self.sock.sendall(self.work.request)

    def receive(self, running: bool) -> None:
        self._buffer += self.sock.recv(1 << 20)
        buffer = self._buffer
        while len(buffer) >= 8:
            size, head_size = _LENGTH.unpack_from(buffer)
            if len(buffer) < size + 4:
                return
            head_size &= 0xFFFFFF
            if self.waits_for:
                self.waits_for -= 1
                del buffer[: size + 4]
                if not self.waits_for:
                    self.work.messages += self.held
                    self._next(running)
            else:
                self._popped(
                    bytes(buffer[8 : 8 + head_size]), bytes(buffer[8 + head_size : size + 4]), running
                )
                del buffer[: size + 4]

    def _popped(self, head: bytes, body: bytes, running: bool) -> None:
        work, popped = self.work, read_pop(head)
        if popped is None:
            work.empty += 1
            self._next(running)
            return
        work.pop_seconds.append(time.perf_counter() - self._asked)
        if work.seen is not None:
            work.seen(popped, memoryview(body))
        if work.ack == "none":
            work.messages += popped.count
            self._next(running)
            return
        data, self.waits_for = work.acks(popped)
        self.held = popped.count
        self.sock.sendall(data)

    def _next(self, running: bool) -> None:
        if running:
            self.pop()
        else:
            self.idle = True


def consume(
    address: tuple[str, int], work: Work, *, consumers: int, seconds: float = 1e9, limit: int = 0
) -> float:
    """Until the time is over or so many messages are done; tells the seconds that it took."""
    team = [Consumer(address, work) for _ in range(consumers)]
    poll = select.epoll()
    by_fd = {consumer.sock.fileno(): consumer for consumer in team}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    began = time.perf_counter()
    for consumer in team:
        consumer.pop()
    empty_since = began
    last = 0
    while True:
        now = time.perf_counter()
        running = now - began < seconds and (not limit or work.messages < limit)
        if work.messages != last:
            last, empty_since = work.messages, now
        if now - empty_since > 10:
            running = False  # there is no more
        if not running and all(consumer.idle for consumer in team):
            break
        for fd, _ in poll.poll(0.2):
            by_fd[fd].receive(running)
        if not running and now - began > seconds + 30:
            break
    taken = time.perf_counter() - began
    poll.close()
    for consumer in team:
        consumer.sock.close()
    return taken
