"""Our client on a real Apache broker. Wherever there are two ends, the other one is Apache's Java client.

What needs no second client runs on Apache's broker as well, by `pytest tests/client --server=apache`.
"""

from __future__ import annotations

import asyncio
import collections
import time

import pytest

from penstock import ConsumeFrom, Message, MessageModel, MessageQueue, SendStatus, sync
from penstock.client.api import BrokerApi
from penstock.client.remoting import Remoting
from penstock.message.ids import parse_offset_id

pytestmark = pytest.mark.interop


@pytest.fixture(scope="session")
def server(apache_server):
    return apache_server


def messages(topic, count, prefix="m"):
    return [
        Message(topic, f"{prefix}{i}".encode(), tag="A" if i % 2 else "B", keys=f"key-{i}")
        for i in range(count)
    ]


def java_messages(count, prefix="m"):
    return [{"body": f"{prefix}{i}", "tag": "A" if i % 2 else "B", "keys": f"key-{i}"} for i in range(count)]


def bodies(seen):
    return sorted(one["body"] if isinstance(one, dict) else one.body.decode() for one in seen)


# ---- sending ------------------------------------------------------------------------------------------


def test_java_sees_every_field_of_what_python_sent(topic, producer, java_subscriber):
    sent = []
    for number in range(12):
        message = Message(
            topic, b"m%d" % number, tag="T", keys=["k1", f"k{number}"], properties={"wörd": f"ünï{number}"}
        )
        sent.append(producer.send(message))
    assert {one.status for one in sent} == {SendStatus.OK}
    assert collections.Counter(one.queue.queue_id for one in sent) == {0: 3, 1: 3, 2: 3, 3: 3}
    by_body = {one["body"]: one for one in java_subscriber().received(12)}
    for number, result in enumerate(sent):
        one = by_body[f"m{number}"]
        assert (one["topic"], one["tag"], one["keys"]) == (topic, "T", f"k1 k{number}")
        assert one["messageId"] == result.message_id
        assert (one["queueId"], one["queueOffset"]) == (result.queue.queue_id, result.queue_offset)
        assert one["properties"]["wörd"] == f"ünï{number}"


def test_java_sees_batches_pipelines_and_oneways(topic, producer, java_subscriber):
    batch = producer.send_batch(messages(topic, 20, "batch"))
    many = producer.send_many(messages(topic, 2000, "many"))
    for message in messages(topic, 10, "oneway"):
        producer.send_oneway(message)
    seen = java_subscriber().received(2030)
    assert bodies(seen) == sorted(
        [f"batch{i}" for i in range(20)]
        + [f"many{i}" for i in range(2000)]
        + [f"oneway{i}" for i in range(10)]
    )
    place = {one["body"]: (one["messageId"], one["queueId"], one["queueOffset"]) for one in seen}
    assert [place[f"many{i}"] for i in range(2000)] == [
        (one.message_id, one.queue.queue_id, one.queue_offset) for one in many
    ]
    ids = batch.message_id.split(",")
    assert [place[f"batch{i}"] for i in range(20)] == [
        (ids[i], batch.queue.queue_id, batch.queue_offset + i) for i in range(20)
    ]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_java_reads_bodies_that_python_compressed(server, topic, kind, java_subscriber):
    text = "penstock " * 2000
    with sync.Producer(server.name_server, compress_type=kind) as producer:
        producer.send(Message(topic, text.encode()))
    (one,) = java_subscriber().received(1)
    assert one["body"] == text


def test_both_clients_send_a_key_to_the_same_queue_and_keep_its_order(
    java, server, topic, producer, java_subscriber, python_subscriber
):
    keys = ["order-17", "x", "müller", "", "polygenelubricants"]
    python = [[producer.send(Message(topic, b"p%d" % n), queue_key=key) for key in keys] for n in range(5)]
    for sent in python[1:]:
        assert [one.queue for one in sent] == [one.queue for one in python[0]]
    theirs = [{"body": f"j-{key}", "keys": key} for key in keys if key]
    java_sent = java.call("sendOrderly", nameServer=server.name_server, topic=topic, messages=theirs)
    ours = {key: one.queue.queue_id for key, one in zip(keys, python[0], strict=True)}
    assert [one["queueId"] for one in java_sent] == [ours[key] for key in keys if key]
    by_queue = collections.defaultdict(list)
    for one in java_subscriber(mode="orderly", group=f"J-{topic}").received(29):
        by_queue[one["queueId"]].append(one["queueOffset"])
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())
    seen = collections.defaultdict(list)
    for one in python_subscriber(orderly=True).received(29):
        seen[one.queue_id].append(one.queue_offset)
    assert seen == by_queue


# ---- push consumption ---------------------------------------------------------------------------------


