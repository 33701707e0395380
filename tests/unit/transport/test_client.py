"""Every request made on a connection ends exactly once: answered, timed out, or failed."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from penstock import limits
from penstock.errors import ConnectFailed, MessageTooLarge, RequestTimeout, SendFailed, TooManyRequests
from penstock.transport.client import GATHERED_BYTES, Connection
from penstock.wire.command import encode_command

ECHO, SILENT, BIG, CALL_BACK, HANG_UP = 11, 12, 13, 15, 16


@pytest.mark.behaviour("RPC-2")
def test_each_of_many_requests_gets_its_own_response(run, serving, service):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address)
            answers = await asyncio.gather(
                *(connection.request(ECHO, {"n": str(n)}, body=b"%d" % n) for n in range(2_000))
            )
            assert [(a.ext["n"], a.body) for a in answers] == [(str(n), b"%d" % n) for n in range(2_000)]
            assert connection.in_flight == 0
            assert service.batches < 200  # the requests of one turn travel together
            await connection.close()

    run(main())


@pytest.mark.behaviour("RPC-2")
def test_a_response_nobody_waits_for_is_dropped(run, talking):
    async def answer_twice(reader, writer):
        await reader.read(1000)
        writer.write(
            encode_command(0, 1, flag=1, body=b"first") + encode_command(0, 1, flag=1, body=b"second")
        )
        writer.write(encode_command(0, 999, flag=1))
        await reader.read()

    async def main():
        async with talking(answer_twice) as address:
            connection = await Connection.open(address)
            assert (await connection.request(ECHO)).body == b"first"
            await asyncio.sleep(0.02)
            assert not connection.closed
            await connection.close()

    run(main())


@pytest.mark.behaviour("RPC-3", "RPC-5")
def test_no_answer_in_time_is_a_timeout_and_the_connection_lives(run, serving, service):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address)
            loop = asyncio.get_running_loop()
            begin = loop.time()
            with pytest.raises(RequestTimeout, match="request 12"):
                await connection.request(SILENT, timeout_ms=150)
            assert 0.14 < loop.time() - begin < 1.15
            assert connection.in_flight == 0
            assert (await connection.request(ECHO)).code == 0
            await connection.close()

    run(main())


@pytest.mark.behaviour("RPC-5")
def test_a_short_timeout_made_after_a_long_one_is_kept(run, serving, service):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address)
            long = connection.request_nowait(SILENT, timeout_ms=20_000)
            begin = asyncio.get_running_loop().time()
            with pytest.raises(RequestTimeout):
                await connection.request(SILENT, timeout_ms=100)
            assert asyncio.get_running_loop().time() - begin < 1.1
            assert not long.done()
            await connection.close()
            with pytest.raises(SendFailed):
                await long

    run(main())


@pytest.mark.behaviour("RPC-3", "RPC-4")
def test_a_lost_connection_fails_all_that_waits_on_it(run, serving, service):
    async def main():
        async with serving(service) as address:
            closed = []
            connection = await Connection.open(address, on_close=closed.append)
            futures = [connection.request_nowait(SILENT) for _ in range(10)]
            hang_up = connection.request_nowait(HANG_UP)
            results = await asyncio.gather(*futures, hang_up, return_exceptions=True)
            assert {type(result) for result in results} == {SendFailed}
            assert closed == [connection]
            assert connection.in_flight == 0
            with pytest.raises(SendFailed):
                await connection.request(ECHO)
            with pytest.raises(SendFailed):
                await connection.oneway(ECHO)

    run(main())


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:9", "no port", "127.0.0.1:x"])
def test_an_address_that_cannot_be_reached_is_connect_failed(run, address):
    async def main():
        with pytest.raises(ConnectFailed, match=address.split(":")[0]):
            await Connection.open(address, connect_timeout_ms=2_000)

    run(main())


@pytest.mark.behaviour("RPC-4")
def test_requests_in_flight_are_bounded_and_each_place_is_given_back(run, serving, service):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address, max_in_flight=4)
            held = [connection.request_nowait(SILENT, timeout_ms=300) for _ in range(4)]
            with pytest.raises(TooManyRequests):
                connection.request_nowait(ECHO)
            with pytest.raises(TooManyRequests):
                await connection.request(ECHO, timeout_ms=50)
            waiting = asyncio.gather(*(connection.request(ECHO, body=b"%d" % n) for n in range(50)))
            results = await asyncio.gather(*held, return_exceptions=True)
            assert [type(result) for result in results] == [RequestTimeout] * 4
            assert [answer.body for answer in await waiting] == [b"%d" % n for n in range(50)]
            assert connection.in_flight == 0
            await connection.close()

    run(main())


@pytest.mark.behaviour("RPC-4")
def test_a_caller_that_gives_up_leaves_nothing_behind(run, serving, service, until):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address)
            task = asyncio.create_task(connection.request(SILENT, timeout_ms=100))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: connection.in_flight == 0)
            await connection.close()

    run(main())
    gc.collect()


@pytest.mark.behaviour("RPC-7")
def test_a_oneway_is_sent_and_nothing_is_awaited(run, serving, service, until):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address)
            for _ in range(5):
                await connection.oneway(SILENT, {"a": "b"}, b"body")
            await until(lambda: len(service.handled) == 5)
            assert all(command.is_oneway and command.body == b"body" for command in service.handled)
            assert connection.in_flight == 0
            await connection.close()

    run(main())


@pytest.mark.behaviour("RPC-4", "RPC-7")
def test_a_server_that_does_not_read_holds_callers_back(run, talking):
    async def main():
        release = asyncio.Event()

        async def do_not_read(reader, writer):
            writer.transport.pause_reading()
            await release.wait()

        async with talking(do_not_read) as address:
            connection = await Connection.open(address)
            body = bytes(1 << 20)
            for _ in range(64):
                try:
                    connection.oneway_nowait(SILENT, body=body)
                except TooManyRequests:
                    break
                await asyncio.sleep(0)
            else:
                pytest.fail("64 MiB were taken for a server that reads nothing")
            with pytest.raises(TooManyRequests, match="does not read"):
                connection.oneway_nowait(SILENT)
            with pytest.raises(TooManyRequests, match="no room"):
                await connection.request(SILENT, timeout_ms=50)
            connection.abort()
            release.set()

    run(main())


def test_requests_of_the_server_reach_the_callback_and_are_answered(run, serving, service, until):
    async def main():
        async with serving(service) as address:
            seen = []

            def on_request(connection, request):
                seen.append(request.code)
                connection.respond(request, 0, body=b"yes")

            connection = await Connection.open(address, on_request=on_request)
            await connection.oneway(CALL_BACK)
            await until(lambda: len(service.handled) == 2)
            answer = service.handled[1]
            assert (answer.is_response, answer.opaque, answer.body) == (True, 77, b"yes")
            assert seen == [40]
            await connection.close()

    run(main())


def test_without_a_callback_the_server_learns_that_its_request_is_not_supported(run, serving, service, until):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address)
            await connection.oneway(CALL_BACK)
            await until(lambda: len(service.handled) == 2)
            assert service.handled[1].code == 3
            await connection.close()

    run(main())


@pytest.mark.behaviour("RPC-6")
def test_hooks_run_before_every_request_and_after_every_response(run, serving, service):
    calls = []

    class Sign:
        def before_request(self, address, code, ext, body):
            ext["Signature"] = f"{code}/{len(body)}"
            calls.append("before")

        def after_response(self, address, code, ext, response):
            calls.append(("after", code, ext["Signature"], response.ext["Signature"]))

    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address, hooks=[Sign()])
            await connection.request(ECHO, {"a": "b"}, b"xyz")
            await connection.oneway(SILENT)
            await connection.request(ECHO)
            assert service.handled[0].ext == {"a": "b", "Signature": "11/3"}
            await connection.close()

    run(main())
    assert calls == [
        "before",
        ("after", 11, "11/3", "11/3"),
        "before",
        "before",
        ("after", 11, "11/0", "11/0"),
    ]


def test_bodies_of_every_size_arrive_whole(run, serving, service):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address)
            for size in (0, 1, 65_535, 65_536, 4 << 20):
                body = bytes(size)
                assert ((await connection.request(ECHO, body=body)).body or b"") == body
            with pytest.raises(MessageTooLarge):
                await connection.request(ECHO, body=bytes(limits.MAX_FRAME_BYTES))
            assert connection.in_flight == 0
            await connection.close()

    run(main())


def test_a_server_that_does_not_speak_the_protocol_fails_the_request(run, talking):
    async def speak_http(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read(1)

    async def main():
        async with talking(speak_http) as address:
            connection = await Connection.open(address)
            with pytest.raises(SendFailed, match="frame length"):
                await connection.request(ECHO)

    run(main())


def test_an_idle_connection_is_closed_by_the_client_too(run, serving, service, until):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address, idle_ms=50)
            await until(lambda: connection.closed, 2)

    run(main())


@pytest.mark.behaviour("RPC-2")
def test_a_lone_request_does_not_overtake_what_was_written_before_it_in_the_same_turn(run, serving, service):
    async def main():
        async with serving(service) as address:
            connection = await Connection.open(address)
            connection.oneway_nowait(SILENT, {"n": "first"})
            await connection.request(ECHO, {"n": "second"})
            await connection.request(ECHO, {"n": "third"})
            assert [command.ext["n"] for command in service.handled] == ["first", "second", "third"]
            await connection.close()

    run(main())


def test_a_lone_request_does_not_overtake_what_was_written_before_it_on_other_connections(
    run, serving, service
):
    async def main():
        async with serving(service) as address:
            teller, asker = await Connection.open(address), await Connection.open(address)
            for round_ in range(20):
                teller.oneway_nowait(SILENT, {"n": f"told {round_}"})
                await asker.request(ECHO, {"n": f"asked {round_}"})
            told = [command.ext["n"] for command in service.handled]
            assert told == [f"{what} {round_}" for round_ in range(20) for what in ("told", "asked")]
            await teller.close()
            await asker.close()

    run(main())


def _taken(peer: socket.socket) -> bytes:
    """What has arrived, without giving the event loop a turn."""
    try:
        return peer.recv(1 << 20)
    except BlockingIOError:
        return b""


def test_a_lone_request_leaves_at_once_and_small_frames_in_portions(run):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = await Connection.open(f"127.0.0.1:{listener.getsockname()[1]}")
            peer, _ = listener.accept()
            with peer:
                peer.setblocking(False)
                alone = asyncio.ensure_future(connection.request_nowait(ECHO, {"n": "alone"}))
                assert b"alone" in _taken(peer)
                among = asyncio.ensure_future(connection.request_nowait(ECHO, {"n": "among"}))
                assert not _taken(peer)
                await asyncio.sleep(0.01)
                assert b"among" in _taken(peer)
                connection.oneway_nowait(SILENT, body=b"few")
                assert not _taken(peer)
                for _ in range(20):
                    connection.oneway_nowait(SILENT, body=bytes(GATHERED_BYTES // 8))
                arrived = len(_taken(peer))
                assert GATHERED_BYTES <= arrived < 20 * GATHERED_BYTES // 8
                await connection.close()
                assert arrived + len(_taken(peer)) > 20 * GATHERED_BYTES // 8
            for request in (alone, among):
                with pytest.raises(SendFailed):
                    await request

    run(main())
