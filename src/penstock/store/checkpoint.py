"""The checkpoint: up to where everything derived from the log is on disk, so that recovery can start there.

Apache's part is three store times. Times are coarse and Apache knows nothing of our background writing, so
behind its fields, in bytes it never reads, we keep an exact log position and the number of queues that had
files then. They count only while Apache's fields are still those we wrote with them: another broker that has
worked here since changes its fields, and then its times are the truth.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

import msgspec

from penstock.store.disk import Disk

PATH: Final = "checkpoint"
SIZE: Final = 4096
_TIMES: Final = struct.Struct(">qqq")
_OWN_AT: Final = 256
"""In the sector of Apache's fields, so that a torn write cannot separate the two."""
_OWN: Final = struct.Struct(">8sqqqqq")
_OWN_MAGIC: Final = b"PNSTKC02"
_CRC: Final = struct.Struct(">I")
_SLACK_MS: Final = 3000
"""Protocol: how far behind its times a checkpoint is taken to be."""


class Checkpoint(msgspec.Struct, frozen=True):
    log_ms: int = 0
    """Store time of the newest record known to be on the medium."""
    queue_ms: int = 0
    """The same for consume-queue entries."""
    index_ms: int = 0
    """End time of the newest full index file."""
    position: int | None = None
    """Records below it are on the medium, and what is derived from them. None if a stranger wrote last."""
    queues: int = 0
    """With files on the medium."""

    @property
    def min_ms(self) -> int:
        return max(0, min(self.log_ms, self.queue_ms) - _SLACK_MS)


def load_checkpoint(disk: Disk) -> Checkpoint:
    if not disk.exists(PATH):
        return Checkpoint()
    data = disk.read_bytes(PATH)
    if len(data) < _TIMES.size:
        return Checkpoint()
    times: tuple[int, int, int] = _TIMES.unpack_from(data)
    position, queues = None, 0
    own = data[_OWN_AT : _OWN_AT + _OWN.size]
    if len(data) >= _OWN_AT + _OWN.size + _CRC.size:
        (crc,) = _CRC.unpack_from(data, _OWN_AT + _OWN.size)
        magic, *found, log_ms, queue_ms, index_ms = _OWN.unpack(own)
        if magic == _OWN_MAGIC and crc == crc32(own) and (log_ms, queue_ms, index_ms) == times:
            position, queues = found
    return Checkpoint(*times, position, queues)


def save_checkpoint(disk: Disk, checkpoint: Checkpoint) -> None:
    times = (checkpoint.log_ms, checkpoint.queue_ms, checkpoint.index_ms)
    own = _OWN.pack(_OWN_MAGIC, checkpoint.position or 0, checkpoint.queues, *times)
    created = not disk.exists(PATH)
    file = disk.open(PATH, size=SIZE, create=True)
    try:
        file.write(0, _TIMES.pack(*times).ljust(_OWN_AT, b"\0") + own + _CRC.pack(crc32(own)))
        file.sync()
    finally:
        file.close()
    if created:
        disk.sync_dir("")
