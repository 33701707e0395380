"""POP: Apache's client on our broker, ours on Apache's, both in one group; the mode is set by mqadmin.

Every test runs against both brokers, so what is asked of ours is what Apache's gives. Only light queues
are Apache's alone.
"""

from __future__ import annotations

import collections
import json
import time

import apache
import pytest

from penstock import Message, SimpleConsumer, sync
from penstock.cli import main
from penstock.client.config import ConsumeFrom

pytestmark = pytest.mark.interop
QUEUES = 4
SHORTEST_LEASE_MS = 5_000
"""Apache's client refuses less."""
REVIVE_S = 10
"""How late Apache's broker may be with what was not acked."""
JAVA_FIRST_RETRY_S = 10


@pytest.fixture(scope="session", params=["penstock", "apache"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def topic(request, java, server):
    name = "pop-" + request.node.name.removeprefix("test_").replace("[", "-").rstrip("]")[:80]
    args = ["-c", server.cluster, "-t", name, "-r", QUEUES, "-w", QUEUES]
    java.mqadmin("updateTopic", "-n", server.name_server, *args)
    return name


@pytest.fixture
def set_mode(java, server, topic, group):
    """Apache's own command, on a group that it creates."""
    java.mqadmin("updateSubGroup", "-n", server.name_server, "-c", server.cluster, "-g", group)

    def set_mode(mode, share=0):
        args = ["-c", server.cluster, "-t", topic, "-g", group, "-m", mode, "-q", share]
        said = java.mqadmin("setConsumeMode", "-n", server.name_server, *args)
        assert "success" in said, said

    return set_mode


@pytest.fixture
def member(java_subscriber, python_subscriber):
    """`member("java")` or `member("python")`: a push consumer that lets the broker choose the mode."""
    count = 0

    def start(kind, *, hang_ms=0, lease_ms=None, threshold=None, **options):
        nonlocal count
        count += 1
        if kind == "python":
            wanted = {"pop_invisible_ms": lease_ms, "pop_threshold": threshold}
            options |= {name: value for name, value in wanted.items() if value is not None}
            return python_subscriber(hang_ms=hang_ms, pop_renew=False, stop_timeout_ms=0, **options)
        wanted = {"popInvisibleTime": lease_ms, "popThresholdForQueue": threshold}
        options |= {name: value for name, value in wanted.items() if value is not None}
        return java_subscriber(
            clientRebalance=False, hangMs=hang_ms, instance=f"pop-{id(options)}-{count}", **options
        )

    return start


def body(message):
    return message["body"] if isinstance(message, dict) else message.body.decode()


def attempts(message):
    return message["reconsumeTimes"] if isinstance(message, dict) else message.reconsume_times


def send(producer, topic, prefix, count):
    names = [f"{prefix}{number}" for number in range(count)]
    queues = producer.queues(topic)
    for number, name in enumerate(names):
        producer.send(Message(topic, name.encode()), queue=queues[number % len(queues)])
    return collections.Counter(names)


def seen_by(*members):
    return collections.Counter(body(message) for one in members for message in list(one.seen))


@pytest.mark.behaviour("POP-1", "POP-10")
@pytest.mark.parametrize("kind", ["java", "python"])
def test_a_consumer_pops_everything_once_when_told_to(server, topic, kind, member, set_mode, producer, until):
    set_mode("POP")
    consumer = member(kind)
    until(lambda: consumer.popping() == [-1], 60, consumer.popping)
    assert consumer.assigned() == []
    sent = send(producer, topic, "m", 200)
    until(lambda: seen_by(consumer).keys() == sent.keys(), 60, lambda: len(seen_by(consumer)))
    time.sleep(1)
    assert seen_by(consumer) == sent
    assert {message["topic"] if kind == "java" else message.topic for message in consumer.seen} == {topic}


@pytest.mark.behaviour("POP-11", "POP-13")
@pytest.mark.parametrize("kind", ["java", "python"])
def test_a_failed_message_comes_again_after_the_delay_of_its_attempt(
    server, topic, kind, member, set_mode, producer, until
):
    set_mode("POP")
    consumer = member(kind, failures=1)
    until(lambda: consumer.popping() == [-1], 60, consumer.popping)
    sent = send(producer, topic, "m", 8)
    began = time.monotonic()
    until(lambda: len(consumer.seen) == 16, JAVA_FIRST_RETRY_S + REVIVE_S + 20, lambda: len(consumer.seen))
    assert time.monotonic() - began > JAVA_FIRST_RETRY_S - 1
    assert seen_by(consumer) == sent + sent
    assert sorted(map(attempts, consumer.seen)) == [0] * 8 + [1] * 8


@pytest.mark.behaviour("POP-14")
@pytest.mark.parametrize(("stuck", "alive"), [("java", "java"), ("python", "python"), ("java", "python")])
def test_what_a_hung_consumer_holds_goes_to_the_others_and_nothing_else_waits(
    server, topic, stuck, alive, member, set_mode, producer, until
):
    set_mode("POP")
    hung = member(stuck, hang_ms=60_000, lease_ms=SHORTEST_LEASE_MS, threshold=1)
    until(lambda: hung.popping() == [-1], 60, hung.popping)
    held = send(producer, topic, "held", 2)
    until(lambda: len(hung.seen) >= 1, 30, lambda: len(hung.seen))
    other = member(alive)
    until(lambda: other.popping() == [-1], 60, other.popping)
    began = time.monotonic()
    sent = send(producer, topic, "new", 40)
    wanted = held + sent
    until(lambda: len(seen_by(other)) >= 38, 30, lambda: len(seen_by(other)))
    assert time.monotonic() - began < SHORTEST_LEASE_MS / 1000  # only what the hung one took is missing
    until(
        lambda: seen_by(other).keys() == wanted.keys(),
        SHORTEST_LEASE_MS / 1000 + REVIVE_S + 20,
        lambda: wanted - seen_by(other),
    )
    assert max(attempts(message) for message in other.seen) >= 1  # more if the hung one got it again


@pytest.mark.behaviour("POP-14")
def test_both_kinds_of_client_share_one_group(server, topic, member, set_mode, producer, until):
    set_mode("POP")
    members = {name: member(name.split("-")[0]) for name in ("java-1", "python-1", "java-2", "python-2")}
    for one in members.values():
        until(lambda one=one: one.popping() == [-1], 60, one.popping)
    sent = collections.Counter[str]()
    rounds = 0
    while not all(one.seen for one in members.values()):  # whoever waits longest is served next
        assert rounds < 20, {name: len(one.seen) for name, one in members.items()}
        rounds += 1
        sent += send(producer, topic, f"r{rounds}-", 100)
        until(lambda: seen_by(*members.values()).total() >= rounds * 100, 60)  # noqa: B023 - called at once
    time.sleep(1)
    assert seen_by(*members.values()) == sent
    members.pop("java-1").stop()
    members.pop("python-1").stop()
    before = seen_by(*members.values())
    after = send(producer, topic, "after", 100)
    until(lambda: (seen_by(*members.values()) - before).keys() == after.keys(), 90)


@pytest.mark.behaviour("POP-1")
@pytest.mark.parametrize("kind", ["java", "python"])
def test_a_running_consumer_follows_from_pull_to_pop_and_back(
    server, topic, kind, member, set_mode, producer, until
):
    set_mode("PULL")
    consumer = member(kind)
    until(lambda: consumer.assigned() == list(range(QUEUES)), 60, consumer.assigned)
    sent = send(producer, topic, "pulled", 40)
    until(lambda: seen_by(consumer).keys() == sent.keys(), 60)
    set_mode("POP")
    until(lambda: consumer.popping() == [-1], 60, consumer.popping)
    sent += send(producer, topic, "popped", 40)
    until(lambda: seen_by(consumer).keys() == sent.keys(), 60)
    set_mode("PULL")
    until(lambda: consumer.assigned() == list(range(QUEUES)), 60, consumer.assigned)
    sent += send(producer, topic, "again", 40)
    until(lambda: seen_by(consumer).keys() == sent.keys(), 60)


def test_our_simple_consumer_receives_extends_and_acks(server, topic, group, set_mode, producer, until):
    set_mode("POP")
    sent = send(producer, topic, "m", 20)
    consumer = sync.SimpleConsumer(
        server.name_server, group=group, subscribe={topic: "*"}, consume_from=ConsumeFrom.FIRST_OFFSET
    )
    assert isinstance(consumer._core, SimpleConsumer)
    with consumer:
        got = {}
        deadline = time.monotonic() + 30
        while len(got) < 20 and time.monotonic() < deadline:
            for message in consumer.receive(invisible_ms=30_000, wait_ms=2_000):
                got[message.body.decode()] = message
        assert got.keys() == sent.keys()
        messages = list(got.values())
        consumer.ack(messages[0])
        consumer.extend(messages[1], 60_000)
        consumer.ack(messages[1])
        consumer.nack(messages[2], delay_ms=1_000)
        consumer.ack_many(messages[3:])
        again = []
        while not again and time.monotonic() < deadline + 30:
            again = consumer.receive(wait_ms=2_000)
        assert [(message.body, message.reconsume_times) for message in again] == [(messages[2].body, 1)]
        consumer.ack(again[0])
        assert consumer.receive(wait_ms=3_000) == []


def test_our_command_line_sets_and_shows_the_mode_and_the_lag(
    server, topic, group, set_mode, member, producer, until, capsys
):
    def penstock(*args):
        code = main([*args, "-n", server.name_server])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    set_mode("PULL")
    said = penstock("mqadmin", "setConsumeMode", "-c", server.cluster, "-t", topic, "-g", group, "-m", "POP")
    assert said[0] == 0, said
    code, out = penstock("group", "mode", "get", group, "--json")
    assert code == 0
    assert [(mode["topic"], mode["mode"]) for mode in json.loads(out)] == [(topic, "POP")]
    consumer = member("python")
    until(lambda: consumer.popping() == [-1], 60, consumer.popping)
    sent = send(producer, topic, "m", 40)
    until(lambda: seen_by(consumer).keys() == sent.keys(), 60)
    consumer.stop()
    send(producer, topic, "later", 12)

    def waiting():
        code, out = penstock("group", "show", group, "--json")
        assert code == 0, out
        return [lag["ready"] for lag in json.loads(out)["lags"] if lag["topic"] == topic]

    until(lambda: waiting() == [12], 60, waiting)
    code, out = penstock("group", "list", "--topic", topic)
    assert code == 0
    assert group in out
    code, out = penstock("group", "leases", group)
    if server.broker_name.endswith("@theirs"):
        assert (code, "is not a broker of Penstock's: it lists no leases" in out) == (1, True)
    else:
        assert (code, out.endswith("0 message(s) in flight\n")) == (0, True)


@pytest.mark.scenario("pop-51")
def test_our_client_pops_a_light_queue_that_apaches_broker_dispatches_to():
    """What is stored once under its topic is popped, and acked, by its offsets in the light queue."""
    light, other = "%LMQ%light", "%LMQ%other"
    with apache.cluster(settings={"enableLmq": "true", "enableMultiDispatch": "true"}) as cluster:
        for name, queues in (("parent", "2"), (light, "1")):  # the second gives clients a route to its broker
            assert main(["topic", "create", name, "-q", queues, "-n", cluster.name_server]) == 0
        with sync.Producer(cluster.name_server) as producer:
            queues = producer.queues("parent")
            dispatch = [light, f"{other},{light}", other, f"{light},{other}", "", light]
            for number, lights in enumerate(dispatch):
                properties = {"INNER_MULTI_DISPATCH": lights} if lights else {}
                message = Message("parent", b"%d" % number, properties=properties)
                producer.send(message, queue=queues[number % 2])
        with sync.SimpleConsumer(
            cluster.name_server, group="light", subscribe={light: "*"}, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            got = []
            deadline = time.monotonic() + 30
            while len(got) < 4 and time.monotonic() < deadline:
                got += consumer.receive(invisible_ms=SHORTEST_LEASE_MS, wait_ms=2_000)
            assert [(message.body, message.handle.queue_id, message.handle.offset) for message in got] == [
                (b"0", 0, 0),
                (b"1", 0, 1),
                (b"3", 0, 2),
                (b"5", 0, 3),
            ]
            assert {(message.topic, message.queue.queue_id) for message in got} == {(light, 0)}
            consumer.ack(got[0])
            consumer.ack_many(got[1:])
            seen = []
            until = time.monotonic() + SHORTEST_LEASE_MS / 1000 + REVIVE_S
            while time.monotonic() < until:
                seen += consumer.receive(wait_ms=1_000)
            assert seen == []
