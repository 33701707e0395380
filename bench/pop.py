"""POP on Apache's broker and on ours, one after the other, under the same load; prints the ratios.

python bench/pop.py                                        everything, about fifteen minutes
python bench/pop.py --flush async --parts rates --seconds 3 --only penstock
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import platform
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

import frames
import load
import pop_load
import servers
from broker import RESULTS, Figures, processor

BODY_BYTES = 128
CONSUMERS = 16
FILL_BATCH = 50
AT_MOST_PER_SECOND = 250_000
"""More than any broker here pops in a second: so much lies ready that no measurement runs dry."""
MANY = 1_000_000
SINGLES = 20_000
REVIVED = 200
REVIVE_AFTER_MS = 3_000
LATENCY_MESSAGES = 1_500
SEND_EVERY_SECONDS = 0.004
SETTLE_SECONDS = 1.0
PARTS = ("rates", "latency", "revive", "in_flight")
HOW_TO_READ = (
    "ratio: above 1 is better for penstock (rates ours/theirs; latency, CPU and memory theirs/ours);",
    "a star marks what is below. On a machine that others use, CPU for each message says more than rates.",
)


class Measurement:
    """Fills `figures` with what one broker does."""

    def __init__(
        self, broker: servers.Running, flush: str, seconds: float, warm_up: float, many: int
    ) -> None:
        self.broker = broker
        self.flush = flush
        self.seconds = seconds
        self.warm_up = warm_up
        self.many = many
        self.broker_name = _broker_name(broker)
        self.figures: Figures = {}
        self._filled: collections.Counter[str] = collections.Counter()
        self._popped: collections.Counter[str] = collections.Counter()
        self._known: set[str] = set()

    def run(self, parts: list[str]) -> Iterator[Figures]:
        """The figures after each part: the later ones take long."""
        for part in parts:
            getattr(self, part)()
            yield self.figures

    # ---- what is measured -----------------------------------------------------------------------

    def rates(self) -> None:
        for name, most, ack in (
            ("batch 1", 1, "each"),
            ("batch 32, single acks", 32, "each"),
            ("batch 32, batch acks", 32, "batch"),
        ):
            self._rate(f"pop+ack, {name}", "PopRates", most, ack)

    def latency(self) -> None:
        """From the send to the consumer, with consumers that wait and a message every few milliseconds."""
        topic = "PopLatency"
        self._fill(topic, frames.QUEUES * FILL_BATCH)
        delays: list[float] = []

        def seen(popped: pop_load.Popped, body: memoryview) -> None:
            now = time.time()
            position = 0
            while position < len(body):
                size = struct.unpack_from(">i", body, position)[0]
                text = bytes(body[position : position + size])
                at = text.find(b"sent at ")
                if at >= 0:
                    delays.append(now - float(text[at + 8 : at + 28]))
                position += size

        work = pop_load.Work(topic, "latency", self.broker_name, 32, poll_ms=2_000, seen=seen)
        stop = threading.Event()
        sender = threading.Thread(target=_send_slowly, args=(self.broker.host_port, topic, stop))
        threading.Timer(1.0, sender.start).start()
        pop_load.consume(
            self.broker.host_port,
            work,
            consumers=4,
            limit=LATENCY_MESSAGES + frames.QUEUES * FILL_BATCH,
            seconds=30,
        )
        stop.set()
        sender.join()
        self._percentiles("receive", delays)

    def revive(self) -> None:
        """From the end of the invisible time to the consumer."""
        topic = "PopRevive"
        self._fill(topic, REVIVED)
        hung = pop_load.Work(topic, "revive", self.broker_name, 1, REVIVE_AFTER_MS, ack="none")
        first: dict[bytes, int] = {}
        lags: list[float] = []

        def note(popped: pop_load.Popped, body: memoryview) -> None:
            for key in _keys(body):
                first[key] = popped.pop_ms
            time.sleep(SEND_EVERY_SECONDS)

        def back(popped: pop_load.Popped, body: memoryview) -> None:
            now_ms = time.time() * 1000
            lags.extend((now_ms - first[key] - REVIVE_AFTER_MS) / 1000 for key in _keys(body) if key in first)

        hung.seen = note
        # spread over a second or so, as consumers hang, not all in one moment
        pop_load.consume(
            self.broker.host_port, hung, consumers=1, limit=REVIVED, seconds=REVIVE_AFTER_MS / 1000 - 0.5
        )
        alive = pop_load.Work(topic, "revive", self.broker_name, 32, poll_ms=1_000, seen=back)
        pop_load.consume(self.broker.host_port, alive, consumers=4, limit=len(first), seconds=30)
        self._percentiles("revive lag", lags)

    def in_flight(self) -> None:
        topic = "PopMany"
        for count in (10_000, self.many):
            group = f"many{count}"
            self._fill_up(topic, group, count)
            before = self.broker.memory_mb()[1]
            held = pop_load.Work(topic, group, self.broker_name, 32, 3_600_000, ack="none")
            pop_load.consume(self.broker.host_port, held, consumers=CONSUMERS, limit=count)
            self._popped[group] += held.messages
            time.sleep(SETTLE_SECONDS)
            grown = self.broker.memory_mb()[1] - before
            self._note(f"memory for each of {count:,} in flight B", max(0.0, grown) * 2**20 / held.messages)
            self._rate(f"pop+ack, batch 32, single acks, {count:,} in flight", topic, 32, "each", group)
        singles = min(self.many, SINGLES)
        before = self.broker.memory_mb()[1]
        held = pop_load.Work(topic, "singles", self.broker_name, 1, 3_600_000, ack="none")
        pop_load.consume(self.broker.host_port, held, consumers=CONSUMERS, limit=singles)
        time.sleep(SETTLE_SECONDS)
        grown = self.broker.memory_mb()[1] - before
        self._note(
            f"memory for each of {singles:,} in flight, popped one by one B",
            max(0.0, grown) * 2**20 / held.messages,
        )

    # ---- how ------------------------------------------------------------------------------------

    def _rate(self, name: str, topic: str, most: int, ack: str, group: str = "") -> None:
        group = group or f"g{most}{ack}"
        address = self.broker.host_port
        rate = min(AT_MOST_PER_SECOND, 10_000 * most)
        self._fill_up(topic, group, int((self.warm_up + self.seconds) * rate))
        warm = pop_load.Work(topic, group, self.broker_name, most, ack=ack)
        pop_load.consume(address, warm, consumers=CONSUMERS, seconds=self.warm_up)
        before, own = self.broker.cpu_seconds(), time.process_time()
        work = pop_load.Work(topic, group, self.broker_name, most, ack=ack)
        taken = pop_load.consume(address, work, consumers=CONSUMERS, seconds=self.seconds)
        own = time.process_time() - own
        cpu_seconds = self.broker.cpu_seconds() - before
        done = max(1, work.messages)
        self._popped[group] += warm.messages + work.messages
        left = self._filled[topic] - self._popped[group]
        assert left > CONSUMERS * most, f"{name}: the backlog did not last"
        self._note(f"{name} msgs/s", work.messages / taken)
        self.figures[f"{name} cpu µs/msg"] = cpu_seconds / done * 1e6
        self.figures[f"{name} generator cpu µs/msg"] = own / done * 1e6
        ordered = sorted(work.pop_seconds) or [0.0]
        self.figures[f"{name} pop p50 ms"] = ordered[len(ordered) // 2] * 1000
        self.figures[f"{name} pop p99 ms"] = ordered[len(ordered) * 99 // 100] * 1000

    def _fill_up(self, topic: str, group: str, count: int) -> None:
        """So that so many are left for the group."""
        missing = count - self._filled[topic] + self._popped[group]
        if missing > 0:
            self._fill(topic, missing)

    def _fill(self, topic: str, count: int) -> None:
        """So many messages more; Apache shows them a while after it has confirmed them."""
        requests = frames.batches(topic, 2_000, FILL_BATCH, BODY_BYTES)
        self._filled[topic] += count
        wanted = self._filled[topic]
        while (missing := wanted - self._stored(topic)) > 0:  # a busy broker refuses some
            load.run(self.broker.host_port, requests, in_flight=4, limit=-(-missing // FILL_BATCH))
            seen = -1
            while seen < self._stored(topic) < wanted:
                seen = self._stored(topic)
                time.sleep(0.3)

    def _stored(self, topic: str) -> int:
        if topic not in self._known:
            self._known.add(topic)
            return 0  # before the first send there is no topic to ask for
        return sum(self.broker.max_offset(topic, queue) for queue in range(frames.QUEUES))

    def _percentiles(self, name: str, seconds: list[float]) -> None:
        ordered = sorted(seconds) or [float("nan")]
        self._note(f"{name} p50 ms", ordered[len(ordered) // 2] * 1000)
        self._note(f"{name} p99 ms", ordered[len(ordered) * 99 // 100] * 1000)

    def _note(self, name: str, value: float) -> None:
        self.figures[name] = value
        print(f"   {name}: {value:,.1f}", file=sys.stderr)


def table(flush: str, figures: dict[str, Figures]) -> list[str]:
    names = list(dict.fromkeys(name for found in figures.values() for name in found))
    lines = ["", f"{flush + ' flush':64}" + "".join(f"{kind:>14}" for kind in servers.BROKERS) + "   ratio"]
    for name in names:
        values = [figures.get(kind, {}).get(name) for kind in servers.BROKERS]
        row = f"  {name:62}" + "".join(f"{'-' if v is None else format(v, ',.1f'):>14}" for v in values)
        ours, theirs = values
        if ours and theirs and "generator" not in name:
            value = ratio(name, ours, theirs)
            row += f"{value:8.2f}" + ("" if value >= 1 else "  *")
        lines.append(row)
    return lines


def ratio(name: str, ours: float, theirs: float) -> float:
    return ours / theirs if name.endswith("msgs/s") else theirs / ours


def _keys(body: memoryview) -> list[bytes]:
    """The unique key of every message of a body."""
    found, position = [], 0
    while position < len(body):
        size = struct.unpack_from(">i", body, position)[0]
        text = bytes(body[position : position + size])
        at = text.find(b"UNIQ_KEY\x01") + 9
        found.append(text[at : text.index(b"\x02", at)])
        position += size
    return found


def _send_slowly(address: tuple[str, int], topic: str, stop: threading.Event) -> None:
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(LATENCY_MESSAGES):
            if stop.wait(SEND_EVERY_SECONDS):
                return
            body = f"sent at {time.time():020.6f}".encode()
            ext = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": number % 4, "f": 0, "g": 1, "h": 0}
            sock.sendall(pop_load.frame(pop_load.SEND, {**ext, "i": "", "j": 0, "k": "false"}, body))
            _drain(sock)


def _drain(sock: socket.socket) -> None:
    size = struct.unpack(">i", _exactly(sock, 4))[0]
    _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data


def _broker_name(broker: servers.Running) -> str:
    _, body = servers.apache.call(broker.name_server, 106, {})
    text = body.decode()
    return text.split('"brokerName":"')[1].split('"')[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flush", choices=("async", "sync"), action="append", help="default: both")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--warm-up", type=float, default=3.0, help="the same load before each, for the JIT")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS), help="default: all")
    parser.add_argument("--many", type=int, default=MANY, help="messages in flight in the largest case")
    parser.add_argument(
        "--only",
        choices=tuple(servers.BROKERS),
        action="append",
        help="default: both brokers; what was measured before stays",
    )
    options = parser.parse_args()
    kept = RESULTS / "pop.json"
    results: dict[str, dict[str, Figures]] = json.loads(kept.read_text()) if kept.exists() else {}
    head = [
        f"{os.cpu_count()} x {processor()}, Linux {platform.release()}, Python {platform.python_version()}; "
        f"{BODY_BYTES} B bodies, {CONSUMERS} consumers, {options.warm_up:g} s warm-up and "
        f"{options.seconds:g} s for each rate"
    ]
    for flush in options.flush or ["async", "sync"]:
        for kind in options.only or list(servers.BROKERS):
            print(f"-- {kind}, {flush} flush", file=sys.stderr)
            with servers.BROKERS[kind](flush) as broker:
                measurement = Measurement(broker, flush, options.seconds, options.warm_up, options.many)
                for figures in measurement.run(options.parts):
                    results.setdefault(flush, {}).setdefault(kind, {}).update(figures)
                    RESULTS.mkdir(exist_ok=True)
                    kept.write_text(json.dumps(results, indent=1) + "\n")
    text = "\n".join(
        [*head, *HOW_TO_READ, *(line for flush in results for line in table(flush, results[flush]))]
    )
    print(text)
    (RESULTS / "pop.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
