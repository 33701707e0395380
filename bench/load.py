"""A load generator that is cheaper than any server: frames are encoded before the clock starts.

Requests are prepared and answers are only walked by their length fields, so a message costs the generator
about a microsecond and the server under test is what is measured.
"""

from __future__ import annotations

import collections
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_LENGTH = struct.Struct(">i")


@dataclass
class Outcome:
    """What one run of the generator saw."""

    requests: int
    seconds: float
    bytes_received: int
    latencies_ms: list[float] = field(repr=False)

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    def percentile(self, p: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))]


class _Link:
    """One connection with its share of the requests in flight."""

    def __init__(self, address: tuple[str, int], frames: Sequence[bytes], window: int) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.frames = frames
        self.window = window
        self.next = 0
        self.unsent = b""
        self.sent_at: collections.deque[float] = collections.deque()
        self.partial = b""

    def submit(self, count: int, now: float) -> int:
        """Queue the next `count` requests; the ones past the end of the list are not sent."""
        chosen = self.frames[self.next : self.next + count]
        self.next += len(chosen)
        self.unsent += b"".join(chosen)
        self.sent_at.extend([now] * len(chosen))
        self.flush()
        return len(chosen)

    def flush(self) -> None:
        while self.unsent:
            try:
                sent = self.sock.send(self.unsent)
            except BlockingIOError:
                return
            self.unsent = self.unsent[sent:]

    def receive(self) -> tuple[int, int]:
        """Answers that are complete now, and the bytes read."""
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return 0, 0
        if not data:
            raise ConnectionError("the server closed the connection")
        buffer = self.partial + data if self.partial else data
        position, count, end = 0, 0, len(buffer)
        unpack = _LENGTH.unpack_from
        while end - position >= 4:
            following = position + 4 + unpack(buffer, position)[0]
            if following > end:
                break
            position = following
            count += 1
        self.partial = buffer[position:]
        return count, len(data)


def run(
    address: tuple[str, int], frames: Sequence[bytes], *, in_flight: int, connections: int = 4
) -> Outcome:
    """Send every frame once, `in_flight` unanswered over all connections, and wait for every answer."""
    connections = min(connections, in_flight)
    share = -(-len(frames) // connections)
    parts = [frames[i * share : (i + 1) * share] for i in range(connections)]
    links = [_Link(address, part, in_flight // connections) for part in parts if part]
    poller = select.epoll()
    by_fd = {link.sock.fileno(): link for link in links}
    for fd in by_fd:
        poller.register(fd, select.EPOLLIN)
    latencies: list[float] = []
    received_bytes = 0
    began = time.perf_counter()
    outstanding = sum(link.submit(link.window, began) for link in links)
    try:
        while outstanding:
            events = poller.poll(10)
            if not events:
                raise TimeoutError(f"no answer for 10 s, {outstanding} outstanding")
            for fd, _ in events:
                link = by_fd[fd]
                count, size = link.receive()
                now = time.perf_counter()
                received_bytes += size
                latencies.extend((now - link.sent_at.popleft()) * 1000 for _ in range(count))
                outstanding += link.submit(count, now) - count if count else 0
                if link.unsent:
                    link.flush()
        return Outcome(len(latencies), time.perf_counter() - began, received_bytes, latencies)
    finally:
        poller.close()
        for link in links:
            link.sock.close()
