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
    says_the_same(quick, general)


@pytest.mark.parametrize("places", [[0x1234ABCD], [0, 1 << 40, (1 << 63) - 1]])
@pytest.mark.parametrize("region", ["DefaultRegion", '100 % "north"'])
def test_the_quick_answer_to_a_batch_says_what_the_general_one_says(places: list[int], region: str) -> None:
    writer = SendReplyWriter(region, True, "7F00000100002A9F")
    quick = writer.write_batch(5, places, 3, 1 << 40)
    ids = ",".join(f"7F00000100002A9F{place:016X}" for place in places)
    header = SendResponseHeader(ids, 3, 1 << 40, None, region=region, trace_on=True)
    says_the_same(quick, encode_response(Command(code=320, opaque=5), 0, None, header))


def says_the_same(quick: bytes, general: bytes) -> None:
    assert int.from_bytes(quick[:4], "big") == len(quick) - 4
    ours, expected = decode_command(quick[4:]), decode_command(general[4:])
    assert ours.ext == expected.ext
    for name in ("code", "opaque", "flag", "language", "version", "remark", "body"):
        assert getattr(ours, name) == getattr(expected, name)
