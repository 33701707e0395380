"""mqadmin commands against our servers; every one is checked by the data it shows or changes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.interop


@pytest.fixture
def admin(java, server):
    def run(command: str, *args: object) -> str:
        return java.mqadmin(command, "-n", server.name_server, *args)

    return run


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def route_of(text: str) -> dict[str, Any]:
    """The tool prints broker ids as bare numbers, which is not JSON."""
    return json.loads(re.sub(r"(\d+):\"", r'"\1":"', text))


def eventually(check: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not true after {timeout_s} s"
        time.sleep(0.5)


def send(java, server, topic: str, count: int = 8) -> list[dict[str, Any]]:
    messages = [{"body": f"body-{i}", "tag": f"T{i % 2}", "keys": f"{topic}-{i}"} for i in range(count)]
    return java.call("send", nameServer=server.name_server, topic=topic, messages=messages)


def test_cluster_list_shows_the_broker(admin, server):
    (row,) = rows(admin("clusterList"))
    assert row[:4] == [server.cluster, server.broker_name, "0", server.broker]
    assert row[-1] == "true"


def test_topics_are_created_listed_routed_and_deleted(admin, server):
    admin("updateTopic", "-c", server.cluster, "-t", "AdminTopic", "-r", 6, "-w", 5)
    assert "AdminTopic" in admin("topicList").split()
    route = route_of(admin("topicRoute", "-t", "AdminTopic"))
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (6, 5, 6)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": server.broker}
    admin("updateTopic", "-b", server.broker, "-t", "AdminTopic", "-r", 8, "-w", 8)
    assert route_of(admin("topicRoute", "-t", "AdminTopic"))["queueDatas"][0]["readQueueNums"] == 8
    admin("deleteTopic", "-c", server.cluster, "-t", "AdminTopic")
    assert "AdminTopic" not in admin("topicList").split()


def test_topic_status_shows_offsets(admin, java, server, topic):
    send(java, server, topic, 8)
    table = rows(admin("topicStatus", "-t", topic))[:4]
    assert [row[:4] for row in table] == [[server.broker_name, str(q), "0", "2"] for q in range(4)]


def test_group_settings_are_stored(admin, server):
    admin("updateSubGroup", "-c", server.cluster, "-g", "AdminGroup", "-r", 5, "-q", 3)
    shown = admin("getConsumerConfig", "-g", "AdminGroup")
    assert re.search(r"retryMaxTimes\s*=\s*5", shown)
    assert re.search(r"retryQueueNums\s*=\s*3", shown)


def test_progress_and_connections_of_a_running_consumer(admin, java, server, topic):
    ns, group = server.name_server, f"P-{topic}"
    send(java, server, topic, 12)
    java.call(
        "subscribe", id=group, nameServer=ns, topic=topic, group=group, mode="concurrent", instance="progress"
    )
    java.received(group, 12)

    def all_consumed() -> bool:
        shown = [row for row in rows(admin("consumerProgress", "-g", group)) if row[0] == topic]
        return [(row[2], row[3], row[4]) for row in shown] == [(str(q), "3", "3") for q in range(4)]

    eventually(all_consumed)
    connection = admin("consumerConnection", "-g", group)
    assert "@progress" in connection
    assert "CONSUME_PASSIVELY" in connection
    assert re.search(rf"{re.escape(topic)}\s+\*", connection)
    java.call("unsubscribe", id=group)


def test_producer_connection(admin, java, server, topic):
    java.call(
        "send", nameServer=server.name_server, topic=topic, group="AdminProducer", messages=[{"body": "x"}]
    )
    shown = admin("producerConnection", "-g", "AdminProducer", "-t", topic)
    assert "JAVA" in shown
    assert re.search(r"127\.0\.0\.1:\d+", shown)


def test_broker_status_counts_puts(admin, java, server, topic):
    def total() -> int:
        facts = dict(
            line.split(":", 1)
            for line in admin("brokerStatus", "-b", server.broker).splitlines()
            if ":" in line
        )
        return int(next(v for k, v in facts.items() if k.strip() == "msgPutTotalTodayNow"))

    before = total()
    send(java, server, topic, 7)
    time.sleep(1)
    assert total() - before >= 7


def test_send_and_consume_message_commands(admin, server, topic):
    shown = admin("sendMessage", "-t", topic, "-p", "from the tool", "-k", "tool-key", "-c", "tool-tag")
    assert "SEND_OK" in shown
    consumed = admin("consumeMessage", "-t", topic)  # the tool can do this once in a process
    assert "from the tool" in consumed
    assert "tool-tag" in consumed


def test_messages_are_found_by_every_kind_of_key(admin, java, server, topic):
    sent = send(java, server, topic, 6)
    one = sent[3]
    by_id = admin("queryMsgById", "-i", one["offsetId"], "-t", topic)
    assert f"{topic}-3" in by_id
    assert one["messageId"] in by_id
    by_key = admin("queryMsgByKey", "-t", topic, "-k", f"{topic}-3")
    assert one["messageId"] in by_key
    by_unique = admin("queryMsgByUniqueKey", "-t", topic, "-i", one["messageId"])
    assert f"{topic}-3" in by_unique
    by_offset = admin(
        "queryMsgByOffset",
        "-t",
        topic,
        "-b",
        one["brokerName"],
        "-i",
        one["queueId"],
        "-o",
        one["queueOffset"],
    )
    assert one["messageId"] in by_offset


def test_print_message_shows_every_body(admin, java, server, topic):
    send(java, server, topic, 6)
    shown = admin("printMsg", "-t", topic, "-d", "true")
    assert {f"body-{i}" for i in range(6)} == set(re.findall(r"body-\d+", shown))


def test_query_consume_queue_shows_entries(admin, java, server, topic):
    sent = send(java, server, topic, 8)
    shown = admin("queryCq", "-t", topic, "-q", 0, "-i", 0, "-c", 10, "-b", server.broker)
    positions = [int(one["offsetId"][-16:], 16) for one in sent if one["queueId"] == 0]
    for position in positions:
        assert str(position) in shown


def test_reset_offset_by_time_makes_the_group_read_again(admin, java, server, topic):
    ns, group = server.name_server, f"R-{topic}"
    send(java, server, topic, 8)
    java.call("subscribe", id=group, nameServer=ns, topic=topic, group=group, mode="concurrent")
    java.received(group, 8)
    time.sleep(6)
    admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", 0)
    seen = java.received(group, 16, timeout_s=60)
    assert sorted(one["body"] for one in seen) == sorted([f"body-{i}" for i in range(8)] * 2)
    java.call("unsubscribe", id=group)


def test_broker_config_is_read_and_changed(admin, server):
    shown = admin("getBrokerConfig", "-b", server.broker)
    assert re.search(rf"brokerName\s*=\s*{server.broker_name}", shown)
    admin("updateBrokerConfig", "-b", server.broker, "-k", "flushDelayOffsetInterval", "-v", "12345")
    assert re.search(r"flushDelayOffsetInterval\s*=\s*12345", admin("getBrokerConfig", "-b", server.broker))


def test_write_permission_is_wiped_and_given_back(admin, server, topic):
    def perm() -> int:
        return route_of(admin("topicRoute", "-t", topic))["queueDatas"][0]["perm"]

    assert perm() == 6
    assert re.search(
        r"wipe write perm of broker\[\S+\].*OK, \d+", admin("wipeWritePerm", "-b", server.broker_name)
    )
    assert perm() == 4
    admin("addWritePerm", "-b", server.broker_name)
    assert perm() == 6


def test_clean_expired_consume_queues_keeps_what_is_live(admin, java, server, topic):
    send(java, server, topic, 4)
    assert "success" in admin("cleanExpiredCQ", "-b", server.broker)
    table = rows(admin("topicStatus", "-t", topic))[:4]
    assert [row[3] for row in table] == ["1"] * 4


def test_stats_all_lists_topic_and_group(admin, java, server, topic):
    ns, group = server.name_server, f"S-{topic}"
    send(java, server, topic, 4)
    java.call("subscribe", id=group, nameServer=ns, topic=topic, group=group, mode="concurrent")
    java.received(group, 4)
    time.sleep(6)
    shown = admin("statsAll", "-t", topic)
    assert any(row[:2] == [topic, group] for row in rows(shown)), shown
    java.call("unsubscribe", id=group)


def test_allocate_queues_averagely(admin, topic):
    table = json.loads(admin("allocateMQ", "-t", topic, "-i", "10.0.0.1,10.0.0.2,10.0.0.3"))["result"]
    assert {ip: len(queues) for ip, queues in table.items()} == {"10.0.0.1": 2, "10.0.0.2": 1, "10.0.0.3": 1}
    assert sorted(queue["queueId"] for queues in table.values() for queue in queues) == [0, 1, 2, 3]
