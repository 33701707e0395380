"""Records, batches, properties and hashes for any input."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptRecord
from penstock.message.batch import encode_batch, split_batch
from penstock.message.compression import decompress
from penstock.message.hashing import extend_hash, java_hash
from penstock.message.properties import (
    decode_properties,
    drop_property,
    encode_properties,
    find_property,
    find_property_bytes,
)
from penstock.message.record import RecordView, check_record, encode_record, split_records

quick = settings(max_examples=150)

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
host = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
fields = st.fixed_dictionaries(
    {
        "topic": st.text(max_size=80).map(str.encode) | st.binary(min_size=120, max_size=300),
        "queue_id": i32,
        "flag": i32,
        "queue_offset": i64,
        "physical_offset": i64,
        "sys_flag": i32,
        "born_ms": i64,
        "born_host": host,
        "store_ms": i64,
        "store_host": host,
        "reconsume_times": i32,
        "prepared_offset": i64,
        "body": st.binary(max_size=300),
        "properties": st.binary(max_size=600),
    }
)
# Few letters, so that names repeat and separators meet.
property_text = st.text("ab\x01\x02名", max_size=30)
property_key = st.text("ab\x01\x02名", max_size=3)
damage = st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=4)


def damaged(data: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    changed = bytearray(data)
    for position, value in changes:
        changed[position % len(changed)] = value
    return bytes(changed[: len(changed) - cut])


def verdict(data: bytes, offset: int) -> int:
    """The size of the record at a place as RecordView and verify() see it, -1 if it is corrupt."""
    try:
        view = RecordView(data, offset)
        view.verify()
    except CorruptRecord:
        return -1
    return view.size


@quick
@given(st.lists(fields, max_size=3), st.booleans())
def test_any_records_come_back_as_they_were(records, as_view):
    body = b"".join(encode_record(**each) for each in records)
    views = split_records(memoryview(body) if as_view else body)
    assert len(views) == len(records)
    for view, given_fields in zip(views, records, strict=True):
        for name, value in given_fields.items():
            if name == "topic":
                assert view.topic == value.decode("utf-8", "replace")
            elif name == "properties":
                assert view.properties_bytes == value
                assert view.properties == decode_properties(value.decode("utf-8", "replace"))
            elif name == "sys_flag":
                hosts = 0x10 * (len(given_fields["born_host"]) == 20)
                hosts |= 0x20 * (len(given_fields["store_host"]) == 20)
                assert view.sys_flag == value & ~0x30 | hosts
            else:
                assert getattr(view, name) == value, name


@quick
@given(fields, damage, st.integers(0, 90), st.binary(max_size=20), st.binary(max_size=20))
def test_recovery_judges_a_record_as_its_view_does(record, changes, cut, before, after):
    data = before + damaged(encode_record(**record), changes, cut) + after
    size = check_record(data, len(before), len(data), crc=True)
    assert size == verdict(data, len(before))
    assert check_record(memoryview(data), len(before), len(data), crc=True) == size


def use_everything(view: RecordView) -> None:
    assert isinstance(view.topic, str)
    assert isinstance(view.properties, dict)
    assert len(view.body) <= view.size
    _ = view.tag
    repr(view)
    for check in (view.verify, lambda: decompress(view.body, view.sys_flag)):
        try:
            check()
        except CorruptRecord:
            pass


@quick
@given(st.lists(fields, min_size=1, max_size=3), damage, st.integers(0, 90))
def test_damaged_bodies_give_records_or_one_error(records, changes, cut):
    data = damaged(b"".join(encode_record(**each) for each in records), changes, cut)
    try:
        views = split_records(data)
    except CorruptRecord:
        return
    assert sum(view.size for view in views) == len(data)
    for view in views:
        use_everything(view)


@quick
@given(
    st.binary(max_size=400)
    | st.builds(lambda tail: bytes(4) + b"\xda\xa3\x20\xa7" + tail, st.binary(max_size=200))
)
def test_arbitrary_bytes_give_records_or_one_error(data):
    for parse in (split_records, split_batch):
        try:
            parse(data)
        except CorruptRecord:
            pass
    assert check_record(data, 0, len(data), crc=False) >= -1


def of_sizes(sizes):
    body, properties = (st.binary(min_size=size, max_size=size) for size in sizes)
    return st.lists(st.tuples(i32, body, properties), min_size=1, max_size=6)


batches = st.one_of(
    st.lists(st.tuples(i32, st.binary(max_size=60), st.binary(max_size=60)), min_size=1, max_size=6),
    st.tuples(st.integers(0, 60), st.integers(0, 60)).flatmap(of_sizes),  # all alike
)


@quick
@given(batches)
def test_any_batch_comes_back_as_it_was(elements):
    assert split_batch(encode_batch(elements)) == elements


@quick
@given(batches, damage, st.integers(0, 30))
def test_a_damaged_batch_gives_elements_or_one_error(elements, changes, cut):
    data = damaged(encode_batch(elements), changes, min(cut, 22))
    try:
        found = split_batch(data)
    except CorruptRecord:
        return
    assert sum(22 + len(body) + len(properties) for _, body, properties in found) == len(data)


free_text = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
)


@quick
@given(st.dictionaries(free_text, free_text, max_size=6))
def test_any_properties_come_back_as_they_were(properties):
    assert decode_properties(encode_properties(properties)) == properties


@quick
@given(property_text, property_key)
def test_finding_one_property_agrees_with_decoding_all(text, key):
    expected = decode_properties(text).get(key)
    assert find_property(text, key) == expected
    found = find_property_bytes(text.encode(), key.encode())
    assert (found.decode() if found is not None else None) == expected


@quick
@given(property_text, property_key)
def test_dropping_one_property_leaves_the_others(text, key):
    expected = decode_properties(text)
    expected.pop(key, None)
    assert decode_properties(drop_property(text, key)) == expected


def hash_by_definition(text: str) -> int:
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


@quick
@given(st.text(st.characters(codec=None)), st.text("abc#\x7f\x00", max_size=600))
def test_hashes_follow_their_definition(prefix, text):
    assert java_hash(prefix) == hash_by_definition(prefix)
    assert extend_hash(java_hash(prefix), text) == hash_by_definition(prefix + text)
