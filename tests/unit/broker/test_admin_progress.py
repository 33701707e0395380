from __future__ import annotations

from typing import Any

import pytest

from penstock.message.queue import MessageQueue
from penstock.wire import dialect
from penstock.wire.bodies import (
    BrokerStatsData,
    ConsumerOffsetSerializeWrapper,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
)
from penstock.wire.codes import RequestCode, ResponseCode


def fill(bench: Any, topic: str = "orders", count: int = 3, *, queue_id: int = 0) -> None:
    for _ in range(count):
        bench.send(topic, queue_id=queue_id, queues=2)
        bench.now_ms += 1_000


def commit(bench: Any, group: str, topic: str, queue_id: int, offset: int) -> None:
    bench.broker.groups.find(group, bench.now_ms)
    bench.broker.offsets.commit(group, topic, queue_id, offset, bench.now_ms)


def join(bench: Any, group: str, *topics: str) -> None:
    consumer = {
        "groupName": group,
        "subscriptionDataSet": [{"topic": topic, "subString": "*"} for topic in topics],
    }
    heartbeat = {"clientID": f"client-of-{group}", "consumerDataSet": [consumer]}
    bench.ask(RequestCode.HEART_BEAT, None, dialect.dumps(heartbeat), peer=bench.new_peer())


def stats(bench: Any, **ext: str) -> ConsumeStats:
    return ConsumeStats.decode(bench.ask(RequestCode.GET_CONSUME_STATS, ext).body)


def queue(queue_id: int, topic: str = "orders") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


# ---- lag --------------------------------------------------------------------------------------------


def test_progress_of_a_group_in_every_queue(bench: Any) -> None:
    first_ms = bench.now_ms
    fill(bench)
    commit(bench, "billing", "orders", 0, 2)
    bench.broker.offsets.note_pulled("billing", "orders", 0, 3)
    table = stats(bench, consumerGroup="billing").offset_table
    assert sorted(table) == [queue(0), queue(1)]
    progress = table[queue(0)]
    assert (progress.broker_offset, progress.consumer_offset, progress.pull_offset) == (3, 2, 3)
    assert progress.last_timestamp == first_ms + 1_000
    assert (table[queue(1)].broker_offset, table[queue(1)].consumer_offset) == (0, 0)
    assert table[queue(1)].last_timestamp == 0


def test_topics_are_those_listed_else_the_one_named_else_all_with_offsets(bench: Any) -> None:
    for topic in ("orders", "other", "third"):
        fill(bench, topic, 1)
        commit(bench, "billing", topic, 0, 1)

    def topics(**ext: str) -> set[str]:
        return {mq.topic for mq in stats(bench, consumerGroup="billing", **ext).offset_table}

    assert topics() == {"orders", "other", "third"}
    assert topics(topic="other") == {"other"}
    assert topics(topicList="orders;third;nope;", topic="other") == {"orders", "third"}
    assert topics(topic="nope") == set()


def test_topics_that_a_live_group_has_left_are_not_shown(bench: Any) -> None:
    for topic in ("orders", "other"):
        fill(bench, topic, 1)
        commit(bench, "billing", topic, 0, 1)
    join(bench, "billing", "other")
    assert {mq.topic for mq in stats(bench, consumerGroup="billing").offset_table} == {"other"}


def test_the_rate_of_a_group_is_the_sum_over_its_topics(bench: Any) -> None:
    for topic in ("orders", "other"):
        fill(bench, topic, 1)
        commit(bench, "billing", topic, 0, 1)
        bench.broker.statistics.count_get("billing", topic, 0, 5, 50)
    bench.wait(11_000, step_ms=500)
    assert stats(bench, consumerGroup="billing").consume_tps == pytest.approx(1.0, rel=0.2)


def test_lag_of_all_groups_with_totals(bench: Any) -> None:
    fill(bench)
    commit(bench, "billing", "orders", 0, 1)
    bench.broker.offsets.note_pulled("billing", "orders", 0, 2)
    answer = bench.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})
    body = ConsumeStatsList.decode(answer.body)
    assert (body.broker_addr, body.total_diff, body.total_inflight_diff) == ("127.0.0.1:10911", 2, 1)
    by_group = {group: found for entry in body.consume_stats_list for group, found in entry.items()}
    assert by_group["billing"][0].offset_table[queue(0)].consumer_offset == 1
    assert by_group["TOOLS_CONSUMER"] == []


def test_only_order_topics_when_asked(bench: Any) -> None:
    fill(bench)
    commit(bench, "billing", "orders", 0, 1)
    body = bench.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": True}).body
    assert ConsumeStatsList.decode(body).total_diff == 0
    bench.broker.topics.mark_ordered(["orders"], bench.now_ms)
    body = bench.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": True}).body
    assert ConsumeStatsList.decode(body).total_diff == 2


# ---- time -------------------------------------------------------------------------------------------


