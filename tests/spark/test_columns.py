"""The columnar decoder against the one-by-one codec."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptRecord
from penstock.message import sysflag
from penstock.message.batch import encode_batch, split_inner_batch
from penstock.message.compression import compress
from penstock.message.ids import pack_host
from penstock.message.model import ReceivedMessage
from penstock.message.queue import MessageQueue
from penstock.message.record import MAGIC_V1, encode_record, split_records
from penstock.spark.columns import Decoder
from penstock.spark.layout import Segment
from penstock.spark.options import PullOptions, read_options

QUEUE = MessageQueue("orders", "broker-a", 3)
EVERYTHING = 2**62


def record(queue_offset: int = 0, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": b"orders",
        "queue_id": 3,
        "flag": 7,
        "queue_offset": queue_offset,
        "physical_offset": 1000 + queue_offset,
        "sys_flag": 0,
        "born_ms": 1_700_000_000_000,
        "born_host": pack_host("10.0.0.1", 54321),
        "store_ms": 1_700_000_000_123,
        "store_host": pack_host("10.0.0.2", 10911),
        "reconsume_times": 0,
        "prepared_offset": 0,
        "body": b"hello",
        "properties": b"TAGS\x01paid\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01AB01\x02",
    }
    return encode_record(**fields | changes)


def segment(*records: bytes, start: int = 0, end: int = EVERYTHING) -> Segment:
    return Segment(QUEUE, start, end, b"".join(records))


def options(**given: str) -> PullOptions:
    return read_options({"nameServer": "127.0.0.1:9876", "subscribe": "orders"} | given).pull


def time_of(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def one_by_one(body: bytes, start: int, end: int) -> list[dict[str, Any]]:
    """What the codec and the client's own message class make of the same bytes."""
    rows = []
    for stored in split_records(body):
        for view in split_inner_batch(stored):
            if not start <= view.queue_offset < end:
                continue
            message = ReceivedMessage(view, QUEUE.broker_name)
            rows.append(
                {
                    "topic": view.topic,
                    "brokerName": QUEUE.broker_name,
                    "queueId": view.queue_id,
                    "queueOffset": view.queue_offset,
                    "msgId": message.message_id,
                    "tags": message.tag,
                    "keys": message.properties.get("KEYS"),
                    "body": message.body,
                    "properties": sorted(message.properties.items()),
                    "flag": view.flag,
                    "sysFlag": view.sys_flag & ~sysflag.COMPRESSED,
                    "bornTimestamp": time_of(view.born_ms),
                    "bornHost": message.born_host,
                    "storeTimestamp": time_of(view.store_ms),
                    "storeHost": message.store_host,
                    "reconsumeTimes": view.reconsume_times,
                    "physicalOffset": view.physical_offset,
                }
            )
    return rows


hosts = st.sampled_from(
    [
        pack_host("10.0.0.1", 54321),
        pack_host("127.0.0.1", 1),
        pack_host("2001:db8::7", 9),
        pack_host("::1", 65535),
    ]
)
# Mostly well-formed texts, so that plain and odd records stand side by side in one answer.
names = st.sampled_from(
    [b"TAGS", b"KEYS", b"UNIQ_KEY", b"UNIQ_KEY2", b"WAIT", b"TAG", b"a", "clé".encode(), b"long_name_1"]
)
values = st.sampled_from([b"paid", b"shipped", b"k1 k2", b"x", "ünï".encode(), b"true", b"A" * 32])
pairs = st.builds(lambda name, value: name + b"\x01" + value, names, values)
tidy = st.lists(pairs, max_size=5).map(lambda pieces: b"".join(piece + b"\x02" for piece in pieces))
messy = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"a", b"TAGS", b"\xff", "é".encode(), b"b"]), max_size=12
).map(b"".join)
property_texts = st.one_of(tidy, tidy, tidy, tidy.map(lambda text: text[:-1]), messy)
small = st.integers(-(2**31), 2**31 - 1)
bodies = st.one_of(st.just(b""), st.binary(max_size=40), st.just(b"\xda\xa3\x20\xa7" * 30))


