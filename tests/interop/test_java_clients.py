"""Apache's Java producer and consumers on our broker; every test checks what arrived."""

from __future__ import annotations

import collections
import itertools
import time
from typing import Any

import pytest

pytestmark = pytest.mark.interop
_numbers = itertools.count()


def bodies(count: int, prefix: str = "m") -> list[dict[str, Any]]:
    return [{"body": f"{prefix}{i}", "tag": "A" if i % 2 else "B", "keys": f"key-{i}"} for i in range(count)]


@pytest.fixture
def subscriber(java, server, topic):
    """Start push consumers that are stopped when the test ends."""
    started = []

    def start(**options: Any) -> str:
        name = f"{topic}-{next(_numbers)}"
        settings = {"group": f"G-{topic}"[:100], "mode": "concurrent", "topic": topic, **options}
        java.call("subscribe", id=name, nameServer=server.name_server, **settings)
        started.append(name)
        return name

    yield start
    for name in started:
        java.call("unsubscribe", id=name)


def test_single_sends_report_queue_offset_and_ids(java, server, topic):
    sent = java.call("send", nameServer=server.name_server, topic=topic, messages=bodies(12))
    assert all(one["status"] == "SEND_OK" for one in sent)
    assert collections.Counter(one["queueId"] for one in sent) == {0: 3, 1: 3, 2: 3, 3: 3}
    for queue in range(4):
        assert [one["queueOffset"] for one in sent if one["queueId"] == queue] == [0, 1, 2]
    assert len({one["messageId"] for one in sent}) == len({one["offsetId"] for one in sent}) == 12


def test_push_consumer_gets_every_message_once_with_all_its_fields(java, server, topic, subscriber):
    messages = [{**m, "properties": {"colour": f"c{i}", "wörd": "ünï"}} for i, m in enumerate(bodies(50))]
    sent = java.call("send", nameServer=server.name_server, topic=topic, messages=messages)
    seen = java.received(subscriber(), 50)
    assert len(seen) == 50
    by_body = {one["body"]: one for one in seen}
    for message, result in zip(messages, sent, strict=True):
        one = by_body[message["body"]]
        assert (one["topic"], one["tag"], one["keys"]) == (topic, message["tag"], message["keys"])
        assert one["messageId"] == result["messageId"]
        assert (one["queueId"], one["queueOffset"]) == (result["queueId"], result["queueOffset"])
        assert {k: one["properties"][k] for k in message["properties"]} == message["properties"]
        assert one["reconsumeTimes"] == 0


def test_a_batch_lands_in_one_queue_with_consecutive_offsets(java, server, topic, subscriber):
    result = java.call("sendBatch", nameServer=server.name_server, topic=topic, messages=bodies(20))
    assert result["status"] == "SEND_OK"
    assert len(result["messageId"].split(",")) == 20
    seen = sorted(java.received(subscriber(), 20), key=lambda one: one["queueOffset"])
    assert [one["body"] for one in seen] == [f"m{i}" for i in range(20)]
    assert {one["queueId"] for one in seen} == {result["queueId"]}
    assert [one["messageId"] for one in seen] == result["messageId"].split(",")


def test_oneway_and_asynchronous_sends_arrive(java, server, topic, subscriber):
    java.call("sendOneway", nameServer=server.name_server, topic=topic, messages=bodies(10, "oneway"))
    results = java.call("sendAsync", nameServer=server.name_server, topic=topic, messages=bodies(30, "async"))
    assert [one["status"] for one in results] == ["SEND_OK"] * 30
    seen = java.received(subscriber(), 40)
    assert {one["body"] for one in seen} == {f"oneway{i}" for i in range(10)} | {
        f"async{i}" for i in range(30)
    }


def test_bodies_over_four_kilobytes_travel_compressed(java, server, topic, subscriber):
    text = "penstock " * 2000
    java.call("send", nameServer=server.name_server, topic=topic, messages=[{"body": text}])
    assert java.received(subscriber(), 1)[0]["body"] == text


def test_orderly_consumer_sees_each_key_in_the_order_of_sending(java, server, topic, subscriber):
    messages = [{"body": f"{key}:{i}", "keys": key} for i in range(10) for key in ("x", "y", "z")]
    sent = java.call("sendOrderly", nameServer=server.name_server, topic=topic, messages=messages)
    assert len({(m["keys"], s["queueId"]) for m, s in zip(messages, sent, strict=True)}) == 3
    seen = java.received(subscriber(mode="orderly"), 30)
    for key in ("x", "y", "z"):
        assert [one["body"] for one in seen if one["keys"] == key] == [f"{key}:{i}" for i in range(10)]


def test_orderly_consumer_repeats_a_failed_message_before_the_next(java, server, topic, subscriber):
    java.call(
        "sendOrderly",
        nameServer=server.name_server,
        topic=topic,
        messages=[{"body": f"{i}", "keys": "k"} for i in range(4)],
    )
    seen = java.received(subscriber(mode="orderly", failures=2), 12)
    assert [one["body"] for one in seen] == [body for body in "0123" for _ in range(3)]


def test_broadcast_consumers_each_get_everything(java, server, topic, subscriber):
    java.call("send", nameServer=server.name_server, topic=topic, messages=bodies(1, "first"))
    names = [subscriber(mode="broadcast", instance=f"{topic}-{i}") for i in range(2)]
    for name in names:
        java.received(name, 1)
    java.call("send", nameServer=server.name_server, topic=topic, messages=bodies(20))
    for name in names:
        assert {one["body"] for one in java.received(name, 21)} == {"first0"} | {f"m{i}" for i in range(20)}


