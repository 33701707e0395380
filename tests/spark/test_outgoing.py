"""Rows to sends, without a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidArgument, MessageTooLarge
from penstock.message.batch import encode_batch, split_batch
from penstock.message.hashing import java_hash
from penstock.message.properties import decode_properties
from penstock.message.queue import MessageQueue
from penstock.spark.option_parsing import OptionError
from penstock.spark.outgoing import batch_elements, unique_keys
from penstock.spark.parcels import Packer, Parcel
from penstock.spark.write_options import WriteOptions, write_options

QUEUES = [MessageQueue("orders", broker, queue_id) for broker in ("a", "b") for queue_id in range(2)]
KINDS: dict[str, tuple[DataType, pa.DataType]] = {
    "binary": (BinaryType(), pa.binary()),
    "string": (StringType(), pa.string()),
    "int": (IntegerType(), pa.int32()),
    "bigint": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", "UTC")),
    "map<string,string>": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
}


def fields(columns: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, kind in (column.split(" ") for column in columns.split(", "))]


def spark_schema(columns: str) -> StructType:
    return StructType([StructField(name, KINDS[kind][0]) for name, kind in fields(columns)])


def batch_of(columns: str, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        rows, pa.schema([(name, KINDS[kind][1]) for name, kind in fields(columns)])
    )


def options(columns: str, **given: str) -> WriteOptions:
    schema = spark_schema(columns)
    return write_options({"nameServer": "127.0.0.1:9876", "topic": "orders"} | given, schema, overwrite=False)


def pack(columns: str, rows: list[dict[str, Any]], **given: str) -> list[list[Parcel]]:
    batch = batch_of(columns, rows)
    return Packer(options(columns, **given), "F" * 20, lambda _: QUEUES).pack(batch)


def messages(parcel: Parcel) -> list[tuple[int, bytes, dict[str, str]]]:
    if not parcel.batch:
        return [(parcel.flag, bytes(parcel.body), decode_properties(parcel.properties))]
    return [
        (flag, bytes(body), decode_properties(bytes(text).decode()))
        for flag, body, text in split_batch(parcel.body)
    ]


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50))))
@settings(max_examples=50)
def test_elements_equal_the_one_by_one_codec(rows: list[tuple[int, bytes, bytes]]) -> None:
    flags = pa.array([flag for flag, _, _ in rows], pa.int32()).to_numpy()
    bodies = pa.array([body for _, body, _ in rows], pa.binary())
    texts = pa.array([text for _, _, text in rows], pa.binary())
    elements = batch_elements(bodies, flags, texts)
    assert b"".join(elements.to_pylist()) == encode_batch(rows)


def test_every_column_becomes_its_property() -> None:
    columns = "value string, tags string, key string, flag int, properties map<string,string>, other int"
    rows: list[dict[str, Any]] = [
        {
            "value": "ü",
            "tags": "paid",
            "key": "k1 k2",
            "flag": 5,
            "properties": [("a", "1"), ("TAGS", "x"), ("b", "")],
        },
        {"value": "", "tags": "", "key": None, "flag": None, "properties": None},
        {"value": "z", "properties": [("c", "3")]},
    ]
    (lane,) = pack(columns, rows)
    found = messages(lane[0])
    assert [(flag, body) for flag, body, _ in found] == [(5, "ü".encode()), (0, b""), (0, b"z")]
    keys = [properties.pop("UNIQ_KEY") for _, _, properties in found]
    assert keys == [f"{'F' * 20}{row:012X}" for row in range(3)]
    assert [properties for _, _, properties in found] == [
        {"WAIT": "true", "TAGS": "paid", "KEYS": "k1 k2", "a": "1"},
        {"WAIT": "true"},
        {"WAIT": "true", "c": "3"},
    ]


@pytest.mark.scenario(32)
def test_a_sharding_key_always_goes_to_the_queue_where_other_clients_send_it() -> None:
    rows = [{"body": str(i).encode(), "shardingKey": f"customer-{i % 5}"} for i in range(100)]
    rows.append({"body": b"no key", "shardingKey": None})
    lanes = pack("body binary, shardingKey string", rows, batchMessages="7")
    seen: dict[str, list[int]] = {}
    for lane in lanes:
        for parcel in lane:
            for _, body, properties in messages(parcel):
                key = properties.get("__SHARDINGKEY")
                if key is None:
                    assert parcel.queue is None
                    continue
                assert parcel.queue == QUEUES[abs(java_hash(key)) % 4]
                seen.setdefault(key, []).append(int(body))
    assert seen == {f"customer-{k}": list(range(k, 100, 5)) for k in range(5)}


def test_batches_respect_both_limits_and_lose_nothing() -> None:
    rows = [{"body": bytes(size)} for size in [100] * 50 + [2000, 100, 5000, 100]]
    parcels = [
        parcel for lane in pack("body binary", rows, batchBytes="1k", batchMessages="6") for parcel in lane
    ]
    assert all(len(parcel.body) <= 1024 and parcel.messages <= 6 for parcel in parcels if parcel.batch)
    assert [len(parcel.body) for parcel in parcels if not parcel.batch] == [2000, 5000]
    assert [len(body) for parcel in parcels for _, body, _ in messages(parcel)] == [
        len(row["body"]) for row in rows
    ]


@pytest.mark.scenario(33)
def test_delayed_messages_travel_alone_with_their_time() -> None:
    columns = "body binary, delayLevel int, delayMs bigint, deliverAt timestamp"
    due = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    rows = [
        {"body": b"now"},
        {"body": b"level", "delayLevel": 3},
        {"body": b"ms", "delayMs": 1500},
        {"body": b"at", "deliverAt": due},
    ]
    parcels = [parcel for lane in pack(columns, rows) for parcel in lane]
    assert [(parcel.batch, parcel.messages) for parcel in parcels] == [
        (True, 1),
        (False, 1),
        (False, 1),
        (False, 1),
    ]
    times = [decode_properties(parcel.properties) for parcel in parcels[1:]]
    assert times[0]["DELAY"] == "3"
    assert times[1]["TIMER_DELAY_MS"] == "1500"
    assert times[2]["TIMER_DELIVER_MS"] == str(int(due.timestamp() * 1000))


def test_rows_may_name_their_queue_and_topic() -> None:
    columns = "body binary, topic string, queueId int, brokerName string"
    rows = [
        {"body": b"0", "topic": "x", "queueId": 1, "brokerName": "b"},
        {"body": b"1", "topic": "y", "queueId": 1, "brokerName": None},
        {"body": b"2", "topic": "x", "queueId": None, "brokerName": None},
    ]
    schema = spark_schema(columns)
    given = write_options({"nameServer": "a:1", "queueSelector": "column"}, schema, overwrite=False)
    batch = batch_of(columns, rows)
    parcels = [parcel for lane in Packer(given, "F" * 20, lambda _: QUEUES).pack(batch) for parcel in lane]
    found = {messages(parcel)[0][1]: (parcel.topic, parcel.queue) for parcel in parcels}
    assert found == {b"0": ("x", QUEUES[3]), b"1": ("y", QUEUES[1]), b"2": ("x", None)}
    with pytest.raises(InvalidArgument, match="queue 7 on broker b"):
        pack(
            "body binary, queueId int, brokerName string",
            [{"body": b"", "queueId": 7, "brokerName": "b"}],
            queueSelector="column",
        )


@pytest.mark.scenario(35)
def test_a_row_that_is_too_large_is_named() -> None:
    with pytest.raises(MessageTooLarge, match=r"row 1 .* 4194305 bytes"):
        pack("body binary", [{"body": b""}, {"body": bytes(4 * 1024 * 1024 + 1)}])
    with pytest.raises(MessageTooLarge, match="properties of row 1"):
        pack("body binary, keys string", [{"body": b"", "keys": "k"}, {"body": b"", "keys": "k" * 40_000}])


def test_a_row_without_a_body_or_with_a_separator_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"row 1 .* no body"):
        pack("body binary", [{"body": b""}, {"body": None}])
    with pytest.raises(InvalidArgument, match=r"column tags, value .*contains"):
        pack("body binary, tags string", [{"body": b"", "tags": "ok"}, {"body": b"", "tags": "a\x02b"}])


@pytest.mark.scenario(43)
@pytest.mark.parametrize(
    ("columns", "given", "text"),
    [
        ("id int", {}, "needs a column body"),
        ("body int", {}, "column body is int, but the sink needs binary or string"),
        ("body binary, value string", {}, "another column for body"),
        ("body binary, delayLevel string", {}, "column delayLevel is string"),
        ("body binary", {"queueSelector": "hash"}, "needs a column shardingKey"),
        ("body binary", {"topic": ""}, "option topic"),
        ("body binary", {"deliveryGuarantee": "maybe"}, "deliveryGuarantee"),
        ("body binary", {"topic": "a b"}, "illegal characters"),
    ],
)
def test_wrong_columns_and_options_are_refused_before_any_task(
    columns: str, given: dict[str, str], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        options(columns, **given)


def test_a_topic_is_needed_and_never_overwritten() -> None:
    schema = spark_schema("body binary")
    with pytest.raises(OptionError, match="option topic or a column topic"):
        write_options({"nameServer": "a:1"}, schema, overwrite=False)
    with pytest.raises(OptionError, match="append"):
        write_options({"nameServer": "a:1", "topic": "t"}, schema, overwrite=True)


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 300), (7, 1), (0xFFFF_FFFF_F000, 0x1000)])
def test_unique_keys_are_the_task_and_the_row_in_hexadecimal(first: int, count: int) -> None:
    keys = unique_keys("A1" * 10, first, count)
    keys.validate(full=True)
    assert keys.to_pylist() == [b"A1" * 10 + b"%012X" % row for row in range(first, first + count)]
