from __future__ import annotations

import pytest

from penstock.client.routes import RouteTable, publish_queues, subscribe_queues
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import BrokerData, QueueData, TopicRouteData


def route(
    *queue_datas: QueueData, brokers: dict[str, dict[int, str]] | None = None, order: str | None = None
) -> TopicRouteData:
    brokers = brokers or {data.broker_name: {0: f"{data.broker_name}:1"} for data in queue_datas}
    return TopicRouteData(
        order_topic_conf=order,
        queue_datas=list(queue_datas),
        broker_datas=[BrokerData("c", name, addrs) for name, addrs in brokers.items()],
    )


@pytest.mark.scenario(16)
def test_read_and_write_permission_decide_which_queues_exist_for_whom() -> None:
    readable = route(QueueData("b", 2, 2, 4))
    writable = route(QueueData("b", 2, 2, 2))
    assert (len(subscribe_queues("t", readable)), len(publish_queues("t", readable))) == (2, 0)
    assert (len(subscribe_queues("t", writable)), len(publish_queues("t", writable))) == (0, 2)


@pytest.mark.scenario(17)
def test_without_a_master_a_broker_can_be_read_but_not_sent_to() -> None:
    data = route(QueueData("b", 2, 2, 6), brokers={"b": {1: "slave:1"}})
    assert publish_queues("t", data) == []
    assert len(subscribe_queues("t", data)) == 2


@pytest.mark.scenario(18)
def test_an_order_configuration_lists_the_queues_itself() -> None:
    data = route(QueueData("b1", 4, 4, 6), QueueData("b2", 4, 4, 6), order="b2:1;b1:2")
    assert publish_queues("t", data) == [
        MessageQueue("t", "b2", 0),
        MessageQueue("t", "b1", 0),
        MessageQueue("t", "b1", 1),
    ]


def test_queues_to_send_to_are_in_the_order_all_producers_share() -> None:
    data = route(QueueData("b2", 1, 1, 6), QueueData("b1", 3, 2, 6))
    assert publish_queues("t", data) == [
        MessageQueue("t", "b1", 0),
        MessageQueue("t", "b1", 1),
        MessageQueue("t", "b2", 0),
    ]


def test_a_route_that_says_the_same_in_another_order_is_not_a_change() -> None:
    table = RouteTable()
    one, two = QueueData("b1", 1, 1, 6), QueueData("b2", 1, 1, 6)
    assert table.put("t", route(one, two))
    assert not table.put("t", route(two, one))
    assert table.put("t", route(one, two, brokers={"b1": {0: "x:1"}, "b2": {0: "b2:1"}}))
    assert table.master("b1") == "x:1"


def test_reads_go_to_the_wanted_replica_the_next_one_or_any() -> None:
    table = RouteTable()
    table.put("t", route(QueueData("b", 1, 1, 6), brokers={"b": {0: "m:1", 2: "s:1"}}))
    table.versions["s:1"] = 500

    def address(broker_id: int, *, only: bool = False) -> tuple[str, bool] | None:
        found = table.replica("b", broker_id, only=only)
        return None if found is None else (found.address, found.is_slave)

    assert address(0) == ("m:1", False)
    assert address(2) == ("s:1", True)
    assert address(1) == ("s:1", True)
    assert address(7) == ("m:1", False)
    assert address(7, only=True) is None
    assert table.replica("unknown", 0) is None
    replica = table.replica("b", 2)
    assert replica is not None
    assert replica.version == 500


def test_a_broker_of_a_topic_is_its_master_or_a_replica_without_one() -> None:
    table = RouteTable()
    assert table.any_of_topic("t") is None
    table.put("t", route(QueueData("b", 1, 1, 6), brokers={"b": {1: "s:1"}}))
    assert table.any_of_topic("t") == "s:1"
    table.put("t", route(QueueData("b", 1, 1, 6), brokers={"b": {0: "m:1", 1: "s:1"}}))
    assert table.any_of_topic("t") == "m:1"


def test_addresses_that_no_route_names_are_dropped() -> None:
    table = RouteTable()
    table.put("t", route(QueueData("b", 1, 1, 6), brokers={"b": {0: "m:1", 1: "s:1"}, "c": {0: "c:1"}}))
    table.put("u", route(QueueData("b", 1, 1, 6), brokers={"b": {0: "m:1", 1: "s:1"}}))
    table.put("t", route(QueueData("b", 1, 1, 6), brokers={"b": {0: "m:1", 1: "s:1"}}))
    assert table.drop_unrouted() == ["c:1"]
    assert set(table.all_addresses()) == {"m:1", "s:1"}
    assert set(table.all_addresses(masters_only=True)) == {"m:1"}
