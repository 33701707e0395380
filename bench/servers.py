"""The brokers of a benchmark as child processes, with what the kernel says of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "interop"))
import apache

GET_MAX_OFFSET = 30
TICKS = os.sysconf("SC_CLK_TCK")
SHARDS = max(2, os.cpu_count() or 2)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a benchmark that is ended ends its servers, too


@dataclass
class Running:
    """A broker under load, or several shards of one."""

    kind: str
    name_server: str
    addresses: list[str]
    pids: list[int]
    """Of every process that counts."""
    start_seconds: float

    @property
    def host_ports(self) -> list[tuple[str, int]]:
        parts = [address.rsplit(":", 1) for address in self.addresses]
        return [(host, int(port)) for host, port in parts]

    @property
    def host_port(self) -> tuple[str, int]:
        """Of a broker that has no shards."""
        (only,) = self.host_ports
        return only

    def cpu_seconds(self) -> float:
        ticks = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS

    def settle(self) -> float:
        """Waits until the broker has nothing more to do; tells how long that took."""
        began = time.monotonic()
        used = -1.0
        while (now := self.cpu_seconds()) - used > 0.05:
            used = now
            time.sleep(0.5)
        return time.monotonic() - began

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the last message that consumers can see; of shards the lowest."""
        fields = {"topic": topic, "queueId": str(queue_id)}
        headers = [apache.call(address, GET_MAX_OFFSET, fields)[0] for address in self.addresses]
        return min(int(header["extFields"]["offset"]) for header in headers)

    def memory_mb(self) -> tuple[float, float]:
        """Resident memory in all, and without mapped files.

        Several processes have the interpreter's and libraries' pages once between them, so they count once.
        """
        own = 0
        files: dict[tuple[str, str], int] = {}
        for pid in self.pids:
            mapping = ("", "")
            of_file: dict[tuple[str, str], int] = {}
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                name, *rest = line.split(maxsplit=5)
                if not name.endswith(":"):  # "address permissions offset device inode [path]"
                    mapping = (rest[4] if len(rest) == 5 else "", rest[1])
                    continue
                if name == "Rss:":
                    of_file[mapping] = of_file.get(mapping, 0) + int(rest[0])
                elif name == "Anonymous:":
                    of_file[mapping] -= int(rest[0])
                    own += int(rest[0])
            for mapping, size in of_file.items():
                files[mapping] = max(files.get(mapping, 0), size)
        return (own + sum(files.values())) / 1024, own / 1024


@contextlib.contextmanager
def penstock(flush: str, data: Path | None = None, shards: int = 1) -> Iterator[Running]:
    """Ours, on a data directory of its own or on one that is there already."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        ready = Path(place) / "ready.json"
        command: list[object] = [sys.executable, "-m", "penstock.cli", "serve", "--host", "127.0.0.1"]
        command += ["--namesrv-port", 0, "--broker-port", 0, "--flush", flush, "--ready-file", ready]
        command += ["--data", data or Path(place) / "data", "--shards", shards]
        began = time.monotonic()
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
        try:
            while not ready.exists():
                if process.poll() is not None or time.monotonic() - began > 120:
                    raise RuntimeError("penstock serve did not start")
                time.sleep(0.005)
            start_seconds = time.monotonic() - began
            facts = json.loads(ready.read_text())
            addresses = [broker["address"] for broker in facts["brokers"]]
            # without shards the broker runs in this process, with them it is the name server's
            pids = sorted({process.pid, *(broker["pid"] for broker in facts["brokers"])})
            kind = "penstock" if shards == 1 else f"{shards} shards"
            yield Running(kind, facts["name_server"], addresses, pids, start_seconds)
        finally:
            process.terminate()
            process.wait(30)


@contextlib.contextmanager
def apache_broker(flush: str) -> Iterator[Running]:
    """Apache with the JVM's full compiler and its own default settings."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as place:
        settings = {"flushDiskType": f"{flush.upper()}_FLUSH"}
        cluster = apache.Cluster(Path(place), settings=settings, flags=[], heap="4g").start()
        try:
            broker = cluster.brokers[0]
            yield Running("apache", cluster.name_server, [broker.address], [broker.pid], broker.start_seconds)
        finally:
            cluster.stop()


def penstock_shards(flush: str) -> contextlib.AbstractContextManager[Running]:
    """Ours with a process for each core, as Apache's threads use them all."""
    return penstock(flush, shards=SHARDS)


BROKERS = {"penstock": penstock, "apache": apache_broker}
