"""The real Apache RocketMQ on loopback: jars by the pom, servers as child processes, a driven Java client."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VERSION = "5.5.0"
CACHE = Path(os.environ.get("PENSTOCK_CACHE", "~/.cache/penstock")).expanduser() / f"rocketmq-{VERSION}"

SMALL_JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k"]
"""Quick to start and small: right for tests, wrong for benchmarks."""

JVM = [
    "-Djava.net.preferIPv4Stack=true",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
]


def jars() -> Path:
    """The folder with Apache's jars; Maven fetches them the first time."""
    lib = CACHE / "lib"
    if not (CACHE / "complete").exists():
        for tool in ("java", "mvn"):
            if shutil.which(tool) is None:
                raise RuntimeError(f"the interop tests need {tool}: install Java 17 or newer and Maven")
        lib.mkdir(parents=True, exist_ok=True)
        command = ["mvn", "-q", "-B", "-f", HERE / "java" / "pom.xml", "dependency:copy-dependencies"]
        subprocess.run([*map(str, command), f"-DoutputDirectory={lib}"], check=True)
        (CACHE / "complete").touch()
    return lib


def driver_classes() -> Path:
    """Our own Java driver, compiled once for each version of its source."""
    source = HERE / "java" / "Driver.java"
    classes = CACHE / "classes" / hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    marker = classes / "Driver.class"
    if not marker.exists():
        classes.mkdir(parents=True, exist_ok=True)
        subprocess.run(["javac", "-d", classes, "-cp", f"{jars()}/*", source], check=True)
    return classes


def java_command(
    main: str, args: Sequence[object], *, home: Path, flags: Sequence[str], heap: str
) -> list[str]:
    path = f"{jars()}/*{os.pathsep}{driver_classes()}"
    properties = [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
    return ["java", *JVM, *flags, f"-Xmx{heap}", *properties, "-cp", path, main, *map(str, args)]


def free_port(around: Sequence[int] = (0,)) -> int:
    """A port p such that p + d is free for every d: a broker also takes p - 2 and p + 1.

    Below those that the system gives to outgoing connections: it takes seconds until a server is up, and what
    connects meanwhile could get its second port.
    """
    for _ in range(200):
        port = random.randrange(10_000, 32_000)
        try:
            for delta in around:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + delta))
        except OSError:
            continue
        return port
    raise RuntimeError("no free ports")


