from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from penstock import ConsumeFrom, MessageModel, Producer, PullConsumer, PushConsumer, SimpleConsumer
from penstock.client.config import (
    ConsumerSettings,
    ProducerSettings,
    PullSettings,
    PushSettings,
    Timings,
    parse_addresses,
    parse_consume_timestamp,
)
from penstock.errors import IllegalName, InvalidArgument


def test_defaults_are_those_of_the_protocol() -> None:
    push = PushSettings(group="g")
    assert (push.consume_threads, push.consume_batch, push.pull_batch) == (20, 1, 32)
    assert (push.pull_threshold_messages, push.pull_threshold_mib, push.max_span) == (1_000, 100, 2_000)
    assert (push.pull_suspend_ms, push.pull_timeout_ms) == (15_000, 30_000)
    assert push.consume_from is ConsumeFrom.LAST_OFFSET
    assert push.message_model is MessageModel.CLUSTERING
    pull = PullSettings(group="g")
    assert (pull.pull_batch, pull.poll_timeout_ms, pull.auto_commit_interval_ms) == (10, 5_000, 5_000)
    producer = ProducerSettings()
    assert (producer.send_timeout_ms, producer.retry_times) == (3_000, 2)
    assert (producer.compress_over_bytes, producer.compress_type, producer.compress_level) == (
        4_096,
        "zlib",
        5,
    )
    assert (producer.create_topic_key, producer.default_topic_queues) == ("TBW102", 4)
    assert (push.route_interval_ms, push.heartbeat_interval_ms, push.persist_interval_ms) == (
        30_000,
        30_000,
        5_000,
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"consume_batch": 0}, "consume_batch must be an integer from 1 to 1024, not 0"),
        ({"consume_batch": 1_025}, "1 to 1024"),
        ({"consume_threads": "20"}, "consume_threads must be an integer"),
        ({"consume_threads": True}, "consume_threads must be an integer"),
        ({"pull_batch": 2_000}, "1 to 1024"),
        ({"pull_threshold_messages_topic": 0}, "or -1"),
        ({"orderly": 1}, "True or False"),
        ({"message_model": "CLUSTERING "}, "MessageModel.CLUSTERING"),
        ({"consume_from": "nowhere"}, "ConsumeFrom.LAST_OFFSET"),
        ({"pull_timeout_ms": 1_000}, "pull_suspend_ms"),
        ({"orderly": True, "message_model": MessageModel.BROADCASTING}, "orderly consumption needs"),
        ({"allocation": "AVG"}, "allocation strategy"),
        ({"suspend_ms": 5}, "10 to 30000"),
        ({"instance_name": "a@b"}, "'@'"),
        ({"instance_name": ""}, "empty"),
        ({"instance_name": 5}, "instance_name must be text, not 5"),
        ({"access_key": "only"}, "belong together"),
        ({"name_server": "nonsense"}, "host:port"),
        ({"consume_bach": 5}, "did you mean 'consume_batch'"),
        ({"no_such_thing": 5}, "unknown setting 'no_such_thing'$"),
        ({"timings": Timings, "pull_suspend_ms": -1}, "pull_suspend_ms"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_what_is_allowed(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text):
        PushConsumer(group="g", **options)


@pytest.mark.parametrize("group", ["", "a b", "x" * 121])
def test_an_illegal_group_is_refused(group: str) -> None:
    with pytest.raises(IllegalName):
        PushConsumer(group=group)


def test_placeholder_groups_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="DEFAULT_CONSUMER"):
        PullConsumer(group="DEFAULT_CONSUMER")
    with pytest.raises(InvalidArgument, match="DEFAULT_PRODUCER"):
        Producer(group="DEFAULT_PRODUCER")


def test_settings_can_be_given_whole_and_changed_by_keyword() -> None:
    settings = PushSettings(group="g", consume_batch=4)
    consumer = PushConsumer("h:1", settings=settings, consume_threads=3)
    assert consumer.settings == dataclasses.replace(settings, name_server="h:1", consume_threads=3)


def test_a_producer_checks_its_latency_steps_and_compression() -> None:
    with pytest.raises(InvalidArgument, match="longest latency first"):
        ProducerSettings(latency_steps_ms=((50, 0), (100, 0)))
    with pytest.raises(InvalidArgument, match="compress_type"):
        ProducerSettings(compress_type="gzip")  # type: ignore[arg-type]


def test_secrets_are_not_shown() -> None:
    shown = repr(ConsumerSettings(group="g", access_key="ak", secret_key="hidden", security_token="hidden"))
    assert "hidden" not in shown


def test_addresses_may_come_in_several_forms() -> None:
    assert parse_addresses("a:1; b:2 ;") == ["a:1", "b:2"]
    assert parse_addresses("http://MQ_INST_1.host/x:9876") == ["x:9876"]
    assert parse_addresses("[::1]:9876") == ["[::1]:9876"]
    assert parse_addresses("") == []
    for text in ("a", "a:b", "a:0", "a:70000", ":9"):
        with pytest.raises(InvalidArgument):
            parse_addresses(text)


def test_the_protocols_text_form_of_a_time_can_be_read() -> None:
    later = parse_consume_timestamp("20260102000000")
    assert later - parse_consume_timestamp("20260101000000") == 24 * 3_600_000
    with pytest.raises(InvalidArgument, match="yyyyMMddHHmmss"):
        parse_consume_timestamp("yesterday")


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer, SimpleConsumer])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "group is needed"),
        ({"group": None}, "group must be text, not None"),
        ({"group": "g", "subscribe": ["orders"]}, "subscribe must map topics to tags, .* not \\['orders'\\]"),
        ({"group": "g", "subscribe": "orders"}, "subscribe must map topics to tags"),
        ({"group": "g", "subscribe": {"orders": 5}}, "wanted of topic orders must be text, not 5"),
    ],
)
def test_what_a_consumer_needs_is_asked_for(kind: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        kind("127.0.0.1:9876", **options)


def test_a_handler_without_a_topic_is_refused_where_it_is_made() -> None:
    consumer = PushConsumer("127.0.0.1:9876", group="g")
    with pytest.raises(InvalidArgument, match="topic must be text"):
        consumer.on(print)  # type: ignore[arg-type]