@st.composite
def stored_records(draw: st.DrawFn) -> list[bytes]:
    result = []
    queue_offset = draw(st.integers(0, 50))
    for _ in range(draw(st.integers(0, 12))):
        body, sys_flag, count = draw(bodies), 0, 1
        kind = draw(st.sampled_from(["plain", "plain", "plain", "compressed", "inner", "transaction"]))
        if kind == "compressed":
            codec = draw(st.sampled_from([sysflag.ZLIB, sysflag.LZ4, sysflag.ZSTD]))
            body, sys_flag = compress(body, codec, 3), sysflag.COMPRESSED | codec
        elif kind == "inner":
            elements = draw(st.lists(st.tuples(small, bodies, property_texts), min_size=1, max_size=4))
            body, sys_flag, count = encode_batch(elements), sysflag.INNER_BATCH_MASK, len(elements)
        elif kind == "transaction":
            sys_flag = sysflag.COMMIT
        result.append(
            record(
                queue_offset,
                body=body,
                sys_flag=sys_flag,
                flag=draw(small),
                topic=draw(st.sampled_from([b"orders", b"%RETRY%" + b"g" * 130, b"t\xfe"])),
                born_host=draw(hosts),
                store_host=draw(hosts),
                born_ms=draw(st.integers(0, 4_000_000_000_000)),
                reconsume_times=draw(st.integers(0, 16)),
                properties=draw(property_texts),
            )
        )
        queue_offset += count + draw(st.integers(0, 2))
    return result


@pytest.mark.scenario(28)
@given(st.lists(stored_records(), min_size=1, max_size=3), st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=150)
def test_columns_equal_the_one_by_one_codec_on_random_records(
    answers: list[list[bytes]], start: int, length: int
) -> None:
    segments = [segment(*records, start=start, end=start + length) for records in answers]
    batch = Decoder(options()).decode(segments)
    batch.validate(full=True)
    rows = batch.to_pylist()
    for row in rows:
        row["properties"] = sorted(row["properties"])
    assert rows == [row for part in segments for row in one_by_one(part.body, start, start + length)]
    raw = Decoder(options(includeProperties="raw", columns="queueOffset,properties")).decode(segments)
    expected = [
        view.properties_text
        for part in segments
        for stored in split_records(part.body)
        for view in split_inner_batch(stored)
        if start <= view.queue_offset < start + length
    ]
    assert raw.column("properties").to_pylist() == expected


@pytest.mark.scenario(28)
@given(
    st.lists(names, min_size=1, max_size=5),
    st.lists(st.lists(values, min_size=5, max_size=5), min_size=1, max_size=6),
    st.booleans(),
)
@settings(max_examples=60)
def test_rows_with_the_same_names_equal_the_one_by_one_codec(
    shared: list[bytes], rows: list[list[bytes]], last_differs: bool
) -> None:
    texts = [
        b"".join(name + b"\x01" + value + b"\x02" for name, value in zip(shared, row, strict=False))
        for row in rows
    ]
    if last_differs:
        texts.append(b"".join(name[:-1] + b"!\x01x\x02" for name in shared))
    part = segment(*(record(number, properties=text) for number, text in enumerate(texts)))
    for chosen in ({}, {"includeProperties": "none"}):
        found = Decoder(options(**chosen)).decode([part]).to_pylist()
        for row, expected in zip(found, one_by_one(part.body, 0, EVERYTHING), strict=True):
            assert (row["msgId"], row["tags"], row["keys"]) == tuple(
                expected[n] for n in ("msgId", "tags", "keys")
            )
            if not chosen:
                assert sorted(row["properties"]) == expected["properties"]


@pytest.mark.scenario(28)
@given(
    st.lists(st.tuples(names, st.integers(1, 140)), min_size=1, max_size=4),
    st.lists(bodies, min_size=2, max_size=6),
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 700), st.sampled_from(b"\x00\x01\x02aZ\xc3")), max_size=2
    ),
    st.sampled_from([b"orders", b"t\xfe"]),
)
@settings(max_examples=200)
def test_rows_that_end_in_the_same_way_equal_the_one_by_one_codec(
    shape: list[tuple[bytes, int]],
    row_bodies: list[bytes],
    changes: list[tuple[int, int, int]],
    topic: bytes,
) -> None:
    """All of one shape, or but for a byte here and there: a name, a separator or a value."""
    texts = [
        bytearray(b"".join(name + b"\x01" + bytes([97 + row]) * size + b"\x02" for name, size in shape))
        for row in range(len(row_bodies))
    ]
    for row, place, byte in changes:
        text = texts[row % len(texts)]
        text[place % len(text)] = byte
    part = segment(
        *(
            record(number, properties=bytes(text), body=body, topic=topic)
            for number, (text, body) in enumerate(zip(texts, row_bodies, strict=True))
        )
    )
    batch = Decoder(options()).decode([part])
    batch.validate(full=True)
    found = batch.to_pylist()
    for row_found in found:
        row_found["properties"] = sorted(row_found["properties"])
    assert found == one_by_one(part.body, 0, EVERYTHING)
    raw = Decoder(options(includeProperties="raw")).decode([part])
    expected = [view.properties_text for view in split_records(part.body)]
    assert raw.column("properties").to_pylist() == expected


