from __future__ import annotations

import ipaddress
import os
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from penstock.errors import InvalidArgument
from penstock.message import ids


def test_offset_ids_are_those_of_the_reference(table):
    for row in table("ids")["offsetIds"]:
        assert ids.offset_id(ids.pack_host(row["host"], row["port"]), row["offset"]) == row["id"]
        ip, port, offset = ids.parse_offset_id(row["id"])
        assert ipaddress.ip_address(ip) == ipaddress.ip_address(row["host"])
        assert (port, offset) == (row["port"], row["decodedOffset"])


@pytest.mark.parametrize(
    "text", ["", "xyz", "7F00000100002A9F00000000000000", "7F00000100002A9F 0000000000000000", "GG" * 16]
)
def test_anything_else_is_no_offset_id(text):
    with pytest.raises(InvalidArgument, match="not an offset message id"):
        ids.parse_offset_id(text)


def test_hosts_have_8_bytes_for_ipv4_and_20_for_ipv6():
    assert ids.pack_host("10.0.0.2", 10911).hex() == "0a00000200002a9f"
    assert ids.unpack_host(ids.pack_host("10.0.0.2", 10911)) == ("10.0.0.2", 10911)
    assert len(ids.pack_host("2001:db8::1", 10911)) == 20
    assert ids.unpack_host(ids.pack_host("2001:db8::1", 10911)) == ("2001:db8::1", 10911)


def test_an_ipv4_peer_of_a_dual_stack_socket_is_ipv4():
    assert ids.pack_host("::ffff:10.0.0.2", 1) == ids.pack_host("10.0.0.2", 1)


def test_the_zone_of_a_link_local_address_is_not_packed():
    assert ids.pack_host("fe80::1%eth0", 1) == ids.pack_host("fe80::1", 1)


@pytest.mark.parametrize(("ip", "port"), [("localhost", 1), ("", 1), ("10.0.0.1", -1), ("10.0.0.1", 65_536)])
def test_what_is_no_address_is_refused(ip, port):
    with pytest.raises(InvalidArgument):
        ids.pack_host(ip, port)


def test_bytes_of_another_length_are_no_host():
    with pytest.raises(InvalidArgument):
        ids.unpack_host(b"123456789")


def parts(unique_id: str) -> tuple[bytes, int, int, int, int]:
    data = bytes.fromhex(unique_id)
    return (data[:-12], *struct.unpack(">HIIH", data[-12:]))


def test_a_unique_id_names_host_process_time_and_number():
    before_ms = time.time_ns() // 1_000_000
    first, second = ids.unique_id(), ids.unique_id()
    after_ms = time.time_ns() // 1_000_000
    ip, pid, constant, time_ms, number = parts(first)
    assert first == first.upper()
    assert len(ip) in (4, 16)
    assert pid == os.getpid() & 0xFFFF
    month = datetime.fromtimestamp(before_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    month_ms = int(month.timestamp() * 1000)
    assert before_ms <= month_ms + time_ms <= after_ms
    assert parts(second)[:3] == (ip, pid, constant)
    assert parts(second)[4] == (number + 1) & 0xFFFF


def test_the_reference_counts_time_in_the_same_way(table):
    os.environ["TZ"] = "Etc/UTC"
    time.tzset()
    try:
        row = table("ids")["uniqueIds"][0]
        assert row["zone"] == "Etc/UTC"
        ip, pid, _, time_ms, number = parts(row["id"])
        assert (str(ipaddress.ip_address(ip)), pid, number) == (row["ip"], row["pid"], 0)
        assert ids._month_of(row["now"]).start_ms + time_ms == row["time"]
    finally:
        del os.environ["TZ"]
        time.tzset()


def test_time_starts_again_with_a_new_month(monkeypatch):
    december = int(datetime(2026, 12, 31, 23, 59, 59, 999_000).timestamp() * 1000)
    times = iter([december, december + 1, december + 24 * 3_600_000, december])
    monkeypatch.setattr(ids.time, "time_ns", lambda: next(times) * 1_000_000)
    monkeypatch.setattr(ids, "_sender", None)
    ids._new_sender()
    assert parts(ids.unique_id())[3] == 0
    assert parts(ids.unique_id())[3] == 24 * 3_600_000 - 1
    assert parts(ids.unique_id())[3] == december - ids._month_of(december).start_ms  # the clock was set back


def test_many_ids_at_once_are_like_those_made_one_by_one():
    before, many, after = ids.unique_id(), ids.unique_ids(3), ids.unique_id()
    first = parts(before)
    assert [parts(one)[4] for one in (*many, after)] == [first[4] + place & 0xFFFF for place in range(1, 5)]
    assert {parts(one)[:3] for one in many} == {first[:3]}
    assert first[3] <= parts(many[0])[3] <= parts(after)[3]


def test_unique_ids_of_threads_differ():
    with ThreadPoolExecutor(8) as pool:
        one_by_one = pool.map(lambda _: [ids.unique_id() for _ in range(2000)], range(8))
        many = pool.map(lambda _: [*ids.unique_ids(1000), *ids.unique_ids(1000)], range(8))
        made = [one for batches in (one_by_one, many) for batch in batches for one in batch]
    assert len(set(made)) == 32_000


FORK = """
import os
from penstock.message.ids import unique_id
print(os.getpid(), unique_id(), flush=True)
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    print(os.getpid(), unique_id(), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_unique_ids_of_a_forked_process_differ():
    # In a process of its own: a test runner may have threads, and those do not go with fork.
    output = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True).stdout
    (parent_pid, parent), (child_pid, child) = (line.split() for line in output.splitlines())
    assert parts(parent)[1] == int(parent_pid) & 0xFFFF
    assert parts(child)[1] == int(child_pid) & 0xFFFF
    assert parts(child)[2] != parts(parent)[2]


def test_a_host_without_a_network_uses_loopback(monkeypatch):
    def no_socket(*_):
        raise OSError("network is unreachable")

    monkeypatch.setattr(ids.socket, "socket", no_socket)
    assert ids.local_ip() == "127.0.0.1"
