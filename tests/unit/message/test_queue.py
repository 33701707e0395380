from __future__ import annotations

from penstock.message.queue import MessageQueue


def test_queues_hash_as_in_java(table):
    for row in table("hashes")["messageQueues"]:
        assert MessageQueue(row["topic"], row["broker"], row["queueId"]).java_hash() == row["hashCode"], row


def test_queues_sort_by_topic_then_broker_then_number():
    queues = [
        MessageQueue("B", "broker-b", 1),
        MessageQueue("B", "broker-a", 10),
        MessageQueue("A", "broker-b", 0),
        MessageQueue("B", "broker-a", 2),
    ]
    assert sorted(queues) == [queues[2], queues[3], queues[1], queues[0]]
