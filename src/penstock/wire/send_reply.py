"""The answer to a successful send, in one step: a broker writes more of these than of anything else."""

from __future__ import annotations

from struct import Struct as Packer
from typing import Final

import msgspec

from penstock.wire.codes import PROTOCOL_VERSION, Language, ResponseCode
from penstock.wire.command import RESPONSE_FLAG

_TWO_INTS: Final = Packer(">ii")
_quote: Final = msgspec.json.Encoder().encode


class SendReplyWriter:
    """Frames like those of `encode_response` with a SendResponseHeader, for requests with JSON headers."""

    def __init__(self, region: str, trace_on: bool, id_prefix: str) -> None:
        """`id_prefix` is the store host's part of an offset message id."""
        self._template = (
            b'{"code":%d,"extFields":{"MSG_REGION":%b,"TRACE_ON":"%b","msgId":"%b'
            % (
                ResponseCode.SUCCESS,
                _quote(region),
                b"true" if trace_on else b"false",
                id_prefix.encode(),
            )
        ).replace(b"%", b"%%") + (
            b'%%016X","queueId":"%%d","queueOffset":"%%d","transactionId":"%%b"},"flag":%d,"language":"%b",'
            b'"opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
            % (RESPONSE_FLAG, Language.PYTHON.name.encode(), PROTOCOL_VERSION)
        )

    def write(
        self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int, unique_key: str
    ) -> bytes:
        key = unique_key.encode()
        if not key.isalnum():
            key = _quote(unique_key)[1:-1]
        head = self._template % (physical_offset, queue_id, queue_offset, key, opaque)
        size = len(head)
        return _TWO_INTS.pack(size + 4, size) + head
