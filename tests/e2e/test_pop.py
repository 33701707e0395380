"""POP over real sockets: what a client that speaks the protocol sees of a broker that runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.message.handles import Handle, parse_handle, parse_start_offsets
from penstock.message.record import split_records
from penstock.testing import RunningBroker, broker
from penstock.transport.client import Connection
from penstock.transport.loop import run
from penstock.wire.bodies import BatchAck, BatchAckMessageRequestBody, GroupLags
from penstock.wire.codes import RequestCode
from penstock.wire.command import Command
from penstock.wire.headers import (
    AckMessageHeader,
    GetGroupLagHeader,
    PopHeader,
    SendHeaderV2,
    UpdateAndCreateTopicHeader,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["sync", "async"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with broker(flush=request.param) as running:
        yield running


class Client:
    """One connection that pops."""

    def __init__(self, server: RunningBroker) -> None:
        self.server = server

    async def __aenter__(self) -> Client:
        self.connection = await Connection.open(self.server.address)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.connection.close()

    async def ask(self, code: int, header: Any = None, body: bytes = b"") -> Command:
        return await self.connection.request(code, header, body, 30_000)

    async def create(self, topic: str, queues: int = 1) -> None:
        header = UpdateAndCreateTopicHeader(topic, "TBW102", queues, queues, 6, "SINGLE_TAG", 0, False)
        answer = await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert answer.code == 0, answer.remark

    async def send(self, topic: str, body: bytes, queue_id: int = 0) -> None:
        header = SendHeaderV2("p", topic, "TBW102", 4, queue_id, 0, 1, 0, "")
        answer = await self.ask(RequestCode.SEND_MESSAGE_V2, header, body)
        assert answer.code == 0, answer.remark

    async def pop(self, topic: str, **fields: Any) -> tuple[Command, list[tuple[bytes, Handle]]]:
        asked = PopHeader(
            **{
                "consumer_group": "G",
                "topic": topic,
                "queue_id": -1,
                "max_msg_nums": 32,
                "invisible_time": 60_000,
                "poll_time": 0,
                **fields,
            }
        )
        answer = await self.ask(RequestCode.POP_MESSAGE, asked)
        found = []
        if answer.code == 0:
            ext = answer.ext
            starts = parse_start_offsets(ext["startOffsetInfo"])
            for record in split_records(answer.body or b""):
                given = record.find("POP_CK")
                found.append(
                    (
                        bytes(record.body),
                        parse_handle(given)
                        if given
                        else Handle(
                            starts[f"0@{record.queue_id}"],
                            int(ext["popTime"]),
                            int(ext["invisibleTime"]),
                            0,
                            "0",
                            self.server.broker_name,
                            record.queue_id,
                            record.queue_offset,
                        ),
                    )
                )
        return answer, found

    async def ack(self, topic: str, handle: Handle) -> int:
        header = AckMessageHeader(
            "G", handle.real_topic(topic, "G"), handle.queue_id, str(handle), handle.offset
        )
        return (await self.ask(RequestCode.ACK_MESSAGE, header)).code


@pytest.mark.scenario(17, 18)
@pytest.mark.behaviour("POP-9")
def test_a_waiting_pop_is_answered_within_a_tenth_of_a_second_or_in_its_time(server: RunningBroker) -> None:
    async def main() -> None:
        async with Client(server) as client:
            await client.create("t")
            waiting = asyncio.create_task(client.pop("t", poll_time=5_000))
            await asyncio.sleep(0.5)
            sent = time.monotonic()
            await client.send("t", b"now")
            _, found = await waiting
            assert time.monotonic() - sent < 0.5  # a busy machine; alone it is a hundredth of that
            assert [body for body, _ in found] == [b"now"]
            began = time.monotonic()
            answer, _ = await client.pop("t", poll_time=1_000)
            assert answer.code == 210
            assert 0.9 <= time.monotonic() - began < 1.5

    run(main())


@pytest.mark.scenario(8)
@pytest.mark.behaviour("POP-14")
def test_messages_popped_by_a_connection_that_dies_reach_another_consumer(server: RunningBroker) -> None:
    async def main() -> None:
        async with Client(server) as other:
            await other.create("t")
            for number in range(5):
                await other.send("t", b"m%d" % number)
            async with Client(server) as dying:
                asked = asyncio.create_task(dying.pop("t", invisible_time=1_000))
                await asyncio.sleep(0.02)  # the request has arrived; whether anybody reads the answer or not
                dying.connection.abort()
                await asyncio.gather(asked, return_exceptions=True)
            seen: list[bytes] = []
            while len(seen) < 5:
                answer, found = await other.pop("t", poll_time=4_000)
                assert answer.code == 0
                for body, handle in found:
                    assert await other.ack("t", handle) == 0
                    seen.append(body)
            assert sorted(seen) == [b"m%d" % number for number in range(5)]

    run(main())


@pytest.mark.scenario(22)
@pytest.mark.behaviour("POP-14")
def test_twelve_consumers_share_three_queues_without_loss_or_overlap(server: RunningBroker) -> None:
    total = 600

    async def consume(number: int, seen: dict[int, list[bytes]]) -> None:
        async with Client(server) as client:
            while sum(map(len, seen.values())) < total:
                _, found = await client.pop("t", max_msg_nums=4, poll_time=200)
                for body, handle in found:
                    assert await client.ack("t", handle) == 0
                    seen[number].append(body)

    async def main() -> None:
        async with Client(server) as client:
            await client.create("t", 3)
            seen: dict[int, list[bytes]] = {number: [] for number in range(12)}
            workers = [asyncio.create_task(consume(number, seen)) for number in seen]
            for number in range(total):
                await client.send("t", b"%d" % number, number % 3)
            await asyncio.gather(*workers)
            assert sorted(body for bodies in seen.values() for body in bodies) == sorted(
                b"%d" % number for number in range(total)
            )
            assert all(seen.values())

    run(main())


@pytest.mark.behaviour("POP-10", "POP-11")
def test_leases_and_acks_survive_a_kill_of_the_running_broker() -> None:
    with broker() as server:

        async def before() -> None:
            async with Client(server) as client:
                await client.create("t")
                for number in range(10):
                    await client.send("t", b"m%d" % number)
                _, found = await client.pop("t", invisible_time=3_000)
                assert len(found) == 10
                acks = [
                    BatchAck("G", "t", "0", found[0][1].start_offset, 0, 0, handle.pop_ms, 3_000, b"\x0f")
                    for _, handle in found[:1]
                ]
                body = BatchAckMessageRequestBody(server.broker_name, acks).encode()
                answer = await client.ask(RequestCode.BATCH_ACK_MESSAGE, None, body)
                assert answer.code == 0, answer.remark

        async def after() -> None:
            async with Client(server) as client:
                answer = await client.ask(RequestCode.GET_GROUP_LAG, GetGroupLagHeader("G"))
                (lag,) = GroupLags.decode(answer.body).lags
                assert (lag.in_flight + lag.ready, lag.delayed) == (6, 0)
                seen = []
                while len(seen) < 6:
                    answer, found = await client.pop("t", poll_time=5_000)
                    assert answer.code == 0
                    seen += [body for body, _ in found]
                assert sorted(seen) == [b"m%d" % number for number in range(4, 10)]

        run(before())
        server.kill()
        server.start()
        run(after())
