from __future__ import annotations

import pytest

from penstock.errors import CorruptRecord, MessageTooLarge
from penstock.message.batch import encode_batch, split_batch, split_inner_batch
from penstock.message.compression import compress
from penstock.message.properties import encode_properties
from penstock.message.record import RecordView, encode_record
from penstock.message.sysflag import COMPRESSED, INNER_BATCH, INNER_BATCH_UNWRAP, ZLIB

HOST = b"\x0a\0\0\x01\0\0\x2a\x9f"
ELEMENTS = [(0, b"one", b"TAGS\x01a\x02"), (-1, b"", b""), (7, b"three", b"k\x01v\x02")]


def test_elements_have_the_bytes_of_the_reference(table):
    for row in table("misc")["batchElements"]:
        flag, body, properties = split_batch(bytes.fromhex(row["encoded"]))[0]
        assert (flag, body) == (row["flag"], row["body"].encode())
        assert (
            dict(piece.split("\x01") for piece in properties.decode().split("\x02")[:-1]) == row["properties"]
        )
        assert encode_batch([(flag, body, properties)]).hex() == row["encoded"]


def test_the_example_of_the_specification():
    encoded = encode_batch([(0, b"hi", encode_properties({"WAIT": "true"}).encode())])
    assert encoded.hex() == "00000022000000000000000000000000000000026869000a57414954017472756502"


def test_recorded_batches_split_and_encode_equal(wire_bodies):
    batches = [body for name, body in wire_bodies if name == "request SEND_BATCH_MESSAGE"]
    assert len(batches) == 4
    for body in batches:
        elements = split_batch(body)
        assert len(elements) > 1
        assert encode_batch(elements) == body


def test_a_batch_splits_into_its_elements():
    assert split_batch(encode_batch(ELEMENTS)) == ELEMENTS
    assert split_batch(memoryview(encode_batch(ELEMENTS))) == ELEMENTS
    assert split_batch(b"") == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-1],
        lambda body: body + b"x",
        lambda body: b"\0\0\0\x01" + body[4:],
        lambda body: body[:16] + b"\xff\xff\xff\xff" + body[20:],
        lambda body: body[:23] + b"\xff\xff" + body[25:],
    ],
)
def test_a_damaged_batch_is_refused(damage):
    with pytest.raises(CorruptRecord, match="the batch element at"):
        split_batch(damage(encode_batch(ELEMENTS)))


def test_properties_that_do_not_fit_are_refused():
    with pytest.raises(MessageTooLarge):
        encode_batch([(0, b"x", b"p" * 32_768)])


def inner_batch(sys_flag: int, body: bytes) -> RecordView:
    data = encode_record(
        topic=b"T",
        queue_id=1,
        flag=99,
        queue_offset=100,
        physical_offset=5000,
        sys_flag=sys_flag,
        born_ms=1,
        born_host=HOST,
        store_ms=2,
        store_host=HOST,
        reconsume_times=3,
        prepared_offset=4,
        body=body,
        properties=b"INNER_NUM\x013\x02",
    )
    return RecordView(data)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_inner_batch_becomes_messages_with_consecutive_offsets(compressed):
    sys_flag = INNER_BATCH | INNER_BATCH_UNWRAP
    body = encode_batch(ELEMENTS)
    if compressed:
        sys_flag |= COMPRESSED | ZLIB
        body = compress(body, ZLIB, 5)
    outer = inner_batch(sys_flag, body)
    views = split_inner_batch(outer)
    assert [(view.flag, view.body, view.properties_bytes) for view in views] == ELEMENTS
    assert [view.queue_offset for view in views] == [100, 101, 102]
    for view in views:
        assert not view.sys_flag & (INNER_BATCH | INNER_BATCH_UNWRAP | COMPRESSED)
        for name in (
            "topic",
            "queue_id",
            "physical_offset",
            "born_ms",
            "born_host",
            "store_ms",
            "store_host",
        ):
            assert getattr(view, name) == getattr(outer, name)


def test_any_other_record_is_its_own_only_message():
    view = inner_batch(INNER_BATCH, b"x")
    assert split_inner_batch(view) == [view]


def test_messages_of_one_size_are_encoded_as_any_others():
    alike = [(flag, b"body", b"A\x01%d\x02" % flag) for flag in range(3)]
    assert encode_batch(alike) == b"".join(encode_batch([element]) for element in alike)
    assert split_batch(encode_batch(alike)) == alike
