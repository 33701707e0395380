"""Requests of any shape: every one is answered once, and none runs into code that did not expect it."""

from __future__ import annotations

import logging
import random
from typing import Any

import msgspec
import pytest

from penstock.broker.admin import Admin
from penstock.wire.headers import admin as admin_headers
from penstock.wire.headers.base import HeaderStruct

NAMES = sorted(
    {
        field.encode_name
        for header in vars(admin_headers).values()
        if isinstance(header, type) and issubclass(header, HeaderStruct)
        for field in msgspec.structs.fields(header)
    }
)
VALUES = [
    "", " ", "0", "1", "-1", "4", "6", "true", "false", "nope", "orders", "billing", "c1", "A@B", "a;b;;c",
    "9223372036854775807", "-9223372036854775808", "99999999999999999999", "1e5", "中", "\x00", "+a=1,-b",
    '{"counter":1,"stateVersion":0,"timestamp":1}', "SINGLE_TAG", "TBW102", "%RETRY%billing", "x" * 300,
    "+message.type=FIFO", "TOPIC_PUT_NUMS", "{",
]  # fmt: skip
BODIES = [
    b"", b"{}", b"[]", b"null", b"7", b'"x"', b"{", b"\xff\xfe", b"a=1\nb", b"traceOn=maybe", b"\\u12",
    b'{"groupName":"billing"}', b'{"groupName":7,"attributes":[]}', b'{"groupConfigList":[null,{}]}',
    b'{"topicConfigList":[{"topicName":"t","perm":-4,"attributes":{"x":"y"}}]}', b'{"topicConfigList":{}}',
    b'{"$ref":"$"}', b'{"groupName":{"$ref":"$.x"}}', b"[" * 500, b'{"groupName":"g","retryQueueNums":1e400}',
]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_every_odd_request_is_answered_and_none_is_unexpected(
    bench: Any, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    codes = sorted(Admin(bench.broker).handlers)
    bench.send("orders")
    bench.broker.groups.find("billing", bench.now_ms)
    for _ in range(300):
        names = chance.sample(NAMES, chance.randrange(len(NAMES)))
        ext = {name: chance.choice(VALUES) for name in names} if chance.random() < 0.9 else None
        body = chance.choice(BODIES)
        if chance.random() < 0.1:
            body = chance.randbytes(chance.randrange(40))
        answer = bench.ask(chance.choice(codes), ext, body)
        assert answer.is_response
        assert answer.code == 0 or answer.remark
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert bench.send("orders").code == 0