@pytest.mark.parametrize("changed", [0, 63, 64, 130, 131])
def test_one_row_of_many_that_ends_otherwise_is_seen(changed: int) -> None:
    """The separator in the changed value makes it end early, and the rest of it is a property without one."""
    texts = [f"TAGS\x01tag{number:04}\x02KEYS\x01k\x02".encode() for number in range(132)]
    texts[changed] = b"TAGS\x01tag\x0200\x01\x02KEYS\x01k\x02"
    part = segment(*(record(number, properties=text) for number, text in enumerate(texts)))
    batch = Decoder(options()).decode([part])
    found = batch.to_pylist()
    for row in found:
        row["properties"] = sorted(row["properties"])
    assert found == one_by_one(part.body, 0, EVERYTHING)
    assert found[changed]["tags"] == "tag"


def test_a_decoder_goes_on_after_a_longer_and_a_shorter_answer() -> None:
    """What it keeps from one batch for the next is cut to size."""
    decoder = Decoder(options())
    for count in (3, 8, 1, 5):
        part = segment(*(record(number) for number in range(count)))
        batch = decoder.decode([part])
        batch.validate(full=True)
        assert [row["topic"] for row in batch.to_pylist()] == ["orders"] * count
        assert [dict(row["properties"])["KEYS"] for row in batch.to_pylist()] == ["k1 k2"] * count


@pytest.mark.scenario(28)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90)), max_size=12), st.integers(0, 200))
@settings(max_examples=60)
def test_records_in_runs_of_one_size_are_all_found(runs: list[tuple[int, int]], cut: int) -> None:
    sizes = [size for size, count in runs for _ in range(count)]
    topics = [b"orders" if size else b"others" for size in sizes]
    records = [
        record(at, body=b"x" * size, topic=topic)
        for at, (size, topic) in enumerate(zip(sizes, topics, strict=True))
    ]
    batch = Decoder(options(columns="queueOffset,topic,body")).decode(
        [segment(*records[:cut]), segment(*records[cut:])]
    )
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (at, topic.decode(), b"x" * size) for at, (size, topic) in enumerate(zip(sizes, topics, strict=True))
    ]


@pytest.mark.scenario(27)
@pytest.mark.parametrize("size", [0, 95, 1000, 2**31 - 1])
@pytest.mark.parametrize("at", [0, 1, 2, 3, 40, 98, 99])
def test_a_wrong_size_in_a_run_of_records_of_one_size_costs_one_record_only(at: int, size: int) -> None:
    records = [record(offset) for offset in range(100)]
    records[at] = size.to_bytes(4) + records[at][4:]
    decoder = Decoder(options(columns="queueOffset", onCorrupt="skip"))
    batch = decoder.decode([segment(*records)])
    assert batch.column("queueOffset").to_pylist() == [offset for offset in range(100) if offset != at]
    assert decoder.skipped_corrupt == 1


def test_a_message_id_is_the_unique_key_or_else_the_place_of_the_record() -> None:
    batch = Decoder(options(columns="msgId")).decode([segment(record(0), record(1, properties=b""))])
    assert batch.column("msgId").to_pylist() == ["AB01", "0A00000200002A9F00000000000003E9"]


def test_only_asked_for_columns_are_in_the_batch_in_the_order_asked_for() -> None:
    batch = Decoder(options(columns="queueOffset,body")).decode([segment(record(4))])
    assert batch.to_pylist() == [{"queueOffset": 4, "body": b"hello"}]


def test_an_answer_without_records_gives_no_rows_but_the_full_schema() -> None:
    decoder = Decoder(options())
    batch = decoder.decode([segment()])
    assert batch.num_rows == 0
    assert batch.schema.equals(decoder.schema)


def test_tags_are_compared_as_strings_because_the_broker_compares_hashes() -> None:
    # "AaAa" and "BBBB" have the same Java hash, so a broker lets both through.
    mine, other = (
        record(i, properties=b"TAGS\x01" + tag + b"\x02") for i, tag in enumerate([b"AaAa", b"BBBB"])
    )
    batch = Decoder(options(subExpression="AaAa", columns="queueOffset")).decode([segment(mine, other)])
    assert batch.to_pylist() == [{"queueOffset": 0}]