def test_python_sees_every_field_of_what_java_sent(java, server, topic, python_subscriber):
    long = "penstock " * 2000
    wanted = [{**m, "properties": {"wörd": "ünï"}} for m in java_messages(30)] + [{"body": long}]
    sent = java.call("send", nameServer=server.name_server, topic=topic, messages=wanted)
    by_body = {one.body.decode(): one for one in python_subscriber().received(31)}
    for message, result in zip(wanted, sent, strict=True):
        one = by_body[message["body"]]
        assert (one.topic, one.tag, " ".join(one.keys)) == (
            topic,
            message.get("tag"),
            message.get("keys", ""),
        )
        assert (one.message_id, one.offset_message_id) == (result["messageId"], result["offsetId"])
        assert one.queue == MessageQueue(topic, server.broker_name, result["queueId"])
        assert one.queue_offset == result["queueOffset"]
        assert one.user_properties == message.get("properties", {})
        assert one.reconsume_times == 0
        assert 0 <= one.store_ms - one.born_ms < 60_000


def test_an_orderly_listener_that_fails_gets_the_message_again_before_the_next(
    topic, producer, python_subscriber
):
    for number in range(4):
        producer.send(Message(topic, b"%d" % number), queue_key="k")
    seen = python_subscriber(orderly=True, failures=2).received(12)
    assert [one.body.decode() for one in seen] == [body for body in "0123" for _ in range(3)]


def test_broadcast_consumers_each_get_everything_and_go_on_where_they_were(
    topic, producer, python_subscriber, tmp_path
):
    producer.send_many(messages(topic, 20))
    options = [
        {
            "message_model": MessageModel.BROADCASTING,
            "instance_name": f"i{number}",
            "local_offset_dir": str(tmp_path),
        }
        for number in range(2)
    ]
    consumers = [python_subscriber(**one) for one in options]
    for consumer in consumers:
        assert bodies(consumer.received(20)) == sorted(f"m{i}" for i in range(20))
        consumer.stop()
    producer.send_many(messages(topic, 5, "later"))
    again = python_subscriber(**options[0])
    again.received(5)
    time.sleep(0.5)
    assert bodies(again.seen) == [f"later{i}" for i in range(5)]


def test_a_tag_filter_selects_and_a_hash_that_collides_does_not_get_through(
    topic, producer, python_subscriber
):
    producer.send_many([Message(topic, tag.encode(), tag=tag) for tag in ("Aa", "BB", "C", "D") * 5])
    consumer = python_subscriber(tags="Aa || C")  # the hashes of Aa and BB are equal
    consumer.received(10)
    time.sleep(0.5)
    assert bodies(consumer.seen) == ["Aa"] * 5 + ["C"] * 5


def test_failed_messages_come_back_and_end_in_the_dead_letter_queue(
    topic, group, producer, python_subscriber, java_subscriber
):
    producer.send_many(messages(topic, 3))
    consumer = python_subscriber(failures=99, max_reconsume_times=2, delay_level=1)
    per_body = collections.defaultdict(list)
    for one in consumer.received(9, timeout_s=40):
        assert one.topic == topic
        per_body[one.body.decode()].append((one.reconsume_times, one.store_ms))
    for attempts in per_body.values():
        assert [times for times, _ in attempts] == [0, 1, 2]
        stored = [store_ms for _, store_ms in attempts]
        assert stored[1] - stored[0] >= 900
        assert stored[2] - stored[1] >= 900
    assert sorted(per_body) == ["m0", "m1", "m2"]
    letters = java_subscriber(topic=f"%DLQ%{group}", group=f"R-{topic}").received(3)
    assert bodies(letters) == ["m0", "m1", "m2"]
    assert {one["properties"]["RETRY_TOPIC"] for one in letters} == {topic}
    assert len(consumer.seen) == 9


def test_delay_levels_hold_a_message_back_for_their_time(topic, producer, python_subscriber):
    for text, level in (("now", 0), ("1s", 1), ("5s", 2)):
        producer.send(Message(topic, text.encode(), delay_level=level))
    seen = {one.body.decode(): one for one in python_subscriber().received(3)}
    assert seen["now"].store_ms - seen["now"].born_ms < 950
    assert 950 <= seen["1s"].store_ms - seen["1s"].born_ms <= 3000
    assert 4950 <= seen["5s"].store_ms - seen["5s"].born_ms <= 7000
    assert {one.topic for one in seen.values()} == {topic}


# ---- progress -----------------------------------------------------------------------------------------


def test_java_goes_on_where_a_python_consumer_of_its_group_stopped(
    topic, producer, python_subscriber, java_subscriber
):
    producer.send_many(messages(topic, 40, "first"))
    consumer = python_subscriber()
    consumer.received(40)
    consumer.stop()
    producer.send_many(messages(topic, 10, "second"))
    successor = java_subscriber()
    successor.received(10)
    time.sleep(0.5)
    assert bodies(successor.seen) == sorted(f"second{i}" for i in range(10))


