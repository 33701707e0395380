"""One directory, two brokers: what either wrote the other reads back equal."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import apache
import pytest

pytestmark = pytest.mark.interop
_readers = itertools.count()
SIZES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "maxMessageSize": 1 << 19,
}


def settings() -> list[str]:
    return [part for key, value in SIZES.items() for part in ("--set", f"{key}={value}")]


def fill(java: apache.JavaClient, ns: str) -> None:
    """Every kind of message over several log files, and a group with progress."""
    java.mqadmin("updateTopic", "-n", ns, "-c", "DefaultCluster", "-t", "Store", "-r", 4, "-w", 4)
    java.mqadmin("updateSubGroup", "-n", ns, "-c", "DefaultCluster", "-g", "StoreGroup", "-r", 5, "-q", 3)
    plain = [
        {"body": f"plain-{i}-" + "x" * (i % 700), "tag": f"T{i % 3}", "keys": f"k{i} shared"}
        for i in range(2000)
    ]
    java.call("send", nameServer=ns, topic="Store", messages=plain)
    java.call(
        "sendBatch",
        nameServer=ns,
        topic="Store",
        messages=[{"body": f"batch-{i}", "keys": f"b{i}"} for i in range(50)],
    )
    java.call(
        "send",
        nameServer=ns,
        topic="Store",
        messages=[{"body": "z" * 20_000, "keys": "big", "properties": {"p": "ü"}}],
    )
    java.call(
        "send", nameServer=ns, topic="Store", messages=[{"body": "delayed", "delayLevel": 1, "keys": "late"}]
    )
    java.call(
        "subscribe",
        id="store",
        nameServer=ns,
        topic="Store",
        group="StoreGroup",
        mode="concurrent",
        tags="T1",
    )
    java.received("store", 667)
    java.call("unsubscribe", id="store")


def everything(java: apache.JavaClient, ns: str, broker: str, broker_name: str) -> dict[str, Any]:
    """All that can be read back: each message by queue offset, by position, by key and by time; topics and
    groups; queue offsets and group offsets."""
    group = f"Reader{next(_readers)}"  # a new one: it starts at the beginning
    java.call("pullStart", id="all", nameServer=ns, topic="Store", group=group, assign=True)
    messages = java.call("poll", id="all", count=2052, timeoutMs=60_000)
    java.call("pullStop", id="all")
    for message in messages:
        for name in ("receivedAt", "brokerName"):
            del message[name]
    by_queue = sorted(messages, key=lambda m: (m["queueId"], m["queueOffset"]))
    found: dict[str, Any] = {"messages": by_queue, "topics": topics(broker), "group": group_settings(broker)}
    for message in by_queue[::40]:
        record = apache.call(broker, 33, {"offset": str(message["position"])})[1]
        assert message["body"].encode() in record or len(message["body"]) > 4096  # those are compressed
        found[f"record at {message['position']}"] = record
    times = sorted({message["storeTimestamp"] for message in by_queue})
    times = [0, times[0] - 1, *times[:: len(times) // 20], times[-1] + 1, times[-1] + 86_400_000]
    for key in ("k7", "k1999", "b49", "big"):
        shown = java.mqadmin("queryMsgByKey", "-n", ns, "-t", "Store", "-k", key)
        found[f"key {key}"] = sorted(
            line.split()[:3] for line in shown.splitlines() if line and not line.startswith("#")
        )
    for queue in range(4):
        fields = {"topic": "Store", "queueId": str(queue)}
        found[f"max {queue}"] = apache.call(broker, 30, fields)[0]["extFields"]["offset"]
        found[f"min {queue}"] = apache.call(broker, 31, fields)[0]["extFields"]["offset"]
        for time in times:
            answer = apache.call(broker, 29, {**fields, "timestamp": str(time)})[0]
            found[f"time {time} {queue}"] = answer["extFields"]["offset"]
        group = apache.call(broker, 14, {**fields, "consumerGroup": "StoreGroup"})[0]["extFields"]["offset"]
        found[f"group {queue}"] = group
    return found


def topics(broker: str) -> dict[str, Any]:
    """Settings of the topics that the two brokers should agree on."""
    table = json.loads(apache.call(broker, 21)[1])["topicConfigTable"]
    names = ("Store", "%RETRY%StoreGroup", "%RETRY%LateGroup", "SCHEDULE_TOPIC_XXXX")
    fields = ("readQueueNums", "writeQueueNums", "perm", "order", "topicFilterType", "topicSysFlag")
    return {name: {field: table[name][field] for field in fields} for name in names}


def group_settings(broker: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(apache.call(broker, 201)[1])["subscriptionGroupTable"]
    assert (table["StoreGroup"]["retryMaxTimes"], table["StoreGroup"]["retryQueueNums"]) == (5, 3)
    return {name: value for name, value in table["StoreGroup"].items() if name != "attributes"}


def wait_for_delayed(java: apache.JavaClient, ns: str) -> None:
    java.call("subscribe", id="late", nameServer=ns, topic="Store", group="LateGroup", mode="concurrent")
    java.received("late", 2052, timeout_s=60)
    java.call("unsubscribe", id="late")


def delayed_is_noted(store: Path) -> bool:
    """Apache writes every ten seconds how far it is with delayed messages; a kill before that means that the
    message is delivered once more, by whoever opens the store."""
    noted = store / "config" / "delayOffset.json"
    text = noted.read_text() if noted.exists() else ""
    return re.search(r'[{,]\s*"?1"?\s*:\s*1\b', text) is not None  # level 1 is behind its first message


def without_group_offsets(found: dict[str, Any]) -> dict[str, Any]:
    """Apache writes them every five seconds and knows nothing of our journal: a kill loses the last ones."""
    return {name: value for name, value in found.items() if not name.startswith("group ")}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_directory_written_by_penstock_opens_in_apache_and_again_in_penstock(
    java, tmp_path: Path, start_serve, end: str
):
    ours = start_serve(tmp_path / "data", *settings())
    fill(java, ours.name_server)
    wait_for_delayed(java, ours.name_server)
    before = everything(java, ours.name_server, ours.broker, ours.broker_name)
    assert len(before["messages"]) == 2052
    getattr(ours, end)()
    store = tmp_path / "apache-store"
    shutil.copytree(ours.store_dir, store)
    with apache.cluster(settings=SIZES, store=store, broker_name=ours.broker_name) as theirs:
        after = everything(java, theirs.name_server, theirs.brokers[0].address, ours.broker_name)
    if end == "kill":
        before, after = without_group_offsets(before), without_group_offsets(after)
    assert after == before
    back = start_serve(store, *settings())
    again = everything(java, back.name_server, back.broker, back.broker_name)
    assert (without_group_offsets(again) if end == "kill" else again) == before
    assert back.stop() == 0


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_directory_written_by_apache_opens_in_penstock(java, tmp_path: Path, start_serve, until, end: str):
    store = tmp_path / "store"
    with apache.cluster(settings=SIZES, store=store, broker_name="broker-a") as theirs:
        fill(java, theirs.name_server)
        wait_for_delayed(java, theirs.name_server)
        before = everything(java, theirs.name_server, theirs.brokers[0].address, "broker-a")
        if end == "kill":
            until(lambda: delayed_is_noted(store), 30)
            theirs.brokers[0].kill()
    assert len(before["messages"]) == 2052
    ours = start_serve(store, *settings(), "--set", "brokerName=broker-a")
    after = everything(java, ours.name_server, ours.broker, "broker-a")
    if end == "kill":
        before, after = without_group_offsets(before), without_group_offsets(after)
    assert after == before
    assert ours.stop() == 0
