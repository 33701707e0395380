"""`penstock serve --shards N`: more cores, more brokers, each a process with a directory of its own."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import msgspec

from penstock.cli.data_directory import NAME_SERVER, check_shards, shard_name
from penstock.cli.serve import DURABILITY, announce, broker_settings, stop_signal
from penstock.errors import PenstockError


async def serve_shards(options: argparse.Namespace) -> int:
    """The name server here, every broker in a process of its own; if one dies, all stop."""
    from penstock.namesrv import NamesrvSettings
    from penstock.runtime.namesrv import NamesrvRuntime

    settings, tls = broker_settings(options)
    check_shards(options.data, options.shards)
    stop = stop_signal()
    namesrv = NamesrvRuntime(
        NamesrvSettings(listen_port=options.namesrv_port),
        options.data / NAME_SERVER,
        host=options.host,
        tls=tls,
    )
    await namesrv.start()
    shards = [Shard(options, namesrv.address, index) for index in range(options.shards)]
    try:
        for shard in shards:
            await shard.start()
        brokers = [await shard.ready() for shard in shards]
        announce(options, namesrv.address, brokers, DURABILITY[settings.flush_disk_type])
        stopped = asyncio.create_task(stop.wait())
        ended = [asyncio.create_task(shard.ended()) for shard in shards]
        await asyncio.wait([stopped, *ended], return_when=asyncio.FIRST_COMPLETED)
        died = [shard.name for shard, task in zip(shards, ended, strict=True) if task.done()]
        for task in (stopped, *ended):
            task.cancel()
        if died:
            raise PenstockError(f"{', '.join(died)} ended by itself; all shards are being stopped")
    finally:
        await asyncio.gather(*(shard.stop() for shard in shards))
        await namesrv.stop()
    return 0


class Shard:
    """One broker process of `serve --shards`."""

    def __init__(self, options: argparse.Namespace, name_server: str, index: int) -> None:
        self.name = shard_name(index)
        self._data = options.data / self.name
        self._ready_file = self._data.with_suffix(".ready")
        port = options.broker_port + 10 * index if options.broker_port else 0
        self._command = [sys.executable, "-m", "penstock.cli", "broker", "--with-parent"]
        self._command += ["--name-server", name_server]
        self._command += ["--data", str(self._data), "--host", options.host, "--broker-port", str(port)]
        self._command += ["--ready-file", str(self._ready_file), "--log-level", options.log_level]
        if options.config:
            self._command += ["--config", str(options.config)]
        if options.flush:
            self._command += ["--flush", options.flush]
        for pair in (*options.set, f"brokerName={self.name}"):
            self._command += ["--set", pair]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        # in a session of its own: Ctrl-C goes to the parent alone, which stops the shards in order
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    async def ready(self) -> dict[str, Any]:
        assert self._process is not None
        while not self._ready_file.exists():
            if self._process.returncode is not None:
                raise PenstockError(f"{self.name} did not start")
            await asyncio.sleep(0.01)
        facts = msgspec.json.decode(self._ready_file.read_bytes())
        self._ready_file.unlink()
        broker: dict[str, Any] = facts["brokers"][0]
        return broker

    async def ended(self) -> None:
        assert self._process is not None
        await self._process.wait()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
