"""A tiny application: orders are placed in one place and billed in another."""

from __future__ import annotations

import json
from typing import Protocol

from penstock import ConsumeFrom, Message, ReceivedMessage, RetryLater, sync

TOPIC = "orders"


def place_order(producer: sync.Producer, customer: str, cents: int) -> str:
    """The id of the message. Orders of a customer stay in order."""
    body = json.dumps({"customer": customer, "cents": cents}).encode()
    return producer.send(Message(TOPIC, body, tag="placed"), queue_key=customer).message_id


class Bank(Protocol):
    def charge(self, customer: str, cents: int) -> None: ...


class Billing:
    """Adds up what customers owe. A bank that does not answer is asked again a second later."""

    def __init__(self, name_server: str, bank: Bank) -> None:
        self.owed: dict[str, int] = {}
        self._bank = bank
        self.consumer = sync.PushConsumer(name_server, group="billing", consume_from=ConsumeFrom.FIRST_OFFSET)
        self.consumer.on(TOPIC, tags="placed")(self._bill)

    def _bill(self, message: ReceivedMessage) -> None:
        order = json.loads(message.body)
        try:
            self._bank.charge(order["customer"], order["cents"])
        except ConnectionError as error:
            raise RetryLater(str(error), level=1) from error
        self.owed[order["customer"]] = self.owed.get(order["customer"], 0) + order["cents"]
