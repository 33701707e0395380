"""Servers meet well-behaved, broken, slow and silent peers on real sockets."""

from __future__ import annotations

import asyncio
import resource
import struct
from itertools import pairwise

import pytest

from penstock import limits
from penstock.transport.client import Connection
from penstock.transport.server import Server
from penstock.wire.command import ONEWAY_FLAG, decode_command, encode_command

ECHO, SILENT, BIG, BREAK, HANG_UP = 11, 12, 13, 14, 16


async def raw(address):
    host, port = address.split(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 26)


async def read_frame(reader):
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return decode_command(await reader.readexactly(size))


async def closed_by_server(reader, seconds=5.0):
    try:
        return await asyncio.wait_for(reader.read(), seconds) == b""
    except ConnectionResetError:
        return True


def test_pipelined_requests_are_all_answered_in_one_turn(run, serving, service):
    async def main():
        async with serving(service) as address:
            reader, writer = await raw(address)
            writer.write(b"".join(encode_command(ECHO, n, body=b"%d" % n) for n in range(500)))
            answers = [await read_frame(reader) for _ in range(500)]
            writer.close()
        assert [(a.opaque, a.body, a.is_response) for a in answers] == [
            (n, b"%d" % n, True) for n in range(500)
        ]
        assert service.batches < 50

    run(main())


def test_a_frame_that_comes_byte_by_byte_is_answered(run, serving, service):
    async def main():
        async with serving(service) as address:
            reader, writer = await raw(address)
            for byte in encode_command(ECHO, 5, body=b"slow"):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await read_frame(reader)).body == b"slow"
            writer.close()

    run(main())


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(struct.pack(">i", limits.MAX_FRAME_BYTES), id="oversized"),
        pytest.param(struct.pack(">i", -1), id="negative length"),
        pytest.param(struct.pack(">ii", 8, 2_000) + b"abcd", id="header longer than the frame"),
        pytest.param(struct.pack(">ii", 8, 4) + b"{{{{", id="header that is not JSON"),
        pytest.param(struct.pack(">ii", 8, (9 << 24) | 4) + b"abcd", id="unknown encoding"),
        pytest.param(struct.pack(">i", 2) + b"ab", id="frame without header"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(b"\x16\x03\x01\x02\x00", id="TLS where there is none"),
    ],
)
def test_a_malformed_frame_closes_that_connection_only(run, serving, service, junk):
    async def main():
        async with serving(service) as address:
            good = await Connection.open(address)
            reader, writer = await raw(address)
            writer.write(encode_command(ECHO, 1) + junk)
            assert (await read_frame(reader)).opaque == 1
            assert await closed_by_server(reader)
            writer.close()
            assert (await good.request(ECHO, body=b"still here")).body == b"still here"
            assert len(service.gone) == 1
            await good.close()

    run(main())


def test_what_came_before_a_malformed_frame_ends_its_turn(run, serving, service, until):
    """Else what a oneway send brought would wait for the next request of anybody."""
    junk = struct.pack(">ii", 8, 4) + b"{{{{"

    async def main():
        async with serving(service) as address:
            reader, writer = await raw(address)
            writer.write(encode_command(SILENT, 1, flag=ONEWAY_FLAG) + junk)
            assert await closed_by_server(reader)
            writer.close()
            await until(lambda: service.batches)
            assert len(service.handled) == 1

    run(main())


def test_a_truncated_frame_is_forgotten_with_its_connection(run, serving, service, until):
    async def main():
        async with serving(service) as address:
            _, writer = await raw(address)
            writer.write(encode_command(ECHO, 1, body=b"x" * 1000)[:500])
            await writer.drain()
            writer.close()
            await until(lambda: len(service.gone) == 1)
            assert service.handled == []

    run(main())


def test_a_half_sent_frame_is_given_up_after_its_deadline(run, serving, service):
    async def main():
        async with serving(service, half_frame_ms=120) as address:
            reader, writer = await raw(address)
            patient, patient_writer = await raw(address)
            writer.write(encode_command(ECHO, 1)[:3])
            assert await closed_by_server(reader, 2)
            patient_writer.write(encode_command(ECHO, 2))
            assert (await read_frame(patient)).opaque == 2  # no frame begun, so no deadline
            writer.close()
            patient_writer.close()

    run(main())


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(run, serving, service):
    async def main():
        async with serving(service, idle_ms=300) as address:
            idle, idle_writer = await raw(address)
            busy = await Connection.open(address)
            waiting = asyncio.create_task(closed_by_server(idle, 3))
            for _ in range(10):
                await busy.request(ECHO)
                await asyncio.sleep(0.08)
            assert await waiting
            assert not busy.closed
            idle_writer.close()
            await busy.close()

    run(main())


def test_a_bug_in_the_service_answers_system_error_and_the_connection_lives(run, serving, service, caplog):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address)
            answer = await connection.request(BREAK)
            assert (answer.code, answer.remark) == (1, "RuntimeError: a bug")
            assert (await connection.request(ECHO)).code == 0
            await connection.close()

    run(main())
    assert "a bug" in caplog.text


def test_a_service_can_close_a_connection(run, serving, service, until):
    async def main():
        async with serving(service) as address:
            reader, writer = await raw(address)
            writer.write(encode_command(ECHO, 1) + encode_command(HANG_UP, 2) + encode_command(ECHO, 3))
            assert (await read_frame(reader)).opaque == 1
            assert await closed_by_server(reader)
            assert [command.opaque for command in service.handled] == [1, 2]
            await until(lambda: len(service.gone) == 1)
            writer.close()

    run(main())


