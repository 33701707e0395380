"""`penstock serve`, `penstock namesrv` and `penstock broker`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import __version__
from penstock.cli.data_directory import check_whole
from penstock.errors import InvalidArgument
from penstock.transport.loop import run

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings
    from penstock.transport.tls import TlsSettings

log = logging.getLogger("penstock.cli")

SWITCH_SECONDS = 0.0005
"""How long the thread that waits for the disk may be kept from telling that it is done."""
GC_ALLOCATIONS = 50_000
"""Requests leave no cycles behind, so looking for them after every 700 allocations is wasted time."""

DURABILITY = {
    "SYNC_FLUSH": "sync: an acknowledged message is on disk",
    "ASYNC_FLUSH": "async: an acknowledged message may be lost when the machine fails",
}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser("serve", help="a name server and a broker in one process")
    _common(serve)
    _broker_options(serve)
    serve.add_argument("--namesrv-port", type=int, default=9876, help="0 takes a free one (default 9876)")
    serve.add_argument(
        "--shards", type=int, default=1, metavar="N", help="N broker processes under one name server"
    )
    serve.set_defaults(run=run_serve)

    namesrv = commands.add_parser("namesrv", help="a name server alone")
    _common(namesrv)
    namesrv.add_argument("--namesrv-port", type=int, default=9876, help="0 takes a free one (default 9876)")
    namesrv.set_defaults(run=run_namesrv)

    broker = commands.add_parser("broker", help="a broker that registers with name servers elsewhere")
    _common(broker)
    _broker_options(broker)
    broker.add_argument(
        "--name-server",
        default=os.environ.get("NAMESRV_ADDR") or "127.0.0.1:9876",
        metavar="HOST:PORT",
        help="one or more, separated by ';' (default NAMESRV_ADDR or 127.0.0.1:9876)",
    )
    # the parent of a shard holds its standard input open: when the parent dies, however it does, that ends
    broker.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)
    broker.set_defaults(run=run_broker)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=Path("data"), help="data directory (default ./data)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--ready-file", type=Path, metavar="PATH", help="written as JSON once all is ready")
    parser.add_argument("--log-level", default="warning", choices=("debug", "info", "warning", "error"))


def _broker_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broker-port", type=int, default=10911, help="0 takes a free one (default 10911)")
    parser.add_argument("--flush", choices=("sync", "async"), help="when a send is answered (default sync)")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings: TOML, or Apache's broker.conf with its own keys",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting, by the same keys"
    )


# ---- settings -----------------------------------------------------------------------------------


def broker_settings(options: argparse.Namespace) -> tuple[BrokerSettings, TlsSettings | None]:
    """Later ones win: the file, the options, then each --set."""
    from penstock.broker.settings import BrokerSettings

    properties = _read_config(options.config) if options.config else {}
    properties.setdefault("brokerIP1", _public_address(options.host))
    properties["listenPort"] = str(options.broker_port)
    if options.flush:
        properties["flushDiskType"] = f"{options.flush.upper()}_FLUSH"
    for pair in options.set:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidArgument(f"--set {pair}: expected KEY=VALUE")
        properties[key.strip()] = value
    tls = _tls_settings(properties)
    settings = BrokerSettings.from_properties(properties)
    if settings.not_understood:
        log.warning("settings without effect on this broker: %s", ", ".join(sorted(settings.not_understood)))
    return settings, tls


def _tls_settings(properties: dict[str, str]) -> TlsSettings | None:
    """Takes Apache's tls.server.* keys out: the settings that tools can read must not hold a password.

    A broker that takes only TLS also uses it towards its name servers.
    """
    from penstock.transport.tls import TlsSettings

    found = {key: properties.pop(key) for key in list(properties) if key.startswith("tls.server.")}
    mode = found.get("tls.server.mode", "permissive")
    if not found or mode == "disabled":
        return None
    if mode not in ("permissive", "enforcing"):
        raise InvalidArgument(f"tls.server.mode={mode}: expected disabled, permissive or enforcing")
    try:
        return TlsSettings(
            found["tls.server.certPath"],
            found["tls.server.keyPath"],
            found.get("tls.server.keyPassword"),
            "enforcing" if mode == "enforcing" else "permissive",
            found.get("tls.server.trustCertPath"),
        )
    except KeyError as error:
        raise InvalidArgument(f"TLS needs {error.args[0]}") from None


def _read_config(path: Path) -> dict[str, str]:
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path}: not a text file") from None
    if path.suffix != ".toml":
        from penstock.wire.properties_text import parse_properties

        return dict(parse_properties(text))
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path}: {error}") from None
    tables = [key for key, value in values.items() if isinstance(value, dict | list)]
    if tables:
        raise InvalidArgument(f"{path}: {tables[0]} is a table; settings are plain KEY = VALUE lines")
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()
    }


def _public_address(host: str) -> str:
    """What clients are told to connect to: the listening address, unless that means every interface."""
    from penstock.message.ids import local_ip

    if host in ("0.0.0.0", "::", ""):
        return local_ip()
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise InvalidArgument(f"--host {host}: {error.strerror}") from None


# ---- running ------------------------------------------------------------------------------------


def run_serve(options: argparse.Namespace) -> int:
    if options.shards < 1:
        raise InvalidArgument(f"--shards {options.shards}: at least 1")
    _prepare(options)
    if options.shards == 1:
        return run(_serve(options))
    from penstock.cli.shards import serve_shards

    return run(serve_shards(options))


async def _serve(options: argparse.Namespace) -> int:
    from penstock.runtime.node import Node

    settings, tls = broker_settings(options)
    check_whole(options.data)
    stop = stop_signal()
    node = Node(settings, options.data, host=options.host, namesrv_port=options.namesrv_port, tls=tls)
    await node.start()
    _tune_process()
    brokers = [{"name": settings.broker_name, "address": node.broker.address, "pid": os.getpid()}]
    announce(options, node.namesrv.address, brokers, DURABILITY[settings.flush_disk_type])
    await stop.wait()
    await node.stop()
    return 0


def run_namesrv(options: argparse.Namespace) -> int:
    _prepare(options)
    return run(_namesrv(options))


async def _namesrv(options: argparse.Namespace) -> int:
    from penstock.namesrv import NamesrvSettings
    from penstock.runtime.namesrv import NamesrvRuntime

    stop = stop_signal()
    settings = NamesrvSettings(listen_port=options.namesrv_port)
    namesrv = NamesrvRuntime(settings, options.data, host=options.host)
    await namesrv.start()
    _tune_process()
    announce(options, namesrv.address, [], None)
    await stop.wait()
    await namesrv.stop()
    return 0


def run_broker(options: argparse.Namespace) -> int:
    _prepare(options)
    return run(_broker(options))


async def _broker(options: argparse.Namespace) -> int:
    from penstock.client.config import parse_addresses
    from penstock.runtime.broker import BrokerRuntime
    from penstock.runtime.registration import Registrar
    from penstock.transport.tls import client_context

    addresses = parse_addresses(options.name_server)
    if not addresses:
        raise InvalidArgument("--name-server: an address is needed, for example 127.0.0.1:9876")

    settings, tls = broker_settings(options)
    settings.namesrv_addr = options.name_server
    stop = stop_signal()
    if options.with_parent:
        _stop_with_parent(stop)
    secret = tls is not None and tls.mode == "enforcing"
    registrar = Registrar(addresses, tls=client_context(verify=False) if secret else None)
    broker = BrokerRuntime(settings, options.data, host=options.host, registrar=registrar, tls=tls)
    await broker.open()
    await broker.start()
    _tune_process()
    brokers = [{"name": settings.broker_name, "address": broker.address, "pid": os.getpid()}]
    announce(options, options.name_server, brokers, DURABILITY[settings.flush_disk_type])
    await stop.wait()
    await broker.stop()
    return 0


# ---- what people and programs see ---------------------------------------------------------------


def _prepare(options: argparse.Namespace) -> None:
    """Finds before the start what would spoil it at its end."""
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    for name in ("namesrv_port", "broker_port"):
        port = getattr(options, name, 0)
        if not 0 <= port <= 65_535:
            raise InvalidArgument(f"--{name.replace('_', '-')} {port}: expected 0 to 65535")
    if options.ready_file is not None:
        if not options.ready_file.parent.is_dir():
            raise InvalidArgument(f"--ready-file {options.ready_file}: there is no such directory")
        options.ready_file.unlink(missing_ok=True)  # what another run left would say "ready" too early


def _tune_process() -> None:
    """For a long life with many connections: descriptors, and garbage looked for rarely."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 50)
    sys.setswitchinterval(SWITCH_SECONDS)


def stop_signal() -> asyncio.Event:
    """Set by Ctrl-C and SIGTERM; a second one ends at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def request_stop(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, request_stop, number)
    return stop


def _stop_with_parent(stop: asyncio.Event) -> None:
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def parent_ended() -> None:
        stop.set()
        loop.remove_reader(descriptor)

    loop.add_reader(descriptor, parent_ended)


def announce(
    options: argparse.Namespace, name_server: str, brokers: list[dict[str, Any]], flush: str | None
) -> None:
    lines = [f"Penstock {__version__} is ready", f"  name server  {name_server}"]
    lines += [f"  broker       {broker['name']} at {broker['address']}" for broker in brokers]
    lines.append(f"  data         {options.data.resolve()}")
    if flush is not None:
        lines.append(f"  flush        {flush}")
    lines.append("Ctrl-C stops it.")
    print("\n".join(lines), flush=True)
    if options.ready_file is not None:
        facts = {"name_server": name_server, "brokers": brokers}
        temporary = options.ready_file.with_name(f"{options.ready_file.name}.tmp")
        temporary.write_bytes(msgspec.json.encode(facts))
        temporary.rename(options.ready_file)
