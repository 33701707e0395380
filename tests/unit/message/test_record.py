from __future__ import annotations

import pytest

from penstock.errors import CorruptRecord, InvalidArgument, MessageTooLarge
from penstock.message.ids import pack_host
from penstock.message.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RecordView,
    check_record,
    encode_record,
    split_records,
)
from penstock.message.sysflag import BORN_V6, STORE_V6

V4 = pack_host("10.0.0.2", 10911)
V6 = pack_host("2001:db8::1", 10911)
FIELDS = {
    "topic": b"TopicTest",
    "queue_id": 3,
    "flag": 0,
    "queue_offset": 42,
    "physical_offset": 1024,
    "sys_flag": 0,
    "born_ms": 1_700_000_000_000,
    "born_host": pack_host("10.0.0.1", 54321),
    "store_ms": 1_700_000_000_123,
    "store_host": V4,
    "reconsume_times": 0,
    "prepared_offset": 0,
    "body": b"hello",
    "properties": b"TAGS\x01TagA\x02KEYS\x01k1\x02",
}
VECTOR = bytes.fromhex(
    "0000007bdaa320a73610a6860000000300000000000000000000002a0000000000000400000000000000018bcfe56800"
    "0a0000010000d4310000018bcfe5687b0a00000200002a9f0000000000000000000000000000000568656c6c6f09546f"
    "706963546573740012544147530154616741024b455953016b3102"
)


def record(**changes) -> bytes:
    return encode_record(**{**FIELDS, **changes})


def reencode(view: RecordView) -> bytes:
    return encode_record(
        topic=view.topic.encode(),
        queue_id=view.queue_id,
        flag=view.flag,
        queue_offset=view.queue_offset,
        physical_offset=view.physical_offset,
        sys_flag=view.sys_flag,
        born_ms=view.born_ms,
        born_host=view.born_host,
        store_ms=view.store_ms,
        store_host=view.store_host,
        reconsume_times=view.reconsume_times,
        prepared_offset=view.prepared_offset,
        body=view.body,
        properties=view.properties_bytes,
    )


def test_a_record_has_the_bytes_of_the_specification():
    assert record() == VECTOR


def test_a_view_shows_every_field():
    view = RecordView(b"..." + VECTOR + b"...", 3)
    for name, value in FIELDS.items():
        if name not in ("topic", "properties"):
            assert getattr(view, name) == value, name
    assert view.size == len(VECTOR)
    assert view.topic == "TopicTest"
    assert view.properties == {"TAGS": "TagA", "KEYS": "k1"}
    assert view.properties_text.encode() == view.properties_bytes == FIELDS["properties"]
    assert view.tag == view.find("TAGS") == "TagA"
    assert view.find("UNIQ_KEY") is None
    assert repr(view) == "<RecordView TopicTest queue 3 offset 42: 123 bytes>"
    view.verify()


def test_the_body_is_a_slice_of_what_was_given():
    assert isinstance(RecordView(memoryview(VECTOR)).body, memoryview)
    assert isinstance(RecordView(VECTOR).body, bytes)


@pytest.mark.parametrize(
    ("born_host", "store_host", "bits"),
    [(V4, V4, 0), (V6, V4, BORN_V6), (V4, V6, STORE_V6), (V6, V6, BORN_V6 | STORE_V6)],
)
def test_host_bits_follow_from_the_hosts(born_host, store_host, bits):
    # Stray bits of the sender are replaced: they would make the record unreadable.
    view = RecordView(record(born_host=born_host, store_host=store_host, sys_flag=0x8 | BORN_V6 | STORE_V6))
    assert view.sys_flag == 0x8 | bits
    assert (view.born_host, view.store_host, view.body) == (born_host, store_host, b"hello")


@pytest.mark.parametrize(("size", "magic"), [(127, MAGIC_V1), (128, MAGIC_V2), (255, MAGIC_V2)])
def test_long_topics_need_version_2(size, magic):
    data = record(topic=b"%RETRY%" + b"g" * (size - 7))
    assert int.from_bytes(data[4:8]) == magic
    assert RecordView(data).topic == "%RETRY%" + "g" * (size - 7)
    assert check_record(data, 0, len(data), crc=True) == len(data)


