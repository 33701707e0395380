from __future__ import annotations

import pytest

from penstock.wire.command import Command, decode_command, encode_response
from penstock.wire.headers import SendResponseHeader
from penstock.wire.send_reply import SendReplyWriter


@pytest.mark.parametrize("key", ["C000020259904E0E", 'odd "key" \\ \x01', "schlüssel", ""])
@pytest.mark.parametrize("region", ["DefaultRegion", '100 % "north"'])
def test_the_quick_answer_says_what_the_general_one_says(key: str, region: str) -> None:
    writer = SendReplyWriter(region, False, "7F00000100002A9F")
    quick = writer.write(-77, 0x1234ABCD, 3, 1 << 40, key)
    header = SendResponseHeader(
        "7F00000100002A9F000000001234ABCD", 3, 1 << 40, key, region=region, trace_on=False
    )
    general = encode_response(Command(code=310, opaque=-77), 0, None, header)
    assert int.from_bytes(quick[:4], "big") == len(quick) - 4
    ours, expected = decode_command(quick[4:]), decode_command(general[4:])
    assert ours.ext == expected.ext
    for name in ("code", "opaque", "flag", "language", "version", "remark", "body"):
        assert getattr(ours, name) == getattr(expected, name)
