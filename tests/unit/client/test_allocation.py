"""All six strategies give what the reference gives, for every size in the golden table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.client.allocation import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ConsistentHash,
    HashRing,
    MachineRoom,
    MachineRoomNearby,
    md5_head,
)
from penstock.errors import InvalidArgument
from penstock.message.queue import MessageQueue

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden/tables/allocation.json").read_text())


class Rooms:
    def broker_room(self, queue: MessageQueue) -> str:
        return queue.broker_name.split("@")[0]

    def client_room(self, client_id: str) -> str:
        return client_id.split("@")[0]


def queues_of(brokers: list[str], each: int, topic: str = "T") -> list[MessageQueue]:
    return sorted(MessageQueue(topic, broker, number) for broker in brokers for number in range(each))


def shares(strategy: AllocationStrategy, row: dict[str, Any]) -> dict[str, list[str]]:
    queues = queues_of(row["brokers"], row["queuesEach"])
    clients = sorted(row["clients"])
    return {
        client: [f"{q.broker_name}:{q.queue_id}" for q in strategy.allocate("group", client, queues, clients)]
        for client in clients
    }


@pytest.mark.behaviour("REB-2")
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("AVG", Averagely()),
        ("AVG_BY_CIRCLE", AveragelyByCircle()),
        ("CONSISTENT_HASH", ConsistentHash()),
        ("CONSISTENT_HASH_3_VIRTUAL", ConsistentHash(3)),
    ],
)
def test_each_strategy_divides_queues_as_the_reference_does(name: str, strategy: AllocationStrategy) -> None:
    rows = [row for row in GOLDEN["strategies"] if name in row]
    assert len(rows) > 100
    for row in rows:
        assert shares(strategy, row) == row[name], row["clients"]


@pytest.mark.behaviour("REB-2")
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("MACHINE_ROOM(room1,room2)", MachineRoom(["room1", "room2"])),
        ("MACHINE_ROOM_NEARBY-AVG", MachineRoomNearby(Averagely(), Rooms())),
        ("MACHINE_ROOM_NEARBY-CIRCLE", MachineRoomNearby(AveragelyByCircle(), Rooms())),
    ],
)
def test_machine_rooms_divide_queues_as_the_reference_does(name: str, strategy: AllocationStrategy) -> None:
    for row in GOLDEN["rooms"]:
        assert shares(strategy, row) == row[name], row


@pytest.mark.behaviour("REB-2")
def test_by_config_returns_its_list_whoever_asks() -> None:
    queues = queues_of(["broker-a"], 2)
    for client, expected in GOLDEN["config"].items():
        got = ByConfig(queues).allocate("g", client, queues_of(["broker-a"], 8), list(GOLDEN["config"]))
        assert [f"{queue.broker_name}:{queue.queue_id}" for queue in got] == expected


def test_strategies_have_the_names_other_clients_know_them_by() -> None:
    strategies: list[AllocationStrategy] = [
        Averagely(),
        AveragelyByCircle(),
        ConsistentHash(),
        ByConfig([]),
        MachineRoom([]),
        MachineRoomNearby(Averagely(), Rooms()),
    ]
    assert [strategy.name for strategy in strategies] == GOLDEN["names"]


def test_the_hash_ring_routes_keys_as_the_reference_does() -> None:
    golden = GOLDEN["ring"]
    ring = HashRing(golden["nodes"], golden["virtualNodesEach"], md5_head)
    assert {key: ring.owner(key) for key in golden["routes"]} == golden["routes"]


@pytest.mark.scenario(20)
def test_consistent_hash_matches_the_published_check_values() -> None:
    clients = ["192.168.0.1@1001", "192.168.0.2@1002", "192.168.0.3@1003"]
    queues = queues_of(["broker-a"], 8, "TopicTest")
    assert md5_head("MessageQueue [topic=TopicTest, brokerName=broker-a, queueId=0]") == 1987926524
    owned = {client: ConsistentHash().allocate("g", client, queues, clients) for client in clients}
    assert [queue.queue_id for queue in owned[clients[0]]] == [2, 5]
    assert owned[clients[1]] == []
    assert [queue.queue_id for queue in owned[clients[2]]] == [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize("strategy", [Averagely(), AveragelyByCircle(), ConsistentHash()])
def test_missing_input_is_an_error_and_an_unknown_client_gets_nothing(strategy: AllocationStrategy) -> None:
    queues = queues_of(["a"], 2)
    with pytest.raises(InvalidArgument, match="client id"):
        strategy.allocate("g", "", queues, ["c"])
    with pytest.raises(InvalidArgument, match="queues"):
        strategy.allocate("g", "c", [], ["c"])
    with pytest.raises(InvalidArgument, match="consumers"):
        strategy.allocate("g", "c", queues, [])
    assert strategy.allocate("g", "unknown", queues, ["c"]) == []


def test_a_nearby_strategy_refuses_a_client_without_a_room() -> None:
    with pytest.raises(InvalidArgument, match="room"):
        MachineRoomNearby(Averagely(), Rooms()).allocate("g", "@x", queues_of(["r@a"], 1), ["@x"])