def test_python_goes_on_where_a_java_consumer_of_its_group_stopped(
    topic, producer, python_subscriber, java_subscriber
):
    producer.send_many(messages(topic, 40, "first"))
    predecessor = java_subscriber()
    predecessor.received(40)
    predecessor.stop()
    producer.send_many(messages(topic, 10, "second"))
    consumer = python_subscriber()
    consumer.received(10)
    time.sleep(0.5)
    assert bodies(consumer.seen) == sorted(f"second{i}" for i in range(10))


@pytest.mark.parametrize("assign", [False, True], ids=["subscribe", "assign"])
def test_the_pull_consumer_polls_seeks_and_commits(java, server, topic, producer, until, assign):
    sent = [producer.send(message) for message in messages(topic, 40)]
    group = f"LP-{topic}"
    consumer = sync.PullConsumer(server.name_server, group=group, consume_from=ConsumeFrom.FIRST_OFFSET)
    if assign:
        consumer.assign([])
    else:
        consumer.subscribe(topic)
    with consumer:
        if assign:
            consumer.assign(consumer.fetch_queues(topic))
        seen = []
        until(lambda: seen.extend(consumer.poll(200)) or len(seen) >= 40)
        assert bodies(seen) == sorted(f"m{i}" for i in range(40))
        queue = MessageQueue(topic, server.broker_name, 1)
        consumer.seek(queue, 4)
        again = []
        until(lambda: again.extend(consumer.poll(200)) or len(again) >= 6)
        expected = [one.queue_offset for one in sent if one.queue == queue and one.queue_offset >= 4]
        assert [(one.queue, one.queue_offset) for one in again] == [(queue, offset) for offset in expected]
        consumer.commit(persist=True)
        assert consumer.committed(queue) == 10
    progress = java.mqadmin("consumerProgress", "-n", server.name_server, "-g", group, "-t", topic)
    rows = [line.split() for line in progress.splitlines() if line.startswith(topic)]
    assert [(row[2], row[3], row[4]) for row in rows] == [(str(q), "10", "10") for q in range(4)]
    with sync.PullConsumer(server.name_server, group=group, subscribe={topic: "*"}) as resumed:
        assert resumed.poll(1_000) == []
        result = producer.send(Message(topic, b"new"), queue=queue)
        (new,) = resumed.poll(10_000)
        assert (new.body, new.queue_offset) == (b"new", result.queue_offset)


# ---- one message, and what tools see of a client ------------------------------------------------------


def test_a_message_is_found_by_its_ids_and_its_keys(topic, server, producer, until):
    sent = [producer.send(message) for message in messages(topic, 10)]

    async def find():
        remoting = Remoting()
        try:
            api = BrokerApi(remoting)
            for number, result in enumerate(sent):
                ip, port, position = parse_offset_id(result.offset_message_id)
                assert f"{ip}:{port}" == server.broker
                assert bytes((await api.view_message(server.broker, position)).body) == b"m%d" % number
                (by_key,) = await api.query_message(server.broker, topic, f"key-{number}")
                (by_id,) = await api.query_message(server.broker, topic, result.message_id, unique_key=True)
                assert by_key.physical_offset == by_id.physical_offset == position
            return await api.query_message(server.broker, topic, "no such key")
        finally:
            await remoting.close()

    time.sleep(1)  # the index is built behind the log
    assert asyncio.run(find()) == []


def test_mqadmin_sees_a_python_consumer_and_can_ask_it(
    java, server, topic, group, producer, python_subscriber
):
    sent = producer.send(Message(topic, b"one"))
    consumer = python_subscriber()
    consumer.received(1)
    name_server = server.name_server
    connection = java.mqadmin("consumerConnection", "-n", name_server, "-g", group)
    assert consumer.client_id in connection
    assert "PYTHON" in connection
    status = java.mqadmin("consumerStatus", "-n", name_server, "-g", group, "-i", consumer.client_id, "-s")
    assert "#Consumer Subscription#" in status
    assert topic in status
    assert "consume-" in status, "the stacks of the workers"
    directly = ["-g", group, "-d", consumer.client_id, "-t", topic, "-i", sent.offset_message_id]
    answer = java.mqadmin("queryMsgById", "-n", name_server, *directly)
    assert "CR_SUCCESS" in answer
    assert bodies(consumer.seen) == ["one", "one"]


def test_mqadmin_resets_the_offset_of_a_running_python_consumer(
    java, server, topic, group, producer, python_subscriber
):
    producer.send_many(messages(topic, 20))
    consumer = python_subscriber()
    consumer.received(20)
    time.sleep(1.5)  # its offsets are persisted
    java.mqadmin("resetOffsetByTime", "-n", server.name_server, "-g", group, "-t", topic, "-s", "0")
    # The broker tells the consumer with the end of its held pull (15 s), the client waits 10 s more.
    consumer.received(40, timeout_s=60)
    assert collections.Counter(one.body for one in consumer.seen) == {b"m%d" % i: 2 for i in range(20)}
