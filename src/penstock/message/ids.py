"""Hosts as bytes, and the two ids of a message: where it is stored, and the one its sender gave it."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import time
from datetime import datetime
from functools import lru_cache
from itertools import count, islice
from typing import Final, NamedTuple

from penstock.errors import InvalidArgument

_OFFSET_ID_BYTES: Final = (16, 28)
_OFFSET: Final = struct.Struct(">q")
_PORT: Final = struct.Struct(">i")


@lru_cache(4096)
def pack_host(ip: str, port: int) -> bytes:
    """An address as records hold it: 4 or 16 bytes and the port, so 8 or 20 bytes."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        raise InvalidArgument(f"not an IP address: {ip!r}") from None
    if not 0 <= port <= 65_535:
        raise InvalidArgument(f"not a port: {port}")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped  # a dual-stack socket's view of an IPv4 peer
    return address.packed + _PORT.pack(port)


@lru_cache(4096)
def unpack_host(data: bytes) -> tuple[str, int]:
    """The address and port in 8 or 20 bytes."""
    if len(data) not in (8, 20):
        raise InvalidArgument(f"a packed host has 8 or 20 bytes, not {len(data)}")
    return str(ipaddress.ip_address(data[:-4])), _PORT.unpack_from(data, len(data) - 4)[0]


def offset_id(host: bytes, physical_offset: int) -> str:
    """The id that says where a message is stored: packed store host and place in the commit log."""
    return (host + _OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_id(text: str) -> tuple[str, int, int]:
    """IP, port and physical offset of an offset id."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in _OFFSET_ID_BYTES or len(text) != 2 * len(data):
        raise InvalidArgument(f"not an offset message id: {text!r}")
    ip, port = unpack_host(data[:-8])
    return ip, port, _OFFSET.unpack_from(data, len(data) - 8)[0]


# ---- the unique id ----------------------------------------------------------------------------------


class _Month(NamedTuple):
    start_ms: int
    end_ms: int


class _Sender:
    """What the ids of one process share. Replaced as a whole after a fork."""

    def __init__(self) -> None:
        ip = ipaddress.ip_address(local_ip())
        head = ip.packed + struct.pack(">H", os.getpid() & 0xFFFF) + os.urandom(4)
        self.prefix = head.hex().upper()
        self.numbers = count()  # next() on it is atomic, so threads need no lock
        self.month = _month_of(time.time_ns() // 1_000_000)
        self.stamp = (-1, "")

    def stamp_of(self, now_ms: int) -> str:
        """What all ids of a millisecond begin with; many are made in one."""
        start_ms, end_ms = self.month
        if not start_ms <= now_ms < end_ms:
            self.month = month = _month_of(now_ms)
            start_ms = month.start_ms
        text = f"{self.prefix}{now_ms - start_ms:08X}"
        self.stamp = (now_ms, text)  # one assignment: other threads see both or neither
        return text


_sender: _Sender | None = None


def unique_id() -> str:
    """A new UNIQ_KEY: unique over hosts, processes (also forked ones) and threads."""
    sender = _sender or _new_sender()
    now_ms = time.time_ns() // 1_000_000
    stamp_ms, stamp = sender.stamp
    if stamp_ms != now_ms:
        stamp = sender.stamp_of(now_ms)
    return "%s%04X" % (stamp, next(sender.numbers) & 0xFFFF)  # noqa: UP031, half the cost of an f-string


def unique_ids(wanted: int) -> list[str]:
    """As many, at most 65,536, from one look at the clock."""
    sender = _sender or _new_sender()
    stamp = sender.stamp_of(time.time_ns() // 1_000_000)
    return ["%s%04X" % (stamp, number & 0xFFFF) for number in islice(sender.numbers, wanted)]  # noqa: UP031


def _new_sender() -> _Sender:
    global _sender
    _sender = _Sender()
    return _sender


def _forget_sender() -> None:
    global _sender
    _sender = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_sender)


def _month_of(now_ms: int) -> _Month:
    """The local month around a time: ids count milliseconds from its start, so that 32 bits are enough."""
    start = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    year, month = (start.year, start.month + 1) if start.month < 12 else (start.year + 1, 1)
    end = start.replace(year=year, month=month)
    return _Month(int(start.timestamp() * 1000), int(end.timestamp() * 1000))


def local_ip() -> str:
    """The address this host would use to reach others. Asks the kernel's routing table only: connecting a
    datagram socket sends nothing."""
    for family, far_away in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far_away, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"
