"""The answer to a successful send, in one step: a broker writes more of these than of anything else."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Packer
from typing import Final

import msgspec

from penstock.message.rows import pack_rows
from penstock.wire.codes import PROTOCOL_VERSION, Language, ResponseCode
from penstock.wire.command import RESPONSE_FLAG

_TWO_INTS: Final = Packer(">ii")
_quote: Final = msgspec.json.Encoder().encode


class SendReplyWriter:
    """Frames like those of `encode_response` with a SendResponseHeader, for requests with JSON headers."""

    def __init__(self, region: str, trace_on: bool, id_prefix: str) -> None:
        """`id_prefix` is the store host's part of an offset message id."""
        self._id_prefix = id_prefix
        head = (
            b'{"code":%d,"extFields":{"MSG_REGION":%b,"TRACE_ON":"%b","msgId":"'
            % (ResponseCode.SUCCESS, _quote(region), b"true" if trace_on else b"false")
        ).replace(b"%", b"%%")
        end = b'"},"flag":%d,"language":"%b","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}' % (
            RESPONSE_FLAG,
            Language.PYTHON.name.encode(),
            PROTOCOL_VERSION,
        )
        place = b'","queueId":"%d","queueOffset":"%d'
        self._template = head + id_prefix.encode() + b"%016X" + place + b'","transactionId":"%b' + end
        self._batch_template = head + b"%b" + place + end

    def write(
        self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int, unique_key: str
    ) -> bytes:
        key = unique_key.encode()
        if not key.isalnum():
            key = _quote(unique_key)[1:-1]
        head = self._template % (physical_offset, queue_id, queue_offset, key, opaque)
        size = len(head)
        return _TWO_INTS.pack(size + 4, size) + head

    def write_batch(
        self, opaque: int, physical_offsets: Sequence[int], queue_id: int, queue_offset: int
    ) -> bytes:
        """The ids of all messages, and the queue offset of the first."""
        ids = self.batch_ids(physical_offsets).encode()
        head = self._batch_template % (ids, queue_id, queue_offset, opaque)
        size = len(head)
        return _TWO_INTS.pack(size + 4, size) + head

    def batch_ids(self, physical_offsets: Sequence[int]) -> str:
        """Offset message ids of a batch, which has at least one message, separated by commas."""
        digits = pack_rows("q", physical_offsets, len(physical_offsets)).hex(",", 8).upper()
        return self._id_prefix + digits.replace(",", f",{self._id_prefix}")
