"""The whole product on one screen: a broker, a producer of orders, a consumer that fails now and then, and
Spark, which reads the topic and must come to the same numbers.

Needs nothing but this package with the extras `spark` and `java`. Everything stays on this machine, on free
ports and in a temporary directory. The exit code is 1 if any two numbers disagree.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable

from penstock import Message, Producer, PushConsumer, ReceivedMessage, RetryLater
from penstock.admin import AdminClient, TopicSettings
from penstock.spark import session
from penstock.testing import broker

TOPIC = "orders"
GROUP = "billing"
ORDERS = 2_000
FAILING = 40  # every so-manyth order fails twice before it is billed
PATIENCE_S = 30


async def produce(name_server: str) -> Counter[str]:
    """Orders of 100 customers, each customer's in one queue; how many of each tag were stored."""
    stored: Counter[str] = Counter()
    async with Producer(name_server, group="shop") as producer:
        for first in range(0, ORDERS, 200):
            sends = []
            for order in range(first, first + 200):
                tag = "shipped" if order % 3 == 0 else "paid"
                body = json.dumps({"id": order, "cents": 100 + order % 900}).encode()
                message = Message(TOPIC, body, tag=tag, keys=[f"order-{order}"])
                sends.append(producer.send(message, queue_key=f"customer-{order % 100}"))
                stored[tag] += 1
            await asyncio.gather(*sends)
    return stored


class Billing:
    """Bills every order once it gets through; some need three attempts."""

    def __init__(self) -> None:
        self.billed: Counter[str] = Counter()
        self.attempts = 0
        self.retried = 0

    async def bill(self, message: ReceivedMessage) -> None:
        self.attempts += 1
        order = json.loads(message.body)["id"]
        if order % FAILING == 0 and message.reconsume_times < 2:
            self.retried += 1
            raise RetryLater(level=1)  # the shortest of the broker's delays: one second
        self.billed[message.tag or "none"] += 1


async def consume(name_server: str, expected: int) -> tuple[Billing, int]:
    """What was billed, and the group's lag at the end."""
    billing = Billing()
    consumer = PushConsumer(name_server, group=GROUP, consume_from="first")
    consumer.on(TOPIC, tags="paid || shipped")(billing.bill)
    async with consumer:
        deadline = time.monotonic() + PATIENCE_S
        while billing.billed.total() < expected and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
    async with AdminClient(name_server) as admin:
        stats = await admin.consume_stats(GROUP)
    lag = sum(queue.broker_offset - queue.consumer_offset for queue in stats.offset_table.values())
    return billing, lag


async def run_messaging(name_server: str) -> tuple[Counter[str], Billing, int]:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, TopicSettings(read_queues=4, write_queues=4))
    stored, (billing, lag) = await asyncio.gather(produce(name_server), consume(name_server, ORDERS))
    return stored, billing, lag


def analyse(name_server: str) -> tuple[dict[str, int], int, int]:
    """Orders by tag, distinct message ids, and rows in the group's retry topic, as Spark counts them."""
    spark = session("demo", memory="1g", config={"spark.log.level": "ERROR"})
    try:
        topics = spark.read.format("rocketmq").option("nameServer", name_server)
        orders = topics.option("subscribe", TOPIC).load()
        by_tag = {row["tags"]: row["count"] for row in orders.groupBy("tags").count().collect()}
        distinct = orders.select("msgId").distinct().count()
        retries = topics.option("subscribe", f"%RETRY%{GROUP}").option("columns", "queueOffset").load().count()
        return by_tag, distinct, retries
    finally:
        spark.stop()


def timed(what: str, work: Callable[[], object]) -> object:
    started = time.monotonic()
    print(f"{what} ...", end=" ", flush=True)
    result = work()
    print(f"{time.monotonic() - started:.1f} s")
    return result


def main() -> int:
    logging.basicConfig(level=logging.WARNING)
    with broker() as server:
        print(f"broker {server.address}, name server {server.name_server}, data in {server.data_dir}")
