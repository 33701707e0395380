"""Our consumers on an Apache master and its slave: when the master dies, reads go on from the slave."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import apache
import pytest

from penstock import ConsumeFrom, Message, ReceivedMessage, SendError, sync

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]  # three JVMs start first

COUNT = 400


@pytest.fixture
def pair() -> Iterator[apache.Cluster]:
    with apache.cluster(pair=True) as cluster:
        yield cluster


def slave_has(cluster: apache.Cluster, topic: str, count: int) -> bool:
    """Whether the slave can serve that many messages: it copies the log at once, but asks for the master's
    table of topics only every 10 s."""
    header, _ = apache.call(cluster.brokers[1].address, 351, {"topic": topic})
    if header["code"] != 0:
        return False
    total = 0
    for queue_id in range(4):
        header, _ = apache.call(cluster.brokers[1].address, 30, {"topic": topic, "queueId": str(queue_id)})
        if header["code"] != 0:
            return False
        total += int(header["extFields"]["offset"])
    return total >= count


def until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not true after {seconds} s"
        time.sleep(0.1)


def send(cluster: apache.Cluster, topic: str) -> list[str]:
    with sync.Producer(cluster.name_server, group="pair-producer", send_timeout_ms=10_000) as producer:
        sent = producer.send_many(Message(topic, b"m%d" % number) for number in range(COUNT))
    until(lambda: slave_has(cluster, topic, COUNT))
    assert len(sent) == COUNT
    return sorted(f"m{number}" for number in range(COUNT))


@pytest.mark.behaviour("PULL-14")
def test_consumers_go_on_from_the_slave_when_the_master_is_killed_and_sends_are_refused(
    pair: apache.Cluster,
) -> None:
    bodies = send(pair, "pair")
    killed = threading.Event()
    pushed: list[str] = []
    polled: list[str] = []
    quick = {
        "consume_from": ConsumeFrom.FIRST_OFFSET,
        "route_interval_ms": 1_000,
        "heartbeat_interval_ms": 2_000,
    }
    push = sync.PushConsumer(
        pair.name_server,
        group="pair-push",
        consume_threads=1,
        pull_batch=8,
        pull_threshold_messages=8,  # most is still to be pulled when the master goes
        **quick,
    )
    pull = sync.PullConsumer(
        pair.name_server, group="pair-pull", subscribe={"pair": "*"}, pull_threshold_messages=10, **quick
    )

    @push.on("pair")
    def listen(message: ReceivedMessage) -> None:
        if len(pushed) >= 20:
            killed.wait(120)
        pushed.append(message.body.decode())

    def poll() -> list[str]:
        polled.extend(one.body.decode() for one in pull.poll(1_000))
        return polled

    with push, pull, sync.Producer(pair.name_server, group="pair-late", route_interval_ms=500) as producer:
        until(lambda: len(pushed) >= 20)
        until(lambda: bool(poll()))
        producer.send(Message("pair-other", b"before"))
        pair.brokers[0].kill()
        killed.set()
        until(lambda: set(pushed) == set(bodies), 120)
        until(lambda: set(poll()) == set(bodies), 120)
        with pytest.raises(SendError):
            producer.send(Message("pair-other", b"after"))
    assert len(pushed) <= 1.2 * COUNT  # twice only what was on its way
