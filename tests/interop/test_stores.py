"""One directory, two brokers: what either wrote the other reads back equal."""

from __future__ import annotations

import itertools
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
    """All that can be read back: each message, by key, by time, queue offsets and group offsets."""
    group = f"Reader{next(_readers)}"  # a new one: it starts at the beginning
    java.call("pullStart", id="all", nameServer=ns, topic="Store", group=group, assign=True)
    messages = java.call("poll", id="all", count=2052, timeoutMs=60_000)
    java.call("pullStop", id="all")
    for message in messages:
        for name in ("receivedAt", "brokerName"):
            del message[name]
    by_queue = sorted(messages, key=lambda m: (m["queueId"], m["queueOffset"]))
    middle = by_queue[len(by_queue) // 3]["storeTimestamp"]
    found: dict[str, Any] = {"messages": by_queue}
    for key in ("k7", "k1999", "b49", "big"):
        shown = java.mqadmin("queryMsgByKey", "-n", ns, "-t", "Store", "-k", key)
        found[f"key {key}"] = sorted(
            line.split()[:3] for line in shown.splitlines() if line and not line.startswith("#")
        )
    for queue in range(4):
        fields = {"topic": "Store", "queueId": str(queue)}
        found[f"max {queue}"] = apache.call(broker, 30, fields)[0]["extFields"]["offset"]
        found[f"min {queue}"] = apache.call(broker, 31, fields)[0]["extFields"]["offset"]
        by_time = apache.call(broker, 29, {**fields, "timestamp": str(middle)})[0]["extFields"]["offset"]
        found[f"time {queue}"] = by_time
        group = apache.call(broker, 14, {**fields, "consumerGroup": "StoreGroup"})[0]["extFields"]["offset"]
        found[f"group {queue}"] = group
    return found


def wait_for_delayed(java: apache.JavaClient, ns: str) -> None:
    java.call("subscribe", id="late", nameServer=ns, topic="Store", group="LateGroup", mode="concurrent")
    java.received("late", 2052, timeout_s=60)
    java.call("unsubscribe", id="late")


def test_a_directory_written_by_penstock_opens_in_apache(java, tmp_path: Path, start_serve):
    ours = start_serve(tmp_path / "data", *settings())
    fill(java, ours.name_server)
    wait_for_delayed(java, ours.name_server)
    before = everything(java, ours.name_server, ours.broker, ours.broker_name)
    assert len(before["messages"]) == 2052
    assert ours.stop() == 0
    store = tmp_path / "apache-store"
    shutil.copytree(ours.store_dir, store)
    with apache.cluster(settings=SIZES, store=store, broker_name=ours.broker_name) as theirs:
        after = everything(java, theirs.name_server, theirs.brokers[0].address, ours.broker_name)
    assert after == before


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_directory_written_by_apache_opens_in_penstock(java, tmp_path: Path, start_serve, end: str):
    store = tmp_path / "store"
    with apache.cluster(settings=SIZES, store=store, broker_name="broker-a") as theirs:
        fill(java, theirs.name_server)
        wait_for_delayed(java, theirs.name_server)
        before = everything(java, theirs.name_server, theirs.brokers[0].address, "broker-a")
        if end == "kill":
            theirs.brokers[0].kill()
    assert len(before["messages"]) == 2052
    ours = start_serve(store, *settings(), "--set", "brokerName=broker-a")
    after = everything(java, ours.name_server, ours.broker, "broker-a")
    if end == "kill":  # Apache writes group offsets every five seconds: the last ones may be gone
        before = {k: v for k, v in before.items() if not k.startswith("group")}
        after = {k: v for k, v in after.items() if not k.startswith("group")}
    assert after == before
    assert ours.stop() == 0