def test_time_span_of_each_queue(bench: Any) -> None:
    first_ms = bench.now_ms
    fill(bench)
    commit(bench, "billing", "orders", 0, 2)
    answer = bench.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "orders", "group": "billing"})
    busy, idle = QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set
    assert busy.message_queue == queue(0)
    assert (busy.min_time_stamp, busy.max_time_stamp) == (first_ms, first_ms + 2_000)
    assert (busy.consume_time_stamp, busy.delay_time) == (first_ms + 1_000, 1_000)
    assert busy.min_time_stamp_str is not None
    assert busy.min_time_stamp_str.endswith(f":{first_ms % 1000:03d}")
    assert "#" in busy.min_time_stamp_str
    assert (idle.min_time_stamp, idle.max_time_stamp, idle.consume_time_stamp) == (-1, -1, -1)
    assert idle.delay_time == 0


def test_a_group_that_never_consumed_is_behind_since_the_first_message(bench: Any) -> None:
    first_ms = bench.now_ms
    fill(bench)
    answer = bench.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "orders", "group": "new"})
    span = QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set[0]
    assert (span.consume_time_stamp, span.delay_time) == (first_ms, bench.now_ms - first_ms)


def test_time_span_of_an_unknown_topic(bench: Any) -> None:
    answer = bench.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "nope", "group": "g"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_statistics_are_viewed_by_name_and_key(bench: Any) -> None:
    fill(bench, count=4)
    bench.wait(11_000, step_ms=500)
    ext = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"}
    body = BrokerStatsData.decode(bench.ask(RequestCode.VIEW_BROKER_STATS_DATA, ext).body)
    assert body.stats_minute.sum == 4
    assert body.stats_minute.avgpt == 1.0
    answer = bench.ask(RequestCode.VIEW_BROKER_STATS_DATA, ext | {"statsKey": "NoSuchTopicX"})
    assert (answer.code, answer.remark) == (1, "The stats <TOPIC_PUT_NUMS> <NoSuchTopicX> not exist")


# ---- offsets ----------------------------------------------------------------------------------------


def test_all_offsets_have_queue_ids_as_bare_keys(bench: Any) -> None:
    fill(bench)
    commit(bench, "billing", "orders", 0, 2)
    commit(bench, "billing", "orders", 1, 0)
    body = bench.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body
    assert b'"offsetTable":{"orders@billing":{0:2,1:0}}' in body
    assert ConsumerOffsetSerializeWrapper.decode(body).offset_table == bench.broker.offsets.table


def test_delay_offsets_have_levels_as_bare_keys(bench: Any) -> None:
    bench.send("orders", properties="DELAY\x011\x02")
    bench.wait(3_000)
    body = bench.ask(RequestCode.GET_ALL_DELAY_OFFSET).body
    assert body.endswith(b'"offsetTable":{1:1}}')


def test_correction_offsets_are_the_lowest_of_the_other_groups(bench: Any) -> None:
    fill(bench)
    commit(bench, "slow", "orders", 0, 1)
    commit(bench, "fast", "orders", 0, 3)
    code = RequestCode.QUERY_CORRECTION_OFFSET

    def corrections(**ext: str) -> dict[int, int]:
        return QueryCorrectionOffsetBody.decode(
            bench.ask(code, {"topic": "orders", **ext}).body
        ).correction_offsets

    assert corrections(compareGroup="fast") == {0: 1}
    assert corrections(compareGroup="slow", filterGroups="slow") == {0: (1 << 63) - 1}
    assert corrections(compareGroup="fast", filterGroups="slow , x") == {0: 3}
    assert bench.broker.offsets.query("slow", "orders", 0) == 1
    assert bench.ask(code, {"topic": "nope", "compareGroup": "x"}).body == b'{"correctionOffsets":{}}'


@pytest.mark.parametrize("topic", ["orders", ""])
def test_a_group_takes_the_place_of_another(bench: Any, topic: str) -> None:
    fill(bench)
    commit(bench, "billing", "orders", 0, 2)
    commit(bench, "billing", "orders", 1, 0)
    ext = {"srcGroup": "billing", "destGroup": "copy", "topic": topic, "offline": True}
    assert bench.ask(RequestCode.CLONE_GROUP_OFFSET, ext).code == ResponseCode.SUCCESS
    assert dict(bench.broker.offsets.queues("copy", "orders")) == {0: 2, 1: 0}


def test_cloning_skips_unknown_topics_and_those_the_source_has_left(bench: Any) -> None:
    fill(bench)
    commit(bench, "billing", "orders", 0, 2)
    join(bench, "billing", "other")
    ext = {"srcGroup": "billing", "destGroup": "copy", "topic": "orders", "offline": False}
    bench.ask(RequestCode.CLONE_GROUP_OFFSET, ext)
    assert bench.broker.offsets.topics_of("copy") == []
    bench.ask(RequestCode.CLONE_GROUP_OFFSET, ext | {"topic": "nope", "offline": True})
    assert bench.broker.offsets.topics_of("copy") == []


def test_cloning_to_an_illegal_name_is_refused(bench: Any) -> None:
    ext = {"srcGroup": "billing", "destGroup": "not@good", "topic": "orders", "offline": True}
    assert bench.ask(RequestCode.CLONE_GROUP_OFFSET, ext).code == ResponseCode.INVALID_PARAMETER
