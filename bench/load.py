"""A load generator that is cheaper than any server: frames are encoded before the clock starts.

Requests are prepared and sent over and over from one buffer; answers are only walked by their length fields
and looked at for success. Where there is a C compiler the loop is the one of load.c, at a fraction of a
microsecond a request, so that on a small machine the generator takes little of what the server could use;
else it is the one below, which does the same for a few microseconds.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import resource
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOREVER = 1e9
HERE = Path(__file__).resolve().parent
_LENGTH = struct.Struct(">i")
_SUCCESS = b'{"code":0,'

Address = tuple[str, int]


@dataclass
class Outcome:
    """What one run of the generator saw; latencies from the send to the complete answer."""

    requests: int
    refused: int
    seconds: float
    bytes_received: int
    cpu_seconds: float
    p50_ms: float
    p99_ms: float
    p999_ms: float

    @property
    def rate(self) -> float:
        """Requests served in a second; refusals are quick, and no service."""
        return (self.requests - self.refused) / self.seconds

    @property
    def cpu_us(self) -> float:
        """What a request cost the generator itself."""
        return self.cpu_seconds / self.requests * 1e6


def run(
    address: Address | list[Address],
    frames: Sequence[bytes],
    *,
    in_flight: int,
    connections: int = 4,
    seconds: float = 0,
    limit: int = 0,
    native: bool = True,
) -> Outcome:
    """Send the frames in turn for so many seconds, or `limit` of them, or each once; wait for all answers.

    Several addresses get the same frames, each an equal share of the connections and of the limit.
    """
    addresses = [address] if isinstance(address, tuple) else address
    if not seconds:
        seconds, limit = FOREVER, limit or len(frames)
    connections = -(-min(connections, in_flight) // len(addresses)) * len(addresses)
    if native and compiled() is not None:
        return _run_native(addresses, frames, in_flight, connections, seconds, limit)
    return _run_python(addresses, frames, in_flight, connections, seconds, limit or sys.maxsize)


# ---- native -------------------------------------------------------------------------------------


@functools.cache
def compiled() -> str | None:
    """The native generator, built into a temporary folder; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    place = _keep.enter_context(tempfile.TemporaryDirectory(prefix="bench-load-"))
    program = f"{place}/load"
    subprocess.run([compiler, "-O2", "-o", program, HERE / "load.c"], check=True)
    return program


_keep = contextlib.ExitStack()  # until the end of the process


def _run_native(
    addresses: list[Address],
    frames: Sequence[bytes],
    in_flight: int,
    connections: int,
    seconds: float,
    limit: int,
) -> Outcome:
    with tempfile.NamedTemporaryFile(prefix="bench-frames-") as file:
        file.writelines(frames)
        file.flush()
        targets = [f"{host}:{port}" for host, port in addresses]
        command = [compiled(), "run", in_flight, connections, seconds, limit, file.name, *targets]
        done = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True)
    if done.stderr:
        print("load generator:", done.stderr.strip(), file=sys.stderr)
    done.check_returncode()
    return Outcome(**json.loads(done.stdout))


@contextlib.contextmanager
def sink() -> Iterator[Address]:
    """A server that only counts frames and answers: shows the limit of the native generator."""
    program = compiled()
    assert program is not None
    process = subprocess.Popen([program, "sink"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield "127.0.0.1", int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


# ---- Python -------------------------------------------------------------------------------------


class _Link:
    """One connection with its share of the frames, of the requests in flight and of the limit."""

    def __init__(self, address: Address, frames: Sequence[bytes], window: int, quota: int) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.window = window
        self.quota = quota
        ends = [0]
        for frame in frames:
            ends.append(ends[-1] + len(frame))
        self._ends = ends
        self._frames = memoryview(b"".join(frames))
        self._next = 0
        self._unsent = self._frames[:0]
        self._sent_at: list[float] = []  # times of what is outstanding, oldest first
        self._partial = b""

    def submit(self, count: int, now: float) -> int:
        """Send up to `count` more frames; they lie one behind the other, so that is one system call."""
        if self._unsent:
            return 0
        last = min(self._next + min(count, self.free, self.quota), len(self._ends) - 1)
        chosen = last - self._next
        self.quota -= chosen
        self._unsent = self._frames[self._ends[self._next] : self._ends[last]]
        self._next = last % (len(self._ends) - 1)
        self._sent_at += [now] * chosen
        self.push()
        return chosen

    def push(self) -> None:
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[sent:]

    @property
    def free(self) -> int:
        return self.window - len(self._sent_at)

    def receive(self, latencies: array[float]) -> tuple[int, int, float]:
        """Bytes read, answers that are no success, the time; the latencies of answers that are complete."""
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return 0, 0, time.perf_counter()
        if not data:
            raise ConnectionError("the server closed the connection")
        now = time.perf_counter()
        buffer = self._partial + data if self._partial else data
        position, count, good, end = 0, 0, 0, len(buffer)
        unpack, find = _LENGTH.unpack_from, buffer.startswith
        while end - position >= 4:
            following = position + 4 + unpack(buffer, position)[0]
            if following > end:
                break
            good += find(_SUCCESS, position + 8)
            position = following
            count += 1
        self._partial = buffer[position:]
        latencies.extend(now - sent for sent in self._sent_at[:count])
        del self._sent_at[:count]
        return len(data), count - good, now


def _run_python(
    addresses: list[Address],
    frames: Sequence[bytes],
    in_flight: int,
    connections: int,
    seconds: float,
    limit: int,
) -> Outcome:
    windows, quotas = _shares(in_flight, connections), _shares(limit, connections)
    shares = [
        frames[start:end]
        for start, end in itertools.pairwise(
            itertools.accumulate(_shares(len(frames), connections // len(addresses)), initial=0)
        )
    ]
    links = [
        _Link(address, share, max(1, windows[i]), quotas[i])
        for i, (share, address) in enumerate(itertools.product(shares, addresses))
    ]
    poller = select.epoll()
    by_fd = {link.sock.fileno(): link for link in links}
    for fd in by_fd:
        poller.register(fd, select.EPOLLIN)
    latencies = array("d")
    bytes_received = refused = submitted = 0
    cpu_before = _own_cpu()
    began = last = time.perf_counter()
    try:
        for link in links:
            submitted += link.submit(in_flight - submitted, began)
        while len(latencies) < submitted:
            events = poller.poll(10)
            if not events:
                raise TimeoutError(f"no answer for 10 s, {submitted - len(latencies)} outstanding")
            for fd, _ in events:
                link = by_fd[fd]
                size, bad, last = link.receive(latencies)
                bytes_received += size
                refused += bad
                link.push()
                if in_flight < connections:  # the brokers take turns
                    link = links[(links.index(link) + 1) % connections]
                if last - began < seconds:
                    submitted += link.submit(in_flight - (submitted - len(latencies)), last)
    finally:
        poller.close()
        for link in links:
            link.sock.close()
    cpu_seconds = _own_cpu() - cpu_before
    ordered = sorted(latencies)
    p50, p99, p999 = (
        ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))] * 1000 for p in (50, 99, 99.9)
    )
    return Outcome(len(ordered), refused, last - began, bytes_received, cpu_seconds, p50, p99, p999)


def _shares(total: int, count: int) -> list[int]:
    """So many whole numbers, as equal as they can be, that make the total."""
    return [total * (i + 1) // count - total * i // count for i in range(count)]


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
