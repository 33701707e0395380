"""Whether a group pulls or pops a topic, and who is told to take which queues."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.message.queue import MessageQueue

QUERY, SET_MODE, ALL_MODES, HEARTBEAT = 400, 401, 402, 34


class Balancer:
    def __init__(self, pops: Any) -> None:
        self.pops = pops
        self.bench = pops.bench

    def join(self, *clients: str, group: str = "G", topic: str = "T") -> None:
        for number, client in enumerate(clients):
            body = {
                "clientID": client,
                "consumerDataSet": [
                    {
                        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                        "consumeType": "CONSUME_PASSIVELY",
                        "groupName": group,
                        "messageModel": "CLUSTERING",
                        "subscriptionDataSet": [
                            {"topic": topic, "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": []}
                        ],
                        "unitMode": False,
                    }
                ],
                "producerDataSet": [],
            }
            peer = self.bench.new_peer(45_000 + number)
            assert self.bench.ask(HEARTBEAT, None, json.dumps(body).encode(), peer=peer).code == 0

    def set_mode(self, mode: str, share: int = 0, **others: str) -> Any:
        body = {"topic": "T", "consumerGroup": "G", "mode": mode, "popShareQueueNum": share, **others}
        return self.bench.ask(SET_MODE, None, json.dumps(body).encode())

    def query(self, client: str = "c0", **others: Any) -> Any:
        """Queue ids in their order, None for no answer; the mode is that of all of them."""
        body = {
            "topic": "T",
            "consumerGroup": "G",
            "clientId": client,
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
            **others,
        }
        answer = self.bench.ask(
            QUERY, None, json.dumps({k: v for k, v in body.items() if v is not None}).encode()
        )
        assert answer.code == 0, answer.remark
        found = json.loads(answer.body)
        if "messageQueueAssignments" not in found:
            assert found == {}
            return None
        assigned = found["messageQueueAssignments"]
        modes = {item["mode"] for item in assigned}
        assert len(modes) <= 1
        self.mode = next(iter(modes), None)
        return [item["messageQueue"]["queueId"] for item in assigned]


@pytest.fixture
def balancer(new_pops: Callable[..., Any]) -> Balancer:
    return Balancer(new_pops(queues=4))


# ---- modes --------------------------------------------------------------------------------------


@pytest.mark.behaviour("POP-1")
def test_a_mode_is_set_shown_saved_and_honoured(balancer: Balancer) -> None:
    balancer.join("c0")
    assert balancer.query() == [0, 1, 2, 3]
    assert balancer.mode == "PULL"
    assert balancer.set_mode("POP", 8).code == 0
    assert balancer.query() == [-1]
    assert balancer.mode == "POP"
    saved = {"consumerGroup": "G", "mode": "POP", "popShareQueueNum": 8, "topic": "T"}
    shown = json.loads(balancer.bench.ask(ALL_MODES).body)
    assert shown == {"messageRequestModeMap": {"T": {"G": saved}}}
    balancer.bench.wait(2_000)
    file = balancer.bench.directory / "config" / "messageRequestMode.json"
    assert json.loads(file.read_text()) == {"messageRequestModeMap": {"T": {"G": saved}}}
    for way in (balancer.pops.kill, balancer.pops.restart):
        way()
        balancer.join("c0")
        assert balancer.query() == [-1]
    assert balancer.set_mode("PULL").code == 0
    assert balancer.query() == [0, 1, 2, 3]
    assert balancer.mode == "PULL"


@pytest.mark.behaviour("POP-1")
def test_modes_that_cannot_be_are_refused(balancer: Balancer) -> None:
    balancer.pops.send(1)
    balancer.pops.pop()  # so that the group exists
    assert balancer.set_mode("POP", topic="%RETRY%G").code == 16
    assert balancer.set_mode("POP", topic="nothing").code == 17
    assert balancer.set_mode("POP", consumerGroup="no good name!").code == 26
    assert balancer.set_mode("PUSH").code == 29
    assert balancer.bench.ask(SET_MODE).code == 1
    assert balancer.bench.ask(SET_MODE, None, b"[]").code == 1
    assert json.loads(balancer.bench.ask(ALL_MODES).body) == {"messageRequestModeMap": {}}


def test_the_default_mode_can_be_pop_but_never_for_retry_topics(new_pops: Callable[..., Any]) -> None:
    balancer = Balancer(new_pops(queues=4, defaultMessageRequestMode="POP"))
    balancer.join("c0")
    assert balancer.query() == [-1]
    balancer.pops.topic("%RETRY%G")
    assert balancer.query(topic="%RETRY%G") == [0]
    assert balancer.mode == "PULL"


# ---- assignments --------------------------------------------------------------------------------


@pytest.mark.scenario(23)
@pytest.mark.behaviour("POP-3")
@pytest.mark.parametrize("share", [0, -1, 7, 100])
def test_without_a_share_or_with_a_large_one_everybody_takes_all_queues(
    balancer: Balancer, share: int
) -> None:
    clients = [f"c{number}" for number in range(8)]
    balancer.join(*clients)
    balancer.set_mode("POP", share)
    assert [balancer.query(client) for client in clients] == [[-1]] * 8
    assert balancer.query("stranger") == [-1]


@pytest.mark.scenario(23)
@pytest.mark.behaviour("POP-14")
def test_more_consumers_than_queues_all_get_work(balancer: Balancer) -> None:
    pops = balancer.pops
    for number in range(96):
        pops.send(1, queue_id=number % 4, first=number)
    seen = [pops.pop(queue_id=-1, most=8).bodies for _ in range(12)]
    assert all(seen)
    assert sorted(body for bodies in seen for body in bodies) == sorted(
        b"m%d" % number for number in range(96)
    )


@pytest.mark.scenario(24)
@pytest.mark.behaviour("POP-3")
@pytest.mark.parametrize("share", [2, 6])
def test_more_consumers_than_queues_take_one_queue_each(balancer: Balancer, share: int) -> None:
    clients = [f"c{number}" for number in range(8)]
    balancer.join(*clients)
    balancer.set_mode("POP", share)
    assert [balancer.query(client) for client in clients] == [[number % 4] for number in range(8)]
    assert balancer.query("stranger") == []


@pytest.mark.scenario(25)
@pytest.mark.behaviour("POP-3")
def test_with_a_share_everybody_takes_the_queues_of_the_next_ones_too(balancer: Balancer) -> None:
    balancer.join("c0", "c1", "c2")
    balancer.set_mode("POP", 1)
    assert sorted(balancer.query("c0")) == [0, 1, 2]
    assert sorted(balancer.query("c1")) == [2, 3]
    assert sorted(balancer.query("c2")) == [0, 1, 3]
    assert balancer.query("stranger") == []
    assert sorted(balancer.query("c0", strategyName="AVG_BY_CIRCLE")) == [0, 1, 3]


@pytest.mark.scenario(26)
@pytest.mark.behaviour("POP-2")
def test_pull_groups_and_unknown_ones_get_what_the_protocol_says(balancer: Balancer) -> None:
    assert balancer.query() is None  # no heartbeat yet
    balancer.join("c0", "c1")
    balancer.set_mode("PULL")
    assert [balancer.query(client) for client in ("stranger", "c0", "c1")] == [[], [0, 1], [2, 3]]
    assert balancer.mode == "PULL"
    balancer.pops.topic("%RETRY%x")
    balancer.join("c0", "c1", topic="%RETRY%x")
    assert balancer.query(topic="%RETRY%x") == [0]
    assert balancer.mode == "PULL"
    assert balancer.query(topic="nothing") is None
    assert balancer.query(consumerGroup="nobody") is None
    assert balancer.query(strategyName="MACHINE_ROOM") is None
    assert balancer.query(strategyName=None) is None
    assert balancer.query("") is None


@pytest.mark.behaviour("POP-2")
def test_broadcasting_gets_all_queues(balancer: Balancer) -> None:
    assert balancer.query(messageModel="BROADCASTING") == [0, 1, 2, 3]
    assert balancer.query(messageModel="BROADCASTING", topic="nothing") is None


@pytest.mark.behaviour("POP-2")
def test_with_the_balancer_off_everybody_gets_all_queues(new_pops: Callable[..., Any]) -> None:
    balancer = Balancer(new_pops(queues=4, serverLoadBalancerEnable="false"))
    assert balancer.query("anybody") == [0, 1, 2, 3]
    balancer.bench.broker.groups.find("G", balancer.bench.now_ms)
    assert balancer.set_mode("POP").code == 0
    assert balancer.query("anybody") == [0, 1, 2, 3]
    assert balancer.mode == "POP"


def test_a_question_without_body_or_model_is_refused(balancer: Balancer) -> None:
    assert balancer.bench.ask(QUERY).code == 1
    assert balancer.bench.ask(QUERY, None, b'{"topic":"T","consumerGroup":"G","clientId":"c"}').code == 1


@pytest.mark.behaviour("POP-3")
def test_queues_of_all_brokers_are_shared_out(balancer: Balancer) -> None:
    class TwoBrokers:
        def queues(self, topic: str) -> list[MessageQueue] | None:
            names = ("broker-b", "broker-a")
            return [MessageQueue(topic, name, queue_id) for name in names for queue_id in range(2)]

    balancer.bench.broker.pop.assignments.routes = TwoBrokers()
    balancer.join("c0", "c1")
    answer = {}
    for client in ("c0", "c1"):
        body = {
            "topic": "T",
            "consumerGroup": "G",
            "clientId": client,
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
        }
        found = json.loads(balancer.bench.ask(QUERY, None, json.dumps(body).encode()).body)
        answer[client] = {item["messageQueue"]["brokerName"] for item in found["messageQueueAssignments"]}
    assert answer == {"c0": {"broker-a"}, "c1": {"broker-b"}}
    balancer.set_mode("POP", 0)
    assert balancer.query() == [-1, -1]
