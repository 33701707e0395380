from __future__ import annotations

import struct
import time

import pytest

from penstock.errors import ProtocolError
from penstock.wire.frame import MAX_FRAME, FrameDecoder, FrameError


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def test_many_frames_in_one_read_come_out_in_order() -> None:
    assert FrameDecoder().feed(framed(b"one") + framed(b"") + framed(b"three")) == [b"one", b"", b"three"]


def test_a_frame_is_held_back_until_its_last_byte() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(framed(b"hello")[:-1]) == []
    assert decoder.pending
    assert decoder.feed(b"o" + framed(b"next")[:2]) == [b"hello"]
    assert decoder.pending
    assert decoder.feed(framed(b"next")[2:]) == [b"next"]
    assert not decoder.pending


def test_byte_by_byte_equals_at_once() -> None:
    stream = b"".join(framed(bytes([size]) * size) for size in range(20))
    decoder = FrameDecoder()
    slowly = [frame for byte in stream for frame in decoder.feed(bytes([byte]))]
    assert slowly == FrameDecoder().feed(stream)


def test_frames_do_not_share_memory_with_a_reused_read_buffer() -> None:
    buffer = bytearray(framed(b"first"))
    (frame,) = FrameDecoder().feed(memoryview(buffer))
    buffer[4:] = b"xxxxx"
    assert frame == b"first"


@pytest.mark.parametrize("length", [-1, -(2**31), MAX_FRAME - 3, 2**31 - 1])
def test_an_impossible_length_fails_at_once_and_for_good(length: int) -> None:
    decoder = FrameDecoder()
    with pytest.raises(ProtocolError, match=str(length)):
        decoder.feed(struct.pack(">i", length))
    with pytest.raises(ProtocolError, match=str(length)):
        decoder.feed(framed(b"fine"))


def test_an_impossible_length_that_arrives_in_pieces_fails_with_its_fourth_byte() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"\x7f") == []
    assert decoder.feed(b"\xff\xff") == []
    with pytest.raises(ProtocolError):
        decoder.feed(b"\xff")


def test_good_frames_before_a_bad_length_are_not_lost() -> None:
    with pytest.raises(FrameError) as caught:
        FrameDecoder().feed(framed(b"good") + b"\xff\xff\xff\xff")
    assert caught.value.frames == [b"good"]


def test_the_largest_frame_passes() -> None:
    content = bytes(MAX_FRAME - 4)
    assert FrameDecoder().feed(framed(content)) == [content]


def test_a_large_frame_in_small_reads_is_not_copied_again_at_each_read() -> None:
    stream = framed(bytes(15 << 20))
    decoder = FrameDecoder()
    begin = time.perf_counter()
    for at in range(0, len(stream), 4096):
        frames = decoder.feed(stream[at : at + 4096])
    assert len(frames) == 1
    assert time.perf_counter() - begin < 1  # takes 30 ms; copying 29 GB would take many seconds
