"""Apache's Java push consumer and ours in one consumer group: they share the queues as if they were one kind."""

from __future__ import annotations

import collections

import pytest

from penstock import Message
from penstock.client.allocation import Averagely, AveragelyByCircle, ConsistentHash

pytestmark = pytest.mark.interop
QUEUES = 8
STRATEGIES = {"AVG": Averagely, "AVG_BY_CIRCLE": AveragelyByCircle, "CONSISTENT_HASH": ConsistentHash}


@pytest.fixture(scope="session", params=["penstock", "apache"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def topic(request, java, server):
    name = "mixed-" + request.node.name.partition("[")[2].rstrip("]")
    args = ["-c", server.cluster, "-t", name, "-r", QUEUES, "-w", QUEUES]
    java.mqadmin("updateTopic", "-n", server.name_server, *args)
    return f"{name}"


class MixedGroup:
    """Members by name: `assigned()` and `seen()` of each."""

    def __init__(self, java, topic, members):
        self.java, self.topic, self.members = java, topic, members

    def assigned(self):
        return {
            name: member.assigned()
            if not isinstance(member, str)
            else self.java.call("assigned", id=member, topic=self.topic)
            for name, member in self.members.items()
        }

    def settled(self):
        """Every queue is held once, and everybody has some."""
        held = self.assigned()
        return sorted(sum(held.values(), [])) == list(range(QUEUES)) and all(held.values())

    def seen(self):
        """(body, queue) of every message, by member."""
        return {
            name: [(m.body.decode(), m.queue_id) for m in list(member.seen)]
            if not isinstance(member, str)
            else [(m["body"], m["queueId"]) for m in self.java.call("received", id=member)]
            for name, member in self.members.items()
        }

    def bodies(self):
        return collections.Counter(body for seen in self.seen().values() for body, _ in seen)


def send(producer, topic, prefix, count=160):
    queues = producer.queues(topic)
    assert len(queues) == QUEUES
    names = [f"{prefix}{number}" for number in range(count)]
    for number, name in enumerate(names):
        producer.send(Message(topic, name.encode()), queue=queues[number % QUEUES])
    return dict.fromkeys(names, 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_members_share_the_queues_and_each_message_is_consumed_once(
    java, topic, strategy, producer, python_subscriber, java_subscriber, until
):
    group = MixedGroup(
        java,
        topic,
        {
            "java-1": java_subscriber(strategy=strategy, instance=f"{topic}-1"),
            "python-1": python_subscriber(allocation=STRATEGIES[strategy]()),
            "java-2": java_subscriber(strategy=strategy, instance=f"{topic}-2"),
            "python-2": python_subscriber(allocation=STRATEGIES[strategy]()),
        },
    )
    until(group.settled, 40, group.assigned)
    held = group.assigned()
    sent = send(producer, topic, "m")
    until(lambda: group.bodies() == sent, 40, group.bodies)
    assert group.assigned() == held, "the group was not in a steady state"
    for name, seen in group.seen().items():
        assert {queue for _, queue in seen} == set(held[name])


@pytest.mark.parametrize("leaver", ["java", "python"])
def test_the_others_take_over_when_a_member_leaves(
    java, topic, leaver, producer, python_subscriber, java_subscriber, until
):
    first = MixedGroup(java, topic, {"java": java_subscriber(), "python": python_subscriber()})
    until(first.settled, 40, first.assigned)
    sent = send(producer, topic, "before")
    until(lambda: first.bodies() == sent, 40, first.bodies)
    if leaver == "java":
        seen_by_leaver = first.seen()["java"]
        java.call("unsubscribe", id=first.members["java"])
    else:
        first.members["python"].stop()
        seen_by_leaver = first.seen()["python"]
    stayer = "python" if leaver == "java" else "java"
    rest = MixedGroup(java, topic, {stayer: first.members[stayer]})
    during = send(producer, topic, "during", 80)
    until(rest.settled, 40, rest.assigned)
    # The leaver committed what it had consumed, so nothing of that comes again.
    mine = {body: 1 for body in sent if body not in dict(seen_by_leaver)}
    until(lambda: rest.bodies() == {**mine, **during}, 40, rest.bodies)
    after = send(producer, topic, "after", 80)
    until(lambda: rest.bodies() == {**mine, **during, **after}, 40, rest.bodies)


def test_a_joining_member_takes_its_share_and_nothing_is_lost(
    java, topic, producer, python_subscriber, java_subscriber, until
):
    members = {"python": python_subscriber()}
    alone = MixedGroup(java, topic, members)
    until(alone.settled, 40, alone.assigned)
    sent = send(producer, topic, "before")
    both = MixedGroup(java, topic, {**members, "java": java_subscriber()})
    during = send(producer, topic, "during")
    until(both.settled, 40, both.assigned)
    # While queues change hands a message may come twice; none may be missing.
    until(lambda: both.bodies().keys() == {**sent, **during}.keys(), 40, both.bodies)
    after = send(producer, topic, "after")
    until(lambda: after.keys() <= both.bodies().keys(), 40, both.bodies)
    assert {body: count for body, count in both.bodies().items() if body in after} == after
