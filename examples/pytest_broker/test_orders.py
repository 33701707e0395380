"""`penstock_broker` is a real broker inside the test process: no mock, no container, nothing to clean up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from orders import Billing, place_order

from penstock import sync
from penstock.testing import RunningBroker


class FakeBank:
    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.charged: list[tuple[str, int]] = []

    def charge(self, customer: str, cents: int) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the bank does not answer")
        self.charged.append((customer, cents))


def eventually(check: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not true after {timeout_s} s"
        time.sleep(0.01)


@pytest.fixture
def producer(penstock_broker: RunningBroker) -> Iterator[sync.Producer]:
    with sync.Producer(penstock_broker.name_server, group="shop") as producer:
        yield producer


def test_orders_are_billed(penstock_broker: RunningBroker, producer: sync.Producer) -> None:
    place_order(producer, "ann", 300)
    place_order(producer, "ann", 200)
    billing = Billing(penstock_broker.name_server, FakeBank())
    with billing.consumer:
        eventually(lambda: billing.owed == {"ann": 500})


def test_an_order_is_billed_once_the_bank_answers(
    penstock_broker: RunningBroker, producer: sync.Producer
) -> None:
    bank = FakeBank(failures=1)
    place_order(producer, "ben", 100)
    billing = Billing(penstock_broker.name_server, bank)
    with billing.consumer:
        eventually(lambda: billing.owed == {"ben": 100})
    assert bank.charged == [("ben", 100)]


def test_orders_survive_a_restart_of_the_broker(
    penstock_broker: RunningBroker, producer: sync.Producer
) -> None:
    place_order(producer, "cleo", 700)
    penstock_broker.restart()
    billing = Billing(penstock_broker.name_server, FakeBank())
    with billing.consumer:
        eventually(lambda: billing.owed == {"cleo": 700})
