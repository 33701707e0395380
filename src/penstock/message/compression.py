"""Compressed bodies: zlib always, lz4 and zstd where the `compression` extra is installed."""

from __future__ import annotations

import zlib
from typing import Any, Final

from penstock.errors import CorruptRecord, InvalidArgument, MissingExtra
from penstock.limits import MAX_DECOMPRESSED_BYTES
from penstock.message.record import Buffer
from penstock.message.sysflag import COMPRESSED, COMPRESSION_MASK, LZ4, ZLIB, ZSTD

_TOO_LARGE: Final = f"a compressed body grows beyond {MAX_DECOMPRESSED_BYTES} bytes"
_INSTALL: Final = "pip install 'penstock[compression]'"


def compress(data: Buffer, kind: int, level: int) -> bytes:
    """Body bytes for a sysFlag of `COMPRESSED | kind`."""
    if kind == ZLIB:
        return zlib.compress(data, level)
    if kind == LZ4:
        return bytes(_lz4().compress(data, compression_level=level))
    if kind == ZSTD:
        return bytes(_zstd().ZstdCompressor(level=level).compress(data))
    raise InvalidArgument(f"not a compression kind: {kind:#x}")


def decompress(data: Buffer, sys_flag: int) -> bytes:
    """The body as its sender had it; CorruptRecord if it is damaged or would grow beyond the limit."""
    if not sys_flag & COMPRESSED:
        return bytes(data)
    kind = sys_flag & COMPRESSION_MASK
    if kind in (ZLIB, 0):  # senders from before there was a choice set no kind
        return _inflate(data)
    if kind == LZ4:
        return _unpack_lz4(data)
    if kind == ZSTD:
        return _unpack_zstd(data)
    raise CorruptRecord(f"unknown compression kind in sysFlag {sys_flag:#x}")


def _inflate(data: Buffer) -> bytes:
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(data, MAX_DECOMPRESSED_BYTES + 1)
    except zlib.error as error:
        raise CorruptRecord(f"a zlib body cannot be read: {error}") from None
    return _check_whole(body, stream.eof)


def _unpack_lz4(data: Buffer) -> bytes:
    stream = _lz4().LZ4FrameDecompressor()
    try:
        body = bytes(stream.decompress(data, MAX_DECOMPRESSED_BYTES + 1))
    except RuntimeError as error:
        raise CorruptRecord(f"an lz4 body cannot be read: {error}") from None
    return _check_whole(body, stream.eof)


def _unpack_zstd(data: Buffer) -> bytes:
    zstd = _zstd()
    try:
        # The bound of decompress() only holds for frames that do not state their size, as streams do not.
        if zstd.frame_content_size(data) > MAX_DECOMPRESSED_BYTES:
            raise CorruptRecord(_TOO_LARGE)
        return bytes(zstd.ZstdDecompressor().decompress(data, MAX_DECOMPRESSED_BYTES))
    except zstd.ZstdError as error:
        raise CorruptRecord(f"a zstd body cannot be read: {error}") from None


def _check_whole(body: bytes, ended: bool) -> bytes:
    if len(body) > MAX_DECOMPRESSED_BYTES:
        raise CorruptRecord(_TOO_LARGE)
    if not ended:
        raise CorruptRecord("a compressed body is cut off")
    return body


def _lz4() -> Any:
    try:
        import lz4.frame  # type: ignore[import-untyped]  # ships no types
    except ImportError:
        raise MissingExtra(f"lz4 bodies need an extra: {_INSTALL}") from None
    return lz4.frame


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra(f"zstd bodies need an extra: {_INSTALL}") from None
    return zstandard
