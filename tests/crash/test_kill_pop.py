"""kill -9 of a real `penstock serve` under POP load, again and again: what consumers were told holds.

The moment of the kill falls anywhere between pop, journal, reply, ack, change and revival; the fault disk of
the simulation covers every single write.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import RemotingError
from penstock.message.handles import Handle, parse_handle, parse_start_offsets, real_topic
from penstock.message.record import split_records
from penstock.testing.history import History
from penstock.transport.client import Connection
from penstock.wire.command import Command

KILLS, FULL_KILLS = 2, 40
INVISIBLE_MS = (300, 900, 2_500)
SEND, POP, ACK, CHANGE = 310, 200050, 200051, 200053


def now_ms() -> int:
    return int(time.time() * 1000)


class Load:
    def __init__(self, rng: random.Random, kill_seen_ms: int = 30_000) -> None:
        self.rng = rng
        # How late a busy machine is must not decide this test: the simulation measures lateness.
        self.history = History(late_ms=kill_seen_ms, late_after_start_ms=kill_seen_ms)
        self.number = 0
        self.held: list[Handle] = []

    async def ask(self, connection: Connection, code: int, body: bytes = b"", **ext: Any) -> Command:
        fields = {key: str(value) for key, value in ext.items()}
        return await connection.request(code, fields, body, timeout_ms=20_000)

    async def send(self, connection: Connection) -> None:
        self.number += 1
        message = f"m{self.number}"
        self.history.send_asked(message)
        ext = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": self.number % 4, "f": 0, "g": 1, "h": 0}
        answer = await self.ask(connection, SEND, message.encode(), **ext, i="", j=0, k="false")
        assert answer.code == 0, answer.remark
        self.history.sent(message, now_ms())

    async def pop(self, connection: Connection) -> list[Handle]:
        invisible_ms, asked_ms = self.rng.choice(INVISIBLE_MS), now_ms()
        fields = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": -1,
            "maxMsgNums": self.rng.choice((1, 4, 32)),
        }
        fields |= {"invisibleTime": invisible_ms, "pollTime": 300, "bornTime": 0, "initMode": 0}
        try:
            answer = await self.ask(connection, POP, **fields)
        except RemotingError:
            self.history.pop_lost(now_ms(), invisible_ms)
            raise
        if answer.code != 0:
            assert answer.code in (17, 210), answer.remark
            if answer.code == 17:
                await asyncio.sleep(0.05)
            return []
        found = [self.take(record, answer.ext) for record in split_records(answer.body or b"")]
        assert found
        assert int(answer.ext["popTime"]) >= asked_ms - 1
        self.held = [*self.held[-100:], *found]
        return found

    def take(self, record: Any, ext: dict[str, str]) -> Handle:
        given = record.find("POP_CK")
        if given is not None:
            handle = parse_handle(given)
        else:
            start = parse_start_offsets(ext["startOffsetInfo"])[f"0@{record.queue_id}"]
            times = int(ext["popTime"]), int(ext["invisibleTime"])
            handle = Handle(start, *times, 0, "0", self.broker_name, record.queue_id, record.queue_offset)
        self.history.delivered(
            bytes(record.body).decode(),
            handle,
            now_ms(),
            until_ms=handle.pop_ms + handle.invisible_ms,
            attempt=record.reconsume_times,
        )
        return handle

    def fields(self, handle: Handle) -> dict[str, Any]:
        topic = real_topic("T", "G", handle.retry_flag)
        ext = {"consumerGroup": "G", "topic": topic, "queueId": handle.queue_id, "offset": handle.offset}
        return {**ext, "extraInfo": handle}

    async def ack(self, connection: Connection, handle: Handle) -> None:
        # The broker looks at it later than it is sent, so an ack in the last moment may be too late.
        self.history.ack_asked(handle, now_ms() + 200)
        answer = await self.ask(connection, ACK, **self.fields(handle))
        if answer.code == 0 and now_ms() < handle.pop_ms + handle.invisible_ms:
            self.history.acked(handle)

    async def change(self, connection: Connection, handle: Handle) -> None:
        invisible_ms = self.rng.choice(INVISIBLE_MS)
        self.history.change_asked(handle, now_ms() + invisible_ms)
        answer = await self.ask(connection, CHANGE, **self.fields(handle), invisibleTime=invisible_ms)
        if answer.code == 0:
            pop_ms = int(answer.ext["popTime"])
            new = handle._replace(start_offset=handle.offset, pop_ms=pop_ms, invisible_ms=invisible_ms)
            self.history.changed(handle, new, pop_ms + invisible_ms)
            self.held.append(new)

    async def consume(self, connection: Connection) -> None:
        await self.pop(connection)
        for handle in self.rng.sample(self.held, min(8, len(self.held))):
            await (self.change if self.rng.random() < 0.2 else self.ack)(connection, handle)

    async def run(self, address: str, process: Any) -> None:
        asyncio.get_running_loop().call_later(self.rng.uniform(0.3, 1.0), process.send_signal, signal.SIGKILL)
        connections = [await Connection.open(address, connect_timeout_ms=10_000) for _ in range(3)]

        async def until_broken(work: Callable[[Connection], Any], connection: Connection) -> None:
            try:
                while True:
                    await work(connection)
            except RemotingError:
                pass

        works = (self.send, self.send, self.consume, self.consume, self.consume, self.consume)
        await asyncio.gather(
            *(until_broken(work, connections[n % 3]) for n, work in enumerate(works)),
        )
        for connection in connections:
            await connection.close()

    async def drain(self, address: str) -> None:
        connection = await Connection.open(address, connect_timeout_ms=10_000)
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < max(INVISIBLE_MS) / 1000 + 1.5:
            for handle in await self.pop(connection):
                quiet_since = time.monotonic()
                await self.ack(connection, handle)
        await connection.close()
        self.history.finished(now_ms())


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.scenario(34, 35, 36, 37, 38)
@pytest.mark.behaviour("POP-7", "POP-10", "POP-11")
def test_consumers_get_what_they_were_promised_by_a_broker_that_is_killed(
    start: Callable[..., Any], pytestconfig: pytest.Config, tmp_path: Any
) -> None:
    load = Load(random.Random(7))
    kills = FULL_KILLS if pytestconfig.getoption("--crash-full", default=False) else KILLS
    for _ in range(kills):
        serve = start("serve", "--data", str(tmp_path / "data"))
        load.broker_name = serve.facts["brokers"][0]["name"]
        load.history.started(now_ms())
        asyncio.run(load.run(serve.addresses[0], serve.process))
        load.history.crashed(now_ms())
        serve.end()
    serve = start("serve", "--data", str(tmp_path / "data"))
    load.history.started(now_ms())
    asyncio.run(load.drain(serve.addresses[0]))
    assert load.number > 20
    assert load.history.violations == []