def test_what_does_not_fit_is_refused():
    with pytest.raises(MessageTooLarge):
        record(properties=b"x" * 32_768)
    with pytest.raises(MessageTooLarge):
        record(topic=b"x" * 32_768)
    with pytest.raises(InvalidArgument, match="8 or 20 bytes"):
        record(born_host=b"12345")
    assert RecordView(record(properties=b"x" * 32_767)).properties == {}


def test_recorded_records_decode_and_encode_equal(wire_bodies):
    bodies = [body for _, body in wire_bodies if body[4:8] in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")]
    assert len(bodies) > 60
    for body in bodies:
        views = split_records(body)
        assert b"".join(map(reencode, views)) == body
        for view in views:
            view.verify()
            assert check_record(body, view.offset, len(body), crc=True) == view.size


def test_a_pull_body_splits_into_its_records():
    body = b"".join(record(queue_offset=offset, body=b"x" * offset) for offset in range(5))
    assert [(view.queue_offset, len(view.body)) for view in split_records(body)] == [(n, n) for n in range(5)]
    assert split_records(b"") == []


@pytest.mark.parametrize("cut", [1, 30, 87, 88, 95, 122])
def test_a_cut_record_is_reported_with_its_position(cut):
    with pytest.raises(CorruptRecord, match="record at 123"):
        split_records(VECTOR + VECTOR[:cut])


def test_a_filler_is_no_message():
    filler = (500).to_bytes(4) + MAGIC_BLANK.to_bytes(4) + bytes(492)
    with pytest.raises(CorruptRecord, match="CBD43194"):
        RecordView(filler)
    assert check_record(filler, 0, len(filler), crc=True) == 0
    assert check_record(filler[:8], 0, 8, crc=True) == 0
    assert check_record(filler, 0, 7, crc=True) == -1


def changed(position: int, new: bytes) -> bytes:
    return VECTOR[:position] + new + VECTOR[position + len(new) :]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(changed(0, (124).to_bytes(4)) + b"x", id="size"),
        pytest.param(changed(0, (-1).to_bytes(4, signed=True)), id="negative size"),
        pytest.param(changed(4, b"\0\0\0\0"), id="magic"),
        pytest.param(changed(84, (6).to_bytes(4)), id="body length"),
        pytest.param(changed(84, (-20).to_bytes(4, signed=True)), id="negative body length"),
        pytest.param(changed(93, b"\x0a"), id="topic length"),
        pytest.param(changed(103, b"\x00\x11"), id="properties length"),
        pytest.param(changed(36, b"\0\0\0\x10"), id="host bit"),
        pytest.param(bytes(200), id="zeros"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_record_that_does_not_add_up_is_corrupt(data):
    with pytest.raises(CorruptRecord):
        RecordView(data)
    assert check_record(data, 0, len(data), crc=False) == -1


def test_lengths_are_signed():
    topic = record(topic=b"t" * 255)
    one_byte = topic[:4] + MAGIC_V1.to_bytes(4) + topic[8:93] + topic[94:]
    short = len(one_byte).to_bytes(4) + one_byte[4:]
    properties = record(properties=b"x" * 32_767)
    at = len(VECTOR) - 20
    long = (len(properties) + 1).to_bytes(4) + properties[4:at] + b"\x80\x00" + properties[at + 2 :] + b"x"
    for data in (short, long):
        with pytest.raises(CorruptRecord, match="does not add up"):
            RecordView(data)
        assert check_record(data, 0, len(data), crc=False) == -1


def test_a_changed_body_fails_its_checksum():
    data = changed(88, b"j")
    with pytest.raises(CorruptRecord, match="checksum"):
        RecordView(data).verify()
    assert check_record(data, 0, len(data), crc=True) == -1
    assert check_record(data, 0, len(data), crc=False) == len(data)


def test_properties_that_did_not_reach_the_disk_are_damage():
    data = VECTOR[:-5] + bytes(5)
    with pytest.raises(CorruptRecord, match="properties"):
        RecordView(data).verify()
    assert check_record(data, 0, len(data), crc=False) == -1


def test_a_record_may_not_reach_over_the_limit():
    assert check_record(VECTOR, 0, len(VECTOR) - 1, crc=True) == -1
    assert check_record(VECTOR * 2, len(VECTOR), 2 * len(VECTOR), crc=True) == len(VECTOR)
