from __future__ import annotations

from typing import Any

import pytest

from penstock import limits
from penstock.message.tags import tag_code
from penstock.wire import dialect
from penstock.wire.bodies import QueryConsumeQueueResponseBody
from penstock.wire.codes import RequestCode, ResponseCode


def ask(bench: Any, **ext: Any) -> Any:
    fields = {"topic": "orders", "queueId": 0, "index": 0, "count": 10, **ext}
    return bench.ask(RequestCode.QUERY_CONSUME_QUEUE, fields)


def shown(bench: Any, **ext: Any) -> QueryConsumeQueueResponseBody:
    return QueryConsumeQueueResponseBody.decode(ask(bench, **ext).body)


def fill(bench: Any) -> None:
    for tag in ("A", "B", "A"):
        bench.send("orders", properties=f"TAGS\x01{tag}\x02size\x01{ord(tag)}\x02")


def test_entries_are_shown_as_they_are_stored(bench: Any) -> None:
    fill(bench)
    body = shown(bench, index=1, count=1)
    assert (body.min_queue_index, body.max_queue_index) == (0, 3)
    (entry,) = body.queue_data
    (position, size, code) = bench.store.entries("orders", 0, 1, 1)[0]
    assert (entry.physic_offset, entry.physic_size, entry.tags_code) == (position, size, code)
    assert code == tag_code("B")
    assert entry.eval is False


def test_members_without_a_value_are_left_out(bench: Any) -> None:
    bench.send("orders")
    size = bench.store.entries("orders", 0, 0, 1)[0][1]
    assert ask(bench).body == (
        b'{"maxQueueIndex":1,"minQueueIndex":0,"queueData":'
        b'[{"eval":false,"physicOffset":0,"physicSize":%d,"tagsCode":0}]}' % size
    )


@pytest.mark.parametrize("ext", [{"index": 3}, {"index": -1}, {"queueId": 7}, {"topic": "nope"}])
def test_an_index_outside_the_queue_has_no_entries_and_a_remark(bench: Any, ext: dict[str, Any]) -> None:
    fill(bench)
    answer = ask(bench, **ext)
    assert answer.code == ResponseCode.SUCCESS
    assert "is not exist!" in answer.remark
    assert QueryConsumeQueueResponseBody.decode(answer.body).queue_data == []


def test_no_more_than_the_bound_is_shown(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench)
    monkeypatch.setattr(limits, "CONSUME_QUEUE_ENTRIES_SHOWN", 2)
    assert len(shown(bench, count=1 << 30).queue_data) == 2
    assert shown(bench, count=-5).queue_data == []


def join(bench: Any, expression: str, expression_type: str = "TAG") -> None:
    subscription = {
        "topic": "orders",
        "subString": expression,
        "expressionType": expression_type,
        "tagsSet": ["A"] if expression_type == "TAG" else [],
        "codeSet": [tag_code("A")] if expression_type == "TAG" else [],
    }
    consumer = {"groupName": "billing", "subscriptionDataSet": [subscription]}
    heartbeat = {"clientID": "c1", "consumerDataSet": [consumer]}
    bench.ask(RequestCode.HEART_BEAT, None, dialect.dumps(heartbeat), peer=bench.new_peer())


@pytest.mark.parametrize(("expression", "kind"), [("A", "TAG"), ("size < 66", "SQL92")])
def test_a_groups_subscription_is_evaluated_for_each_entry(bench: Any, expression: str, kind: str) -> None:
    fill(bench)
    join(bench, expression, kind)
    body = shown(bench, consumerGroup="billing")
    assert [entry.eval for entry in body.queue_data] == [True, False, True]
    assert body.subscription_data is not None
    assert body.subscription_data.sub_string == expression


def test_a_group_that_is_offline_or_has_no_valid_filter_gets_nothing(bench: Any) -> None:
    fill(bench)
    body = shown(bench, consumerGroup="billing")
    assert body.filter_data == "billing@orders is not online!"
    assert not any(entry.eval for entry in body.queue_data)
    join(bench, "size ==", "SQL92")
    body = shown(bench, consumerGroup="billing")
    assert body.filter_data
    assert not any(entry.eval for entry in body.queue_data)


def test_cleaning_keeps_what_is_live(bench: Any) -> None:
    fill(bench)
    assert bench.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == ResponseCode.SUCCESS
    assert bench.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == ResponseCode.SUCCESS
    assert len(shown(bench).queue_data) == 3


def test_a_master_without_slaves(bench: Any) -> None:
    fill(bench)
    assert bench.ask(RequestCode.GET_BROKER_HA_STATUS).body == (
        b'{"haClientRuntimeInfo":{"lastReadTimestamp":0,"lastWriteTimestamp":0,"masterFlushOffset":0,'
        b'"maxOffset":0,"transferredByteInSecond":0},"haConnectionInfo":[],"inSyncSlaveNums":0,'
        b'"master":true,"masterCommitLogMaxOffset":%d}' % bench.store.max_physical_offset
    )
