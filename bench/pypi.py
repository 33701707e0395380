"""The PyPI client rocketmq-python-client, which speaks gRPC only, and Apache's proxy that it needs.

The proxy runs in cluster mode in front of whichever broker is measured, so every message takes one hop more
than those of the other clients, and on a machine with few cores the proxy takes its share of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "interop"))
import apache

from penstock.admin import AdminClient, TopicSettings
from penstock.wire.bodies import SubscriptionGroupConfig

HERE = Path(__file__).resolve().parent
PACKAGE = "rocketmq-python-client==5.1.2"
GROUP = "pypi"
START_S = 180
PATIENCE_S = 240
HOW = (
    "the PyPI client goes through Apache's gRPC proxy in front of this broker; the others speak to the broker"
)


def interpreter() -> Path:
    """Python of a virtualenv that has the client; made the first time."""
    place = apache.CACHE.parent / PACKAGE.replace("==", "-")
    if not (place / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        install = [place / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, PACKAGE], check=True)
        (place / "complete").touch()
    return place / "bin" / "python"


def proxy_jars() -> Path:
    lib = apache.CACHE / "proxy-lib"
    if not (apache.CACHE / "proxy-complete").exists():
        pom = HERE / "java" / "proxy" / "pom.xml"
        command = ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={lib}"]
        subprocess.run(command, check=True)
        (apache.CACHE / "proxy-complete").touch()
    return lib


@contextlib.contextmanager
def proxy(name_server: str) -> Iterator[str]:
    """Apache's proxy in front of the brokers of a name server; its gRPC address."""
    lib = proxy_jars()
    with tempfile.TemporaryDirectory(prefix="bench-proxy-", ignore_cleanup_errors=True) as place:
        home = Path(place)
        port = apache.free_port((0, 1))
        conf = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": name_server,
            "proxyMode": "CLUSTER",
            "grpcServerPort": port,
            "remotingListenPort": port + 1,
            "enableRemotingLocalProxyGrpc": False,
            "useEndpointPortFromRequest": True,
        }
        (home / "proxy.json").write_text(json.dumps(conf))
        command = ["java", *apache.JVM, "-Xmx1g", f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
        command += [
            "-cp",
            f"{lib}/*",
            "org.apache.rocketmq.proxy.ProxyStartup",
            "-pc",
            str(home / "proxy.json"),
        ]
        with open(home / "stdout.log", "wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=home)
        try:
            wait_for(process, port, home / "stdout.log")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            text = log.read_text(errors="replace")[-1000:]
            raise subprocess.SubprocessError(f"Apache's proxy did not start: {text}")
        time.sleep(0.1)


async def prepare(name_server: str) -> None:
    """The proxy serves only topics and groups that are there already."""
    async with AdminClient(name_server) as admin:
        await admin.create_topic("ClientBench", TopicSettings(read_queues=4, write_queues=4))
        await admin.update_group(SubscriptionGroupConfig(group_name=GROUP))


def client(arguments: list[str]) -> dict[str, float]:
    """Figures of what this client can do; batches and oneway sends are not in its API."""
    name_server, topic, _, seconds = arguments
    python = interpreter()
    asyncio.run(prepare(name_server))
    with proxy(name_server) as address, tempfile.TemporaryDirectory(prefix="bench-pypi-") as home:
        done = subprocess.run(
            [python, HERE / "pypi_load.py", address, topic, GROUP, seconds],
            stdout=subprocess.PIPE,
            check=True,
            timeout=PATIENCE_S,
            env={**os.environ, "HOME": home, "PYTHONPATH": ""},  # its log files go to the home folder
        )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