def test_two_consumers_of_a_group_share_the_queues(java, server, topic, subscriber):
    names = [subscriber(instance=f"{topic}-{i}") for i in range(2)]
    time.sleep(3)  # both have joined and balanced
    java.call("send", nameServer=server.name_server, topic=topic, messages=bodies(40))
    deadline = time.monotonic() + 30
    while sum(len(java.call("received", id=name)) for name in names) < 40 and time.monotonic() < deadline:
        time.sleep(0.1)
    seen = [java.call("received", id=name) for name in names]
    assert sorted(one["body"] for part in seen for one in part) == sorted(f"m{i}" for i in range(40))
    queues = [{one["queueId"] for one in part} for part in seen]
    assert len(queues[0]) == len(queues[1]) == 2
    assert not queues[0] & queues[1]


def test_tag_filter_selects_in_the_broker(java, server, topic, subscriber):
    java.call("send", nameServer=server.name_server, topic=topic, messages=bodies(30))
    seen = java.received(subscriber(tags="A || C"), 15)
    time.sleep(0.5)
    assert len(java.call("received", id=f"{topic}-{next(_numbers) - 1}")) == 15
    assert {one["tag"] for one in seen} == {"A"}


def test_failed_messages_come_back_and_end_in_the_dead_letter_queue(java, server, topic, subscriber):
    group = f"DLQ-{topic}"
    java.call("send", nameServer=server.name_server, topic=topic, messages=bodies(3))
    name = subscriber(group=group, failures=99, maxReconsumeTimes=2, delayLevel=1)
    seen = java.received(name, 9, timeout_s=40)
    per_body = collections.defaultdict(list)
    for one in seen:
        assert one["topic"] == topic
        per_body[one["body"]].append(one["reconsumeTimes"])
    assert dict(per_body) == {f"m{i}": [0, 1, 2] for i in range(3)}
    dead = subscriber(group=f"{group}-reader", topic=f"%DLQ%{group}")
    letters = java.received(dead, 3)
    assert {one["body"] for one in letters} == {"m0", "m1", "m2"}
    assert {one["properties"]["RETRY_TOPIC"] for one in letters} == {topic}


def test_a_message_that_fails_once_is_retried_and_then_done(java, server, topic, subscriber):
    java.call("send", nameServer=server.name_server, topic=topic, messages=bodies(5))
    seen = java.received(subscriber(failures=1, delayLevel=1), 10, timeout_s=30)
    assert sorted((one["body"], one["reconsumeTimes"]) for one in seen) == sorted(
        (f"m{i}", n) for i in range(5) for n in (0, 1)
    )
    first = {one["body"]: one["receivedAt"] for one in seen if one["reconsumeTimes"] == 0}
    for one in seen:
        if one["reconsumeTimes"] == 1:
            # the client may need a rebalance (20 s) to take up its new retry topic
            assert 900 <= one["receivedAt"] - first[one["body"]] <= 25_000


def test_delay_levels_hold_a_message_back_for_their_time(java, server, topic, subscriber):
    messages = [{"body": "now"}, {"body": "1s", "delayLevel": 1}, {"body": "5s", "delayLevel": 2}]
    java.call("send", nameServer=server.name_server, topic=topic, messages=messages)
    seen = {one["body"]: one for one in java.received(subscriber(), 3, timeout_s=30)}
    assert 950 <= seen["1s"]["storeTimestamp"] - seen["1s"]["bornTimestamp"] <= 2000
    assert 4950 <= seen["5s"]["storeTimestamp"] - seen["5s"]["bornTimestamp"] <= 6000


@pytest.mark.parametrize("assign", [False, True], ids=["subscribe", "assign"])
def test_lite_pull_consumer_polls_seeks_and_commits(java, server, topic, assign):
    ns = server.name_server
    sent = java.call("send", nameServer=ns, topic=topic, messages=bodies(40))
    java.call("pullStart", id=topic, nameServer=ns, topic=topic, group=f"LP-{topic}", assign=assign)
    seen = java.call("poll", id=topic, count=40, timeoutMs=20_000)
    assert {one["body"] for one in seen} == {f"m{i}" for i in range(40)}
    queue = {"topic": topic, "brokerName": server.broker_name, "queueId": 1}
    java.call("seek", id=topic, offset=4, **queue)
    again = java.call("poll", id=topic, count=6, timeoutMs=10_000)
    expected = [one["queueOffset"] for one in sent if one["queueId"] == 1 and one["queueOffset"] >= 4]
    assert [one["queueOffset"] for one in again if one["queueId"] == 1] == expected
    java.call("pullStop", id=topic)
    progress = java.mqadmin("consumerProgress", "-n", ns, "-g", f"LP-{topic}", "-t", topic)
    rows = [line.split() for line in progress.splitlines() if line.startswith(topic)]
    assert [(row[2], row[3], row[4]) for row in rows] == [(str(q), "10", "10") for q in range(4)]


def test_an_unknown_topic_is_created_by_the_first_send(java, server):
    topic = "JavaAutoCreated"
    sent = java.call("send", nameServer=server.name_server, topic=topic, messages=bodies(4))
    assert all(one["status"] == "SEND_OK" for one in sent)
    route = java.mqadmin("topicRoute", "-n", server.name_server, "-t", topic)
    assert '"readQueueNums":4' in route
    assert '"writeQueueNums":4' in route