def call(
    address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[dict[str, Any], bytes]:
    """One request with a JSON header, written by hand so that it shares no code with what is tested."""
    host, port = address.rsplit(":", 1)
    header = {
        "code": code,
        "language": "PYTHON",
        "version": 513,
        "opaque": 1,
        "flag": 0,
        "extFields": fields or {},
    }
    head = json.dumps(header).encode()
    with socket.create_connection((host, int(port)), 5) as sock, sock.makefile("rb") as stream:
        sock.sendall(struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body)
        (length,) = struct.unpack(">i", stream.read(4))
        frame = stream.read(length)
    size = int.from_bytes(frame[1:4], "big")
    return json.loads(frame[4 : 4 + size]), frame[4 + size :]


class Server:
    """One Apache process."""

    def __init__(self, main: str, address: str, home: Path, *, flags: Sequence[str], heap: str) -> None:
        self.main, self.address, self.home, self.flags, self.heap = main, address, home, flags, heap
        self.process: subprocess.Popen[bytes] | None = None
        self.start_seconds = 0.0

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, ready: Any, timeout_s: float = 180.0) -> None:
        began = time.monotonic()
        log = self.home / "stdout.log"
        with open(log, "ab") as out:
            command = java_command(
                self.main, ["-c", self.home / "server.conf"], home=self.home, flags=self.flags, heap=self.heap
            )
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.home
            )
        while True:
            with contextlib.suppress(OSError, ValueError, struct.error):
                if ready():
                    break
            if self.process.poll() is not None or time.monotonic() - began > timeout_s:
                self.kill()
                raise RuntimeError(
                    f"Apache server did not start, see {log}:\n{log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.05)
        self.start_seconds = time.monotonic() - began

    def stop(self) -> None:
        """SIGTERM is Apache's clean stop."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Cluster:
    """A name server and brokers below one folder."""

    def __init__(
        self,
        home: Path,
        *,
        brokers: int = 1,
        name_server: str | None = None,
        settings: Mapping[str, object] | None = None,
        flags: Sequence[str] = SMALL_JVM,
        heap: str = "512m",
        store: Path | None = None,
        broker_name: str = "broker-a",
        pair: bool = False,
    ) -> None:
        """With `pair` the one broker has a slave, as the second of `self.brokers`."""
        self.home = home
        self.namesrv: Server | None = None
        if name_server is None:
            port = free_port()
            name_server = f"127.0.0.1:{port}"
            conf = {"listenPort": port, "bindAddress": "127.0.0.1"}
            self.namesrv = self._server("namesrv.NamesrvStartup", "namesrv", name_server, conf, flags, "128m")
        self.name_server = name_server
        self.brokers: list[Server] = []
        for index in range(2 if pair else brokers):
            name = broker_name if brokers == 1 else f"broker-{'abcdefgh'[index]}"
            slave = pair and index == 1
            folder = f"{name}-slave" if slave else name
            port = free_port((-2, 0, 1))
            conf = {
                "brokerClusterName": "DefaultCluster",
                "brokerName": name,
                "brokerId": int(slave),
                "brokerRole": "SLAVE" if slave else "ASYNC_MASTER",
                "slaveReadEnable": str(pair).lower(),  # or a slave answers every pull with SYSTEM_BUSY
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",  # where the slave finds its master's log
                "bindAddress": "127.0.0.1",
                "listenPort": port,
                "haListenPort": port + 1,
                "namesrvAddr": name_server,
                "storePathRootDir": store or home / folder / "store",
                **(settings or {}),
            }
            self.brokers.append(
                self._server("broker.BrokerStartup", folder, f"127.0.0.1:{port}", conf, flags, heap)
            )

    def _server(
        self, main: str, name: str, address: str, conf: Mapping[str, object], flags: Sequence[str], heap: str
    ) -> Server:
        home = self.home / name
        home.mkdir(parents=True, exist_ok=True)
        (home / "server.conf").write_text("".join(f"{key}={value}\n" for key, value in conf.items()))
        return Server(f"org.apache.rocketmq.{main}", address, home, flags=flags, heap=heap)

    def _registered(self, address: str) -> bool:
        header, body = call(self.name_server, 106)
        return header["code"] == 0 and f'"{address}"'.encode() in body

    def start_broker(self, broker: Server) -> None:
        broker.start(lambda: self._registered(broker.address))

    def start(self) -> Cluster:
        try:
            if self.namesrv is not None:
                self.namesrv.start(lambda: call(self.name_server, 106)[0]["code"] == 0)
            for broker in self.brokers:
                self.start_broker(broker)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for server in (*self.brokers, self.namesrv):
            if server is not None:
                server.stop()

    def kill(self) -> None:
        for server in (*self.brokers, self.namesrv):
            if server is not None:
                server.kill()


SMALL_FILES: Mapping[str, object] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "maxMessageSize": 1 << 19,
    "waitTimeMillsInSendQueue": 10_000,  # the default of 200 ms answers SYSTEM_BUSY on a busy machine
}


@contextlib.contextmanager
def cluster(**options: Any) -> Iterator[Cluster]:
    """An Apache cluster with small files in a temporary folder; a store elsewhere is closed cleanly."""
    with tempfile.TemporaryDirectory(prefix="apache-", ignore_cleanup_errors=True) as place:
        options["settings"] = {**SMALL_FILES, **options.get("settings", {})}
        running = Cluster(Path(place), **options).start()
        try:
            yield running
        finally:
            if options.get("store"):
                running.stop()
            running.kill()  # a clean stop takes half a minute, for a folder that goes anyway


class JavaError(Exception):
    """The Java side raised; `kind` is its class name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class JavaClient:
    """Apache's own Java client and mqadmin, in one process that lives for a whole test run."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="java-client-", ignore_cleanup_errors=True)
        home = Path(self._home.name)
        self._log = open(home / "stderr.log", "wb")  # noqa: SIM115, closed by close()
        command = java_command("Driver", [], home=home, flags=SMALL_JVM, heap="512m")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        assert self._answer() == {"ready": True}

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the Java client ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def call(self, op: str, **request: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **request}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise JavaError(answer["error"], answer["message"])
        return answer["result"]

    def mqadmin(self, command: str, *args: object) -> str:
        """What the mqadmin command printed."""
        text: str = self.call("mqadmin", args=[command, *map(str, args)])
        return text

    def received(self, subscriber: str, count: int, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        """What the subscriber's listener saw, once it saw at least `count` messages."""
        deadline = time.monotonic() + timeout_s
        while True:
            seen: list[dict[str, Any]] = self.call("received", id=subscriber)
            if len(seen) >= count:
                return seen
            if time.monotonic() > deadline:
                raise AssertionError(f"{subscriber} saw {len(seen)} of {count} messages in {timeout_s} s")
            time.sleep(0.1)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
        self._home.cleanup()
