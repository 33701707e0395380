from __future__ import annotations

import json

import pytest

from penstock.wire import headers
from penstock.wire.headers import (
    GetMaxOffsetHeader,
    HeaderStruct,
    PullHeader,
    PullResponseHeader,
    SearchOffsetByTimestampHeader,
    SendHeader,
    SendHeaderV2,
    SendResponseHeader,
)
from penstock.wire.headers.base import codec_of

SEND_FIELDS = {
    "producer_group": 'a "quoted" group',
    "topic": "名",
    "default_topic": "TBW102",
    "default_topic_queue_nums": 4,
    "queue_id": -1,
    "sys_flag": 0,
    "born_timestamp": 1_794_793_096_452,
    "flag": 0,
}


def same(fast: bytes, header: HeaderStruct) -> bool:
    """The hand-made form must be the general one, up to the order of keys."""
    assert json.loads(HeaderStruct.json_ext(header)) == header.to_ext()
    return bool(json.loads(fast) == header.to_ext())


@pytest.mark.parametrize("transaction_id", [None, "", "AC11", 'quote"\\\x01中'])
@pytest.mark.parametrize("recall_handle", [None, "handle"])
@pytest.mark.parametrize("region", ["DefaultRegion", 'r"'])
@pytest.mark.parametrize("trace_on", [True, False])
def test_the_fast_send_answer_equals_the_general_one(
    transaction_id: str | None, recall_handle: str | None, region: str, trace_on: bool
) -> None:
    header = SendResponseHeader(
        "7F000001,7F000002",
        3,
        2**40,
        transaction_id,
        recall_handle=recall_handle,
        region=region,
        trace_on=trace_on,
    )
    assert same(header.json_ext(), header)


@pytest.mark.parametrize("offset_delta", [None, 5])
@pytest.mark.parametrize("topic_sys_flag", [None, 0, -1])
@pytest.mark.parametrize("group_sys_flag", [None, 0, 3])
@pytest.mark.parametrize("forbidden_type", [None, 2])
def test_the_fast_pull_answer_equals_the_general_one(
    offset_delta: int | None,
    topic_sys_flag: int | None,
    group_sys_flag: int | None,
    forbidden_type: int | None,
) -> None:
    header = PullResponseHeader(0, 2**50, -1, 7, offset_delta, topic_sys_flag, group_sys_flag, forbidden_type)
    assert same(header.json_ext(), header)


@pytest.mark.parametrize("properties", [None, "", "KEYS\x01k\x02"])
@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("max_reconsume_times", [None, 16])
@pytest.mark.parametrize("broker_name", [None, "b"])
def test_the_fast_send_request_equals_the_general_one(
    properties: str | None, batch: bool, max_reconsume_times: int | None, broker_name: str | None
) -> None:
    header = SendHeaderV2(
        **SEND_FIELDS,
        properties=properties,
        batch=batch,
        unit_mode=not batch,
        max_reconsume_times=max_reconsume_times,
        broker_name=broker_name,
    )
    assert same(header.json_ext(), header)


@pytest.mark.parametrize("subscription", [None, 'a || "b"'])
@pytest.mark.parametrize("expression_type", [None, "TAG"])
@pytest.mark.parametrize("max_msg_bytes", [None, 2**31 - 1])
@pytest.mark.parametrize("broker_name", [None, "b"])
@pytest.mark.parametrize("request_source", [None, 1])
def test_the_fast_pull_request_equals_the_general_one(
    subscription: str | None,
    expression_type: str | None,
    max_msg_bytes: int | None,
    broker_name: str | None,
    request_source: int | None,
) -> None:
    header = PullHeader(
        consumer_group='a "quoted" group',
        topic="名",
        queue_id=3,
        queue_offset=2**40,
        max_msg_nums=32,
        sys_flag=3,
        commit_offset=-1,
        suspend_timeout_millis=15_000,
        sub_version=2**41,
        subscription=subscription,
        expression_type=expression_type,
        max_msg_bytes=max_msg_bytes,
        broker_name=broker_name,
        request_source=request_source,
    )
    assert same(header.json_ext(), header)


def test_both_send_headers_have_the_same_attributes() -> None:
    assert SendHeader.__struct_fields__ == SendHeaderV2.__struct_fields__


def test_every_header_knows_how_to_read_and_write_its_fields() -> None:
    for name in headers.__all__:
        codec_of(getattr(headers, name))


def test_primitives_are_written_at_their_default_and_none_is_not() -> None:
    assert GetMaxOffsetHeader("T", 1).to_ext() == {"topic": "T", "queueId": "1", "committed": "true"}


@pytest.mark.parametrize(
    ("boundary", "upper"), [("UPPER", True), ("upper", True), ("LOWER", False), ("x", False), (None, False)]
)
def test_only_upper_is_the_upper_boundary(boundary: str | None, upper: bool) -> None:
    assert SearchOffsetByTimestampHeader("T", 0, 1, boundary).is_upper is upper