def test_peers_know_where_they_come_from(run, serving, service, until):
    async def main():
        async with serving(service) as address:
            _, writer = await raw(address)
            local = writer.get_extra_info("sockname")
            writer.write(encode_command(SILENT, 1))
            await until(lambda: service.handled)
            (peer,) = service.peers
            assert peer.remote == local
            assert peer.remote_host == b"\x7f\x00\x00\x01" + struct.pack(">i", local[1])
            writer.close()

    run(main())


def test_a_slow_reader_is_served_no_more_until_it_reads(run, serving, service_answering):
    service = service_answering(bytes(1 << 20))
    requests = 100

    async def main():
        async with serving(service) as address:
            reader, writer = await raw(address)
            reader._limit = 1  # the stream itself stops reading, as a stuck application would
            writer.write(b"".join(encode_command(BIG, n) for n in range(requests)))
            await asyncio.sleep(0.3)
            served = len(service.handled)
            assert served < requests / 2
            bytes_read = 0
            reader._limit = 1 << 26
            for n in range(requests):
                answer = await read_frame(reader)
                assert answer.opaque == n
                bytes_read += len(answer.body)
            assert bytes_read == requests << 20
            writer.close()

    run(main())


def test_a_flood_on_one_connection_leaves_the_others_their_turns(run, serving, service, until):
    flood = 40 * limits.TURN_REQUESTS

    async def main():
        async with serving(service) as address:
            good = await Connection.open(address)
            _, writer = await raw(address)
            writer.write(b"".join(encode_command(SILENT, n, flag=ONEWAY_FLAG) for n in range(flood)))
            await until(lambda: service.handled)
            before = len(service.handled)
            assert (await good.request(ECHO, body=b"in between")).body == b"in between"
            assert len(service.handled) - before < flood / 2
            writer.close()
            await until(lambda: len(service.handled) > flood)  # what was sent is served, whoever has left
        floods = [command.opaque for command in service.handled if command.code == SILENT]
        assert floods == list(range(flood))

    run(main())


def test_large_answers_to_one_connection_take_turns_with_the_others(run, serving, service_answering):
    service = service_answering(bytes(limits.TURN_ANSWER_BYTES))
    served_at_end_of_turn = []
    service.batch_end = lambda: served_at_end_of_turn.append(len(service.handled))

    async def main():
        async with serving(service) as address:
            reader, writer = await raw(address)
            writer.write(b"".join(encode_command(BIG, n) for n in range(12)))
            assert [(await read_frame(reader)).opaque for _ in range(12)] == list(range(12))
            writer.close()
        steps = [after - before for before, after in pairwise([0, *served_at_end_of_turn])]
        assert max(steps) == 1

    run(main())


def test_memory_stays_bounded_under_slow_readers(serving, service_answering, uvloop_run):
    """Answers are slices of one mapping, so what waits for slow readers is not copied."""
    service = service_answering(bytes(256 * 1024))
    readers = 200

    async def main():
        async with serving(service) as address:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            streams = [await raw(address) for _ in range(readers)]
            for reader, writer in streams:
                reader._transport.pause_reading()
                writer.write(b"".join(encode_command(BIG, n) for n in range(1000)))
            await asyncio.sleep(1)
            growth_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert len(service.handled) < readers * 200
            # 1,000 answers of 256 KiB to each would be 50 GB; the bound of copies would be 800 MB
            assert growth_kib < 150 * 1024
            for _, writer in streams:
                writer.transport.abort()

    uvloop_run(main())


def test_two_thousand_idle_connections_are_held_cheaply(serving, service, uvloop_run, until):
    count = 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * count + 200:
        pytest.skip("too few file descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count + 200), hard))

    async def main():
        async with serving(service) as address:
            host, port = address.split(":")
            loop = asyncio.get_running_loop()
            transports = []
            for _ in range(count):
                transport, _ = await loop.create_connection(asyncio.Protocol, host, int(port))
                transports.append(transport)
            await until(lambda: len(service.peers) == count)
            tasks = asyncio.all_tasks()
            assert len(tasks) < 5
            connection = await Connection.open(address)
            assert (await connection.request(ECHO, body=b"x")).body == b"x"
            await connection.close()
            for transport in transports:
                transport.abort()
            await until(lambda: len(service.gone) == count + 1, 20)

    uvloop_run(main())


def test_closing_a_server_lets_replies_leave(run, service, until):
    async def main():
        server = Server(service, host="127.0.0.1", port=0)
        await server.start()
        reader, writer = await raw("{}:{}".format(*server.address))
        writer.write(encode_command(ECHO, 9, body=b"x" * 100_000))
        await until(lambda: service.handled)
        await server.close()
        assert (await read_frame(reader)).opaque == 9
        assert await closed_by_server(reader)
        writer.close()
        assert service.gone == service.peers

    run(main())


def test_a_port_in_use_is_an_os_error(run, serving, service):
    async def main():
        async with serving(service) as address:
            with pytest.raises(OSError, match="already in use"):
                await Server(service, host="127.0.0.1", port=int(address.split(":")[1])).start()

    run(main())
