"""Options of the source: checked before any task, with errors that name the option."""

from __future__ import annotations

import logging
import pickle

import pytest

from penstock.message.queue import MessageQueue
from penstock.spark.option_parsing import OptionError
from penstock.spark.options import Position, ReadOptions, read_options
from penstock.spark.schema import COLUMNS


def options(**given: str) -> ReadOptions:
    return read_options({"nameServer": "127.0.0.1:9876", "subscribe": "orders"} | given)


def test_the_defaults_are_those_of_the_documentation() -> None:
    found = options()
    assert found.topics == ("orders",)
    assert found.batch_start() == Position("earliest")
    assert found.stream_start() == Position("latest")
    assert found.end == Position("latest")
    assert found.pull.columns == tuple(COLUMNS)
    assert (found.pull.pull_batch_size, found.pull.pull_batch_bytes, found.pull.pull_inflight) == (
        1024,
        4 << 20,
        4,
    )
    assert (found.pull.pull_timeout_ms, found.fetch_retries, found.fetch_retry_interval_ms) == (
        30_000,
        10,
        1_000,
    )
    assert found.pull.fail_on_data_loss
    assert found.wait_for_broker
    assert not found.commit_offsets
    assert found.max_trigger_delay_ms == 900_000


def test_options_travel_to_executors() -> None:
    found = options(subExpression="paid || shipped")
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.pull.tags == {"paid", "shipped"}


def test_names_are_known_in_any_case_and_under_their_old_names() -> None:
    found = read_options({"ROCKETMQ.namesrv": "a:1;b:2", "Topic": "t", "includeheaders": "false"})
    assert found.name_server == "a:1;b:2"
    assert found.topics == ("t",)
    assert "properties" not in found.pull.columns


def test_an_alias_with_another_value_is_refused() -> None:
    with pytest.raises(OptionError, match="subscribe and topic"):
        options(topic="payments")


@pytest.mark.scenario(43)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribe": "a b"}, "subscribe.*illegal characters"),
        ({"subscribe": "a,,b"}, "subscribe.*empty"),
        ({"assign": '{"orders":{"a":[0]}}'}, "exactly one of.*subscribe and assign"),
        ({"subscribePattern": "o.*"}, "exactly one of"),
        ({"nameServer": "localhost"}, "nameServer"),
        ({"nameServer": ""}, "nameServer"),
        ({"startingOffsets": "yesterday"}, "startingOffsets='yesterday'.*earliest, latest, group"),
        ({"startingOffsets": '{"orders":{"a":{"0":-3}}}'}, "below -2"),
        ({"startingOffsets": '{"payments":{"a":{"0":1}}}'}, "payments/a/0, which is not read"),
        ({"startingOffsets": '{"orders":{"a":[1]}}'}, "queues of orders on a"),
        ({"endingOffsets": '{"orders":{"a":{"0":-2}}}'}, "endingOffsets.*earliest"),
        ({"startingOffsetsByTimestamp": '{"orders":{"a":{"0":-5}}}'}, "startingOffsetsByTimestamp"),
        ({"minPartitions": "0"}, "minPartitions='0'"),
        ({"minPartitions": "9", "maxPartitions": "3"}, "minPartitions is above maxPartitions"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "minOffsetsPerTrigger is above"),
        ({"maxTriggerDelay": "15"}, "maxTriggerDelay='15'.*15m"),
        ({"arrowBatchBytes": "big"}, "arrowBatchBytes='big'"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss='yes'.*true or false"),
        ({"onCorrupt": "ignore"}, "onCorrupt='ignore'.*fail, skip, keep"),
        ({"columns": "body,valeu"}, "columns.*'valeu'"),
        ({"columns": "body,body"}, "columns.*twice"),
        ({"columns": "properties", "includeProperties": "none"}, "includeProperties is none"),
        ({"subExpressionType": "SQL92"}, "SQL92 needs a condition"),
        ({"consumerGroup": "my group"}, "consumerGroup"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        options(**given)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="subscribePattern"):
        read_options({"nameServer": "a:1", "subscribePattern": "(["})


@pytest.mark.scenario(43)
def test_an_unknown_option_is_a_warning_with_the_nearest_name(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "nameServer": "a:1",
        "subscribe": "t",
        "startingOffset": "earliest",
        "kafka.ssl": "x",
        "qqq": "1",
    }
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        read_options(given, warn=True)
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0].startswith("option kafka.ssl is ignored")
    assert texts[1] == "unknown option qqq is ignored"
    assert texts[2] == "unknown option startingoffset is ignored; did you mean startingOffsets?"


def test_options_of_the_other_mode_are_refused() -> None:
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger only works for streams"):
        options(maxOffsetsPerTrigger="5").batch_start()
    with pytest.raises(OptionError, match="endingOffsets only works for batch"):
        options(endingOffsets="latest").stream_start()
    with pytest.raises(OptionError, match="cannot start at latest"):
        options(startingOffsets="latest").batch_start()


def test_a_timestamp_comes_before_timestamps_by_queue_and_these_before_offsets() -> None:
    offsets = {"startingOffsets": "earliest"}
    by_queue = {"startingOffsetsByTimestamp": '{"orders":{"a":{"1":7}}}'}
    assert options(**offsets).start == Position("earliest")
    queue = MessageQueue("orders", "a", 1)
    assert options(**offsets, **by_queue).start == Position("timestamps", queues={queue: 7})
    both = options(**offsets, **by_queue, startingTimestamp="9", startingOffsetsByTimestampStrategy="latest")
    assert both.start == Position("timestamp", timestamp_ms=9, latest_when_too_new=True)


def test_assigned_queues_decide_the_topics() -> None:
    found = read_options({"nameServer": "a:1", "assign": '{"t2":{"b":[1,0]},"t1":{"b":[0]}}'})
    assert found.topics == ("t1", "t2")
    assert found.assigned == (
        MessageQueue("t1", "b", 0),
        MessageQueue("t2", "b", 0),
        MessageQueue("t2", "b", 1),
    )


def test_the_generated_group_is_the_same_for_the_same_subscription_only() -> None:
    mine, same, other = options(), options(pullInflight="2"), options(subExpression="paid")
    assert mine.pull.consumer_group == same.pull.consumer_group != other.pull.consumer_group
    assert mine.pull.consumer_group.startswith("spark-rocketmq-source-")
    assert options(consumerGroup="billing").commit_offsets
