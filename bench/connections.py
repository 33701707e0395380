"""What connections cost a broker: many that are idle, and many that ask and do not read the answers.

python bench/connections.py                                10,000 idle ones, 1,000 slow readers
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import socket
import struct
import sys
import time
from pathlib import Path

import frames
import load
import servers

RESULTS = Path(__file__).resolve().parent / "results" / "connections.txt"
BODY_BYTES = 4096
PULL = 32
BACKLOG = 4_000
ASKED = 200
"""Pulls of one slow reader: their answers are a hundred times what the broker may hold for it."""


def connect(address: tuple[str, int], count: int, receive_bytes: int = 0) -> list[socket.socket]:
    links = []
    for _ in range(count):
        link = socket.socket()
        if receive_bytes:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        link.connect(address)
        links.append(link)
    return links


def answer_ms(link: socket.socket, request: bytes) -> float:
    """How long one request takes on a connection that has been idle."""
    began = time.perf_counter()
    link.sendall(request)
    with link.makefile("rb") as stream:
        (length,) = struct.unpack(">i", stream.read(4))
        stream.read(length)
    return (time.perf_counter() - began) * 1000


def idle(count: int) -> str:
    with servers.penstock("async") as broker, contextlib.ExitStack() as stack:
        before = broker.memory_mb()[1]
        began = time.monotonic()
        links = [stack.enter_context(link) for link in connect(broker.host_port, count)]
        (request,) = frames.sends("BenchIdle", 1, 128)
        slowest = max(answer_ms(links[i], request) for i in range(0, count, max(1, count // 100)))
        opened_s = time.monotonic() - began
        time.sleep(1)
        cpu_before = broker.cpu_seconds()
        time.sleep(5)
        cpu = (broker.cpu_seconds() - cpu_before) / 5
        kilobytes = (broker.memory_mb()[1] - before) * 1024 / count
    return (
        f"{count:,} idle connections: open in {opened_s:.1f} s, {kilobytes:.1f} kB of memory each, together "
        f"{cpu:.1%} of a core; of 100 of them the slowest answer took {slowest:.1f} ms"
    )


def slow_readers(count: int) -> str:
    """Each asks for far more than it reads; meanwhile another client is served."""
    with servers.penstock("async") as broker, contextlib.ExitStack() as stack:
        requests = frames.sends("BenchSlow", 400, BODY_BYTES)
        load.run(broker.host_port, requests, in_flight=64, limit=BACKLOG)
        before = broker.memory_mb()[1]
        asked = b"".join(frames.pulls("BenchSlow", PULL, PULL)[:1] * ASKED)
        # a small window: else the kernel takes megabytes for each, and filling those is all there is to see
        links = [stack.enter_context(link) for link in connect(broker.host_port, count, 64 * 1024)]
        for link in links:
            link.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # the broker stops reading from those that do not read
                link.send(asked)
        full_s = broker.settle()
        served = load.run(broker.host_port, requests, in_flight=16, seconds=3)
        grown = broker.memory_mb()[1] - before
    wanted = count * ASKED * PULL * BODY_BYTES / 1e6
    return (
        f"{count:,} slow readers that asked for {wanted:,.0f} MB: {grown:.0f} MB of memory in all "
        f"({grown * 1024 / count:.0f} kB each), {full_s:.1f} s until all is full; then another client is "
        f"served {served.rate:,.0f} sends/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=1_000)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < max(options.idle, options.slow) + 200:
        sys.exit(f"this machine allows {most} open files (ulimit -Hn): ask for fewer connections")
    text = "\n".join([idle(options.idle), slow_readers(options.slow)])
    print(text)
    if (options.idle, options.slow) == (10_000, 1_000):
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text + "\n")


if __name__ == "__main__":
    main()