def test_a_time_too_far_away_for_spark_stays_at_the_edge() -> None:
    batch = Decoder(options(columns="bornTimestamp")).decode([segment(record(born_ms=2**62))])
    assert batch.column(0).cast("int64").to_pylist() == [(2**63 - 1) // 1000 * 1000]


@pytest.mark.scenario(29)
def test_a_body_of_four_megabytes_and_an_empty_one_arrive_together() -> None:
    large = bytes(range(256)) * 16_384
    batch = Decoder(options(columns="body")).decode([segment(record(body=large), record(1, body=b""))])
    assert batch.column("body").to_pylist() == [large, b""]


def wrong_body_size(data: bytes) -> bytes:
    return data[:84] + (9).to_bytes(4) + data[88:]


def wrong_size(data: bytes) -> bytes:
    return (len(data) + 40).to_bytes(4) + data[4:]


def huge_size(data: bytes) -> bytes:
    return (2**31 - 1).to_bytes(4) + data[4:]


def wrong_magic(data: bytes) -> bytes:
    assert int.from_bytes(data[4:8]) == MAGIC_V1
    return data[:4] + bytes(4) + data[8:]


def broken_compression(_: bytes) -> bytes:
    return record(1, body=zlib.compress(b"x" * 100)[:-8], sys_flag=sysflag.COMPRESSED)


damages = pytest.mark.parametrize(
    "damage", [wrong_body_size, wrong_size, huge_size, wrong_magic, broken_compression]
)


@pytest.mark.scenario(27)
@damages
def test_a_damaged_record_fails_with_its_place_named(damage: Callable[[bytes], bytes]) -> None:
    answer = segment(record(0), damage(record(1)), record(2))
    with pytest.raises(CorruptRecord, match=r"orders/broker-a/3 at offset 1.*onCorrupt"):
        Decoder(options()).decode([answer])


@pytest.mark.scenario(27)
@damages
def test_a_damaged_record_is_skipped_and_its_neighbours_are_intact(damage: Callable[[bytes], bytes]) -> None:
    decoder = Decoder(options(onCorrupt="skip", columns="queueOffset,body"))
    batch = decoder.decode([segment(record(0), damage(record(1)), record(2)), segment(record(0))])
    assert batch.column("queueOffset").to_pylist() == [0, 2, 0]
    assert batch.column("body").to_pylist() == [b"hello"] * 3
    assert decoder.skipped_corrupt == 1


@pytest.mark.scenario(27)
@damages
def test_a_damaged_record_is_kept_as_a_row_with_an_error(damage: Callable[[bytes], bytes]) -> None:
    decoder = Decoder(options(onCorrupt="keep"))
    rows = decoder.decode([segment(record(0), damage(record(1)), record(2))]).to_pylist()
    assert [row["queueOffset"] for row in rows] == [0, 1, 2]
    assert rows[1]["body"] is None
    assert rows[1]["error"]
    assert rows[0]["error"] is None
    assert rows[2]["error"] is None


@pytest.mark.scenario(27)
def test_a_wrong_checksum_is_only_seen_when_asked_for() -> None:
    good = record(1)
    bad = good.replace(b"hello", b"hullo")
    assert Decoder(options()).decode([segment(bad)]).column("body").to_pylist() == [b"hullo"]
    assert Decoder(options(verifyCrc="true")).decode([segment(good)]).num_rows == 1
    with pytest.raises(CorruptRecord, match="at offset 1"):
        Decoder(options(verifyCrc="true")).decode([segment(good, bad)])


def test_a_damaged_record_behind_the_end_of_the_range_is_left_to_the_next_range() -> None:
    answer = segment(record(0), wrong_body_size(record(1)), end=1)
    assert Decoder(options(columns="queueOffset")).decode([answer]).to_pylist() == [{"queueOffset": 0}]


def test_a_compressed_body_stays_as_it_is_when_asked_for() -> None:
    packed = zlib.compress(b"x" * 100)
    answer = segment(record(body=packed, sys_flag=sysflag.COMPRESSED | sysflag.ZLIB))
    kept = Decoder(options(decompress="false", columns="body,sysFlag")).decode([answer])
    opened = Decoder(options(columns="body,sysFlag")).decode([answer])
    assert kept.to_pylist() == [{"body": packed, "sysFlag": 0x301}]
    assert opened.to_pylist() == [{"body": b"x" * 100, "sysFlag": 0x300}]
