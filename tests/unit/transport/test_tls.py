"""One port takes plain and TLS connections, told apart by their first byte."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from penstock.errors import ConnectFailed, InvalidArgument, SendFailed
from penstock.transport.client import Connection
from penstock.transport.tls import TlsSettings, client_context

ECHO, BIG = 11, 13
HERE = Path(__file__).parent / "tls"
CERTIFICATE, KEY = str(HERE / "certificate.pem"), str(HERE / "key.pem")


async def ask(address, tls):
    """With TLS 1.3 a client learns only after its handshake that its certificate was refused."""
    connection = await Connection.open(address, tls=tls)
    return await connection.request(ECHO)


def test_a_permissive_server_takes_both_kinds(run, serving, service_answering):
    service = service_answering(bytes(range(256)) * 10_000)

    async def main():
        async with serving(service, tls=TlsSettings(CERTIFICATE, KEY)) as address:
            plain = await Connection.open(address)
            secret = await Connection.open(address, tls=client_context(authorities=CERTIFICATE))
            for connection in (plain, secret):
                bodies = await asyncio.gather(*(connection.request(ECHO, body=b"%d" % n) for n in range(100)))
                assert [answer.body for answer in bodies] == [b"%d" % n for n in range(100)]
                big = bytes(3 << 20)
                assert (await connection.request(ECHO, body=big)).body == big
                assert (await connection.request(BIG)).body == service.big
                await connection.close()

    run(main())


def test_an_enforcing_server_refuses_plain_connections(run, serving, service):
    async def main():
        async with serving(service, tls=TlsSettings(CERTIFICATE, KEY, mode="enforcing")) as address:
            plain = await Connection.open(address)
            with pytest.raises(SendFailed):
                await plain.request(ECHO)
            secret = await Connection.open(address, tls=client_context(verify=False))
            assert (await secret.request(ECHO)).code == 0
            await secret.close()

    run(main())


def test_a_client_that_does_not_trust_the_server_does_not_connect(run, serving, service):
    async def main():
        async with serving(service, tls=TlsSettings(CERTIFICATE, KEY)) as address:
            with pytest.raises(ConnectFailed, match="certificate"):
                await Connection.open(address, tls=client_context())

    run(main())


def test_a_server_can_ask_for_client_certificates(run, serving, service):
    tls = TlsSettings(CERTIFICATE, KEY, client_authorities=CERTIFICATE)

    async def main():
        async with serving(service, tls=tls) as address:
            known = client_context(authorities=CERTIFICATE, certificate=CERTIFICATE, key=KEY)
            connection = await Connection.open(address, tls=known)
            assert (await connection.request(ECHO)).code == 0
            await connection.close()
            with pytest.raises((SendFailed, ConnectFailed)):
                await ask(address, client_context(authorities=CERTIFICATE))

    run(main())


def test_a_handshake_that_is_not_completed_is_given_up(run, serving, service):
    async def main():
        async with serving(service, tls=TlsSettings(CERTIFICATE, KEY), half_frame_ms=100) as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\x16\x03\x01\x02\x00\x01")
            assert await asyncio.wait_for(reader.read(), 3) == b""
            writer.close()

    run(main())


def test_a_certificate_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match=r"nothing\.pem"):
        TlsSettings(str(tmp_path / "nothing.pem"), KEY).server_context()


def test_a_client_context_checks_servers_unless_told_otherwise():
    assert client_context().verify_mode == ssl.CERT_REQUIRED
    assert client_context(verify=False).verify_mode == ssl.CERT_NONE
