"""Bits of the sysFlag field of a stored message."""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2

TRANSACTION_MASK: Final = 0xC
PREPARED: Final = 0x4
COMMIT: Final = 0x8
ROLLBACK: Final = 0xC

BORN_V6: Final = 0x10
STORE_V6: Final = 0x20
HOSTS_V6: Final = BORN_V6 | STORE_V6

INNER_BATCH_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
INNER_BATCH_MASK: Final = INNER_BATCH_UNWRAP | INNER_BATCH

COMPRESSION_MASK: Final = 0x700
LZ4: Final = 0x100
ZSTD: Final = 0x200
ZLIB: Final = 0x300
