"""Apache's Java push consumer and ours in one consumer group share the queues as if they were one kind."""

from __future__ import annotations

import collections
import time

import pytest

from penstock import Message, MessageQueue
from penstock.client.allocation import (
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
)

pytestmark = pytest.mark.interop
QUEUES = 10  # the rest that four members do not share evenly goes to different ones in each strategy


class Rooms:
    """Rooms of queues and clients as the Java members see them; nobody is in room2."""

    def broker_room(self, queue):
        return f"room{queue.queue_id % 3}"

    def client_room(self, client_id):
        return client_id.split("@")[1].split("-")[0]


STRATEGIES = {
    "AVG": lambda part: Averagely(),
    "AVG_BY_CIRCLE": lambda part: AveragelyByCircle(),
    "CONSISTENT_HASH": lambda part: ConsistentHash(),
    "CONSISTENT_HASH_3": lambda part: ConsistentHash(3),
    "CONFIG": ByConfig,
    "MACHINE_ROOM": lambda part: MachineRoom([room_of(part[0])]),
    "MACHINE_ROOM_NEARBY-AVG": lambda part: MachineRoomNearby(Averagely(), Rooms()),
    "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE": lambda part: MachineRoomNearby(AveragelyByCircle(), Rooms()),
}
"""Ours by Apache's names, for a member that is configured to take a part of the queues."""
MEMBERS = {"java-1": "room0", "python-1": "room1", "java-2": "room1", "python-2": "room0"}
"""Members and the rooms that they are in."""


@pytest.fixture(scope="session", params=["penstock", "apache"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def topic(request, java, server):
    name = "mixed-" + request.node.name.partition("[")[2].rstrip("]")
    args = ["-c", server.cluster, "-t", name, "-r", QUEUES, "-w", QUEUES]
    java.mqadmin("updateTopic", "-n", server.name_server, *args)
    return name


class MixedGroup:
    """Consumers of both kinds by name, and by what strategy, in our words, each shares the queues."""

    def __init__(self, server, topic, group, members, strategies=None):
        self.topic, self.group, self.members = topic, group, members
        self.queues = queues_of(server, topic)
        self.strategies = strategies or dict.fromkeys(members, Averagely())

    def expected(self):
        """What the strategy gives to each; together all queues, each once."""
        ids = sorted(member.client_id for member in self.members.values())
        return {
            name: sorted(
                q.queue_id for q in strategy.allocate(self.group, member.client_id, self.queues, ids)
            )
            for name, member in self.members.items()
            for strategy in [self.strategies[name]]
        }

    def assigned(self):
        return {name: member.assigned() for name, member in self.members.items()}

    def settled(self):
        return self.assigned() == self.expected()

    def seen(self):
        """(body, queue) of every message, by member."""
        return {name: [place(one) for one in list(member.seen)] for name, member in self.members.items()}

    def bodies(self):
        return collections.Counter(body for seen in self.seen().values() for body, _ in seen)


def queues_of(server, topic):
    return [MessageQueue(topic, server.broker_name, number) for number in range(QUEUES)]


def room_of(queue):
    return queue.broker_name.partition("@")[0]


def place(message):
    if isinstance(message, dict):
        return message["body"], message["queueId"]
    return message.body.decode(), message.queue_id


def send(producer, topic, prefix, count=160):
    queues = producer.queues(topic)
    assert len(queues) == QUEUES
    names = [f"{prefix}{number}" for number in range(count)]
    for number, name in enumerate(names):
        producer.send(Message(topic, name.encode()), queue=queues[number % QUEUES])
    return dict.fromkeys(names, 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_members_share_the_queues_and_each_message_is_consumed_once(
    server, topic, group, strategy, producer, python_subscriber, java_subscriber, until
):
    members, strategies = {}, {}
    for number, (name, room) in enumerate(MEMBERS.items()):
        part = queues_of(server, topic)[number :: len(MEMBERS)]
        strategies[name] = STRATEGIES[strategy](part)
        instance = f"{room}-{topic}-{number}"
        if name.startswith("python"):
            members[name] = python_subscriber(allocation=strategies[name], instance_name=instance)
            continue
        members[name] = java_subscriber(
            strategy=strategy,
            instance=instance,
            brokerName=server.broker_name,
            queues=[queue.queue_id for queue in part],
            rooms=[room_of(part[0])],
        )
    mixed = MixedGroup(server, topic, group, members, strategies)
    held = mixed.expected()
    assert sorted(queue for part in held.values() for queue in part) == list(range(QUEUES))
    until(mixed.settled, 40, mixed.assigned)
    sent = send(producer, topic, "m")
    until(lambda: mixed.bodies().keys() == sent.keys(), 40, mixed.bodies)
    time.sleep(1)  # a second delivery would come about now
    assert mixed.bodies() == sent
    assert mixed.assigned() == held, "the group was not in a steady state"
    for name, seen in mixed.seen().items():
        assert {queue for _, queue in seen} == set(held[name])


@pytest.mark.parametrize("leaver", ["java", "python"])
def test_the_others_take_over_when_a_member_leaves(
    server, topic, group, leaver, producer, python_subscriber, java_subscriber, until
):
    members = {"java": java_subscriber(), "python": python_subscriber()}
    both = MixedGroup(server, topic, group, members)
    until(both.settled, 40, both.assigned)
    sent = send(producer, topic, "before")
    until(lambda: both.bodies() == sent, 40, both.bodies)
    # A leaver commits what it has consumed, so nothing of that may come again.
    done = {body for body, _ in both.seen()[leaver]}
    assert len(done) == len(sent) // 2
    members.pop(leaver).stop()
    rest = MixedGroup(server, topic, group, members)
    expected = {body: 1 for body in sent if body not in done} | send(producer, topic, "during", 80)
    until(rest.settled, 40, rest.assigned)
    until(lambda: rest.bodies() == expected, 40, rest.bodies)
    expected |= send(producer, topic, "after", 80)
    until(lambda: rest.bodies() == expected, 40, rest.bodies)


def test_a_joining_member_takes_its_share_and_nothing_is_lost(
    server, topic, group, producer, python_subscriber, java_subscriber, until
):
    members = {"python": python_subscriber()}
    alone = MixedGroup(server, topic, group, members)
    until(alone.settled, 40, alone.assigned)
    sent = send(producer, topic, "before")
    both = MixedGroup(server, topic, group, {**members, "java": java_subscriber()})
    sent |= send(producer, topic, "during")
    until(both.settled, 40, both.assigned)
    # While queues change hands a message may come twice; none may be missing.
    until(lambda: both.bodies().keys() == sent.keys(), 40, both.bodies)
    after = send(producer, topic, "after")
    until(lambda: after.keys() <= both.bodies().keys(), 40, both.bodies)
    assert {body: count for body, count in both.bodies().items() if body in after} == after
