from __future__ import annotations

import builtins
import zlib

import pytest

from penstock.errors import CorruptRecord, InvalidArgument, MissingExtra
from penstock.message import compression
from penstock.message.compression import compress, decompress
from penstock.message.sysflag import COMPRESSED, LZ4, ZLIB, ZSTD

KINDS = [pytest.param(ZLIB, id="zlib"), pytest.param(LZ4, id="lz4"), pytest.param(ZSTD, id="zstd")]
BODY = b"a body that repeats itself " * 1000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"", b"x", BODY])
def test_a_body_comes_back_as_it_was(kind, body):
    packed = compress(body, kind, 5)
    assert decompress(packed, COMPRESSED | kind) == body
    assert decompress(memoryview(packed), COMPRESSED | kind) == body


def test_a_body_without_the_flag_is_plain():
    assert decompress(BODY, ZLIB) == BODY


def test_old_senders_set_no_kind_and_mean_zlib():
    assert decompress(zlib.compress(BODY), COMPRESSED) == BODY


def test_zstd_frames_of_a_stream_do_not_state_their_size():
    zstandard = pytest.importorskip("zstandard")
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(BODY) + stream.flush()
    assert zstandard.frame_content_size(packed) == -1
    assert decompress(packed, COMPRESSED | ZSTD) == BODY


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"\xff" * 40, lambda data: b""]
)
def test_a_damaged_body_is_a_corrupt_record(kind, damage):
    with pytest.raises(CorruptRecord):
        decompress(damage(compress(BODY, kind, 5)), COMPRESSED | kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_may_not_grow_without_bound(kind, monkeypatch):
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_BYTES", len(BODY))
    assert decompress(compress(BODY, kind, 5), COMPRESSED | kind) == BODY
    with pytest.raises(CorruptRecord):
        decompress(compress(BODY + b"x", kind, 5), COMPRESSED | kind)


def test_a_zstd_stream_may_not_grow_without_bound(monkeypatch):
    zstandard = pytest.importorskip("zstandard")
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(BODY) + stream.flush()
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_BYTES", len(BODY) - 1)
    with pytest.raises(CorruptRecord):
        decompress(packed, COMPRESSED | ZSTD)


def test_unknown_kinds_are_refused():
    with pytest.raises(CorruptRecord, match="unknown compression kind"):
        decompress(b"x", COMPRESSED | 0x400)
    with pytest.raises(InvalidArgument):
        compress(b"x", 0x400, 5)


@pytest.mark.parametrize("kind", [LZ4, ZSTD])
def test_without_the_extra_the_error_says_what_to_install(kind, monkeypatch):
    real_import = builtins.__import__

    def no_extra(name, *rest):
        if name.partition(".")[0] in ("lz4", "zstandard"):
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_extra)
    with pytest.raises(MissingExtra, match=r"penstock\[compression\]"):
        compress(b"x", kind, 5)
