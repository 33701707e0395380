"""Our broker under an Apache name server, and an Apache broker under ours."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache
import pytest

pytestmark = pytest.mark.interop


def bodies(prefix: str, count: int) -> list[dict[str, Any]]:
    return [{"body": f"{prefix}{number}", "keys": f"{prefix}{number}"} for number in range(count)]


def clusters(java: apache.JavaClient, name_server: str) -> list[tuple[str, str, str]]:
    """Cluster, broker and address, as clusterList shows them."""
    rows = [line.split() for line in java.mqadmin("clusterList", "-n", name_server).splitlines()]
    return [(row[0], row[1], row[3]) for row in rows if row[:1] == ["DefaultCluster"]]


def brokers_of(java: apache.JavaClient, name_server: str, topic: str) -> dict[str, dict[str, int]]:
    """Queues and permission on each broker."""
    text = java.mqadmin("topicRoute", "-n", name_server, "-t", topic)
    route = json.loads(re.sub(r"(\d+):\"", r'"\1":"', text))
    names = ("readQueueNums", "writeQueueNums", "perm")
    return {queues["brokerName"]: {name: queues[name] for name in names} for queues in route["queueDatas"]}


def send_and_consume(java: apache.JavaClient, name_server: str, topic: str, group: str) -> set[str]:
    """Sends 40 messages and sees each of them once; the brokers that stored them."""
    sent = java.call("send", nameServer=name_server, topic=topic, messages=bodies("m", 40))
    assert [one["status"] for one in sent] == ["SEND_OK"] * 40
    java.call("subscribe", id=group, nameServer=name_server, topic=topic, group=group, mode="concurrent")
    try:
        seen = java.received(group, 40, timeout_s=60)
    finally:
        java.call("unsubscribe", id=group)
    assert sorted(one["body"] for one in seen) == sorted(f"m{number}" for number in range(40))
    places = {one["body"]: (one["brokerName"], one["queueId"], one["queueOffset"]) for one in seen}
    for number, one in enumerate(sent):
        assert places[f"m{number}"] == (one["brokerName"], one["queueId"], one["queueOffset"])
    return {one["brokerName"] for one in sent}


def test_our_broker_registers_with_an_apache_name_server_and_leaves_it(java, start, until):
    with apache.cluster(brokers=0) as theirs:
        ns = theirs.name_server
        ours = start("broker", "--name-server", ns, "--set", "brokerName=ours")
        assert clusters(java, ns) == [("DefaultCluster", "ours", ours.addresses[0])]
        java.mqadmin("updateTopic", "-n", ns, "-c", "DefaultCluster", "-t", "There", "-r", 6, "-w", 5)
        expected = {"ours": {"readQueueNums": 6, "writeQueueNums": 5, "perm": 6}}
        assert brokers_of(java, ns, "There") == expected
        assert send_and_consume(java, ns, "There", "ThereGroup") == {"ours"}
        assert "There" in java.mqadmin("topicList", "-n", ns).split()
        assert ours.stop()[0] == 0
        assert clusters(java, ns) == []

        killed = start("broker", "--name-server", ns, "--set", "brokerName=ours")
        assert brokers_of(java, ns, "There") == expected
        killed.stop(signal.SIGKILL)
        until(lambda: clusters(java, ns) == [])


def test_an_apache_broker_registers_with_our_name_server_beside_one_of_ours(
    java: apache.JavaClient, start: Callable[..., Any], until: Callable[..., None], tmp_path: Path
) -> None:
    ns = start("namesrv", "--data", str(tmp_path / "namesrv")).name_server
    ours = start("broker", "--name-server", ns, "--set", "brokerName=ours")
    with apache.cluster(name_server=ns, broker_name="theirs") as theirs:
        (broker,) = theirs.brokers
        expected = [
            ("DefaultCluster", "ours", ours.addresses[0]),
            ("DefaultCluster", "theirs", broker.address),
        ]
        assert sorted(clusters(java, ns)) == expected
        java.mqadmin("updateTopic", "-n", ns, "-c", "DefaultCluster", "-t", "Both", "-r", 4, "-w", 4)
        queues = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        until(lambda: brokers_of(java, ns, "Both") == {"ours": queues, "theirs": queues})
        assert send_and_consume(java, ns, "Both", "BothGroup") == {"ours", "theirs"}

        java.mqadmin("wipeWritePerm", "-n", ns, "-b", "theirs")
        assert brokers_of(java, ns, "Both") == {"ours": queues, "theirs": {**queues, "perm": 4}}
        assert "Both" in java.mqadmin("topicList", "-n", ns).split()

        broker.kill()
        until(lambda: clusters(java, ns) == expected[:1])
        assert list(brokers_of(java, ns, "Both")) == ["ours"]
        theirs.start_broker(broker)
        assert sorted(clusters(java, ns)) == expected
    assert clusters(java, ns) == expected[:1]
