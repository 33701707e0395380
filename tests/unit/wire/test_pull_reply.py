from __future__ import annotations

import pytest

from penstock.errors import MessageTooLarge
from penstock.limits import MAX_FRAME_BYTES
from penstock.wire.command import RESPONSE_FLAG, decode_command, encode_head
from penstock.wire.headers import PullResponseHeader
from penstock.wire.pull_reply import write_pull_reply_head


def test_the_quick_head_says_what_the_general_one_says() -> None:
    quick = write_pull_reply_head(-7, 21, "OFFSET_RESET", 1, 1 << 40, 5, 1 << 41, 2, 3, 100)
    header = PullResponseHeader(1, 1 << 40, 5, 1 << 41, None, 2, 3)
    general = encode_head(21, -7, flag=RESPONSE_FLAG, remark="OFFSET_RESET", ext=header, body_size=100)
    assert int.from_bytes(quick[:4], "big") == len(quick) - 4 + 100
    ours, expected = decode_command(quick[4:] + bytes(100)), decode_command(general[4:] + bytes(100))
    assert ours.ext == expected.ext
    for name in ("code", "opaque", "flag", "language", "version", "remark", "body"):
        assert getattr(ours, name) == getattr(expected, name)


def test_an_answer_that_fits_no_frame_is_refused() -> None:
    with pytest.raises(MessageTooLarge):
        write_pull_reply_head(1, 0, "FOUND", 0, 1, 0, 1, 0, 0, MAX_FRAME_BYTES)
