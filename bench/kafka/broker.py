"""A single Kafka node on loopback, from jars that Maven fetches."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "interop"))
import apache

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("PENSTOCK_CACHE", "~/.cache/penstock")).expanduser() / "kafka-3.9.2"


def jars(part: str) -> Path:
    """The folder with the jars of `part`.pom.xml."""
    lib = CACHE / part
    if not (CACHE / f"{part}.complete").exists():
        lib.mkdir(parents=True, exist_ok=True)
        command = ["mvn", "-q", "-B", "-f", HERE / f"{part}.pom.xml", "dependency:copy-dependencies"]
        subprocess.run([*map(str, command), f"-DoutputDirectory={lib}", "-DincludeScope=runtime"], check=True)
        (CACHE / f"{part}.complete").touch()
    return lib


def _java(main: str, *arguments: object, home: Path) -> list[str]:
    options = [f"-Dkafka.logs.dir={home}", "-Xmx1g", "-Xms512m", "-cp", f"{jars('broker')}/*"]
    return ["java", *options, main, *map(str, arguments)]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running() -> Iterator[str]:
    """The address of a broker with empty logs."""
    with tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True) as place:
        home = Path(place)
        port, controller = apache.free_port(), apache.free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": home / "logs",
            "num.partitions": 4,
            "offsets.topic.replication.factor": 1,
        }
        conf = home / "server.properties"
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        with open(home / "out.log", "wb") as log:
            tool = _java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", conf, home=home)
            subprocess.run(tool, check=True, stdout=log, stderr=log)
            server = subprocess.Popen(_java("kafka.Kafka", conf, home=home), stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not _listens(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka did not start: {(home / 'out.log').read_text()[-2000:]}")
                time.sleep(0.2)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(60)
