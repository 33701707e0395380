"""The two brokers of a benchmark as child processes, with what the kernel says of them."""

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

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a benchmark that is ended ends its servers, too


@dataclass
class Running:
    """A broker under load."""

    kind: str
    name_server: str
    address: str
    pid: int
    start_seconds: float

    @property
    def host_port(self) -> tuple[str, int]:
        host, port = self.address.rsplit(":", 1)
        return host, int(port)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def settle(self) -> float:
        """Waits until the broker has nothing more to do; tells how long that took."""
        began = time.monotonic()
        used = -1.0
        while (now := self.cpu_seconds()) - used > 0.05:
            used = now
            time.sleep(0.5)
        return time.monotonic() - began

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the last message that consumers can see."""
        fields = {"topic": topic, "queueId": str(queue_id)}
        header, _ = apache.call(self.address, GET_MAX_OFFSET, fields)
        return int(header["extFields"]["offset"])

    def memory_mb(self) -> tuple[float, float]:
        """Resident memory in all, and without mapped files."""
        facts = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines()
            if ":" in line
        )
        return tuple(int(facts[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon"))  # type: ignore[return-value]


@contextlib.contextmanager
def penstock(flush: str, data: Path | None = None) -> Iterator[Running]:
    """Ours, on a data directory of its own or on one that is there already."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        ready = Path(place) / "ready.json"
        command: list[object] = [sys.executable, "-m", "penstock.cli", "serve", "--host", "127.0.0.1"]
        command += ["--namesrv-port", 0, "--broker-port", 0, "--flush", flush, "--ready-file", ready]
        command += ["--data", data or Path(place) / "data"]
        began = time.monotonic()
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
        try:
            while not ready.exists():
                if process.poll() is not None or time.monotonic() - began > 120:
                    raise RuntimeError("penstock serve did not start")
                time.sleep(0.005)
            start_seconds = time.monotonic() - began
            facts = json.loads(ready.read_text())
            (broker,) = facts["brokers"]
            yield Running("penstock", facts["name_server"], broker["address"], broker["pid"], start_seconds)
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
            yield Running("apache", cluster.name_server, broker.address, broker.pid, broker.start_seconds)
        finally:
            cluster.stop()


BROKERS = {"penstock": penstock, "apache": apache_broker}
