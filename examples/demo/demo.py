"""The main job from end to end: a broker, a producer of orders, a consumer that fails now and then, and
Spark, which reads the topic, writes totals back as messages and must come to the same numbers.

Everything stays on this machine, on free ports and in a temporary directory. The exit code is 1 if any two
numbers disagree.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from penstock import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage, RetryLater
from penstock.admin import AdminClient, TopicSettings
from penstock.spark import session
from penstock.testing import broker

ORDERS = 2_000
FAILING = 40  # every so-manyth order fails twice before it is billed
PATIENCE_S = 30


@dataclass
class Billing:
    """Bills every order; some need three attempts."""

    billed: Counter[str] = field(default_factory=Counter)
    retried: int = 0
    lag: int = -1
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def bill(self, message: ReceivedMessage) -> None:
        order = json.loads(message.body)["id"]
        if order % FAILING == 0 and message.reconsume_times < 2:
            self.retried += 1
            raise RetryLater(level=1)  # the shortest of the broker's delays, one second
        self.billed[message.tag or ""] += 1
        if self.billed.total() == ORDERS:
            self.done.set()


def new_orders() -> list[Message]:
    orders = []
    for number in range(ORDERS):
        body = json.dumps({"id": number, "cents": 100 + number % 900}).encode()
        tag = "shipped" if number % 3 == 0 else "paid"
        orders.append(Message("orders", body, tag=tag, keys=[f"order-{number}", f"customer-{number % 100}"]))
    return orders


async def produce(name_server: str) -> Counter[str]:
    """How many orders of each tag the broker has acknowledged."""
    orders = new_orders()
    async with Producer(name_server, group="shop") as producer:
        # Orders of one customer go to one queue, in order.
        results = await producer.send_many(orders, queue_key=lambda order: order.keys[1])
    assert len(results) == len(orders)
    return Counter(order.tag or "" for order in orders)


async def consume(name_server: str) -> Billing:
    billing = Billing()
    consumer = PushConsumer(name_server, group="billing", consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.on("orders", tags="paid || shipped")(billing.bill)
    async with consumer:
        with suppress(TimeoutError):  # what is missing then shows in the summary
            await asyncio.wait_for(billing.done.wait(), PATIENCE_S)
    async with AdminClient(name_server) as admin:
        progress = await admin.consume_stats("billing")
    billing.lag = sum(q.broker_offset - q.consumer_offset for q in progress.offset_table.values())
    return billing


async def buy_and_bill(name_server: str) -> tuple[Counter[str], Billing]:
    async with AdminClient(name_server) as admin:
        for topic in ("orders", "totals"):
            await admin.create_topic(topic, TopicSettings(read_queues=4, write_queues=4))
    return await asyncio.gather(produce(name_server), consume(name_server))


@dataclass
class Report:
    """What Spark finds in the topics."""

    orders: dict[str, int]
    message_ids: int
    retries: int
    cents: int
    cents_written_back: int


def analyse(name_server: str) -> Report:
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for a short life: start fast, optimise little
    spark = session(
        "demo", memory="1g", config={"spark.driver.extraJavaOptions": quick, "spark.log.level": "OFF"}
    )
    try:
        topic = spark.read.format("rocketmq").option("nameServer", name_server)
        topic.option("subscribe", "orders").load().createOrReplaceTempView("orders")
        totals = spark.sql(
            """
            SELECT tags, count(*) AS orders, count(DISTINCT msgId) AS ids,
                   sum(get_json_object(cast(body AS string), '$.cents')) AS cents
            FROM orders GROUP BY tags
            """
        ).cache()
        rows = totals.collect()
        retries = topic.option("subscribe", "%RETRY%billing").load().count()
        messages = totals.selectExpr("tags", "cast(cast(cents AS bigint) AS string) AS body")
        sink = messages.write.format("rocketmq").option("nameServer", name_server)
        sink.option("topic", "totals").mode("append").save()
        written = topic.option("subscribe", "totals").load().selectExpr("sum(cast(body AS string)) AS cents")
        return Report(
            orders={row.tags: row.orders for row in rows},
            message_ids=sum(row.ids for row in rows),
            retries=retries,
            cents=int(sum(row.cents for row in rows)),
            cents_written_back=int(written.collect()[0].cents),
        )
    finally:
        spark.stop()


@contextmanager
def step(text: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"  {text:<58} {time.monotonic() - started:5.1f} s", flush=True)


def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    with broker() as server:
        name_server = server.name_server
        print(f"A broker at {server.address} with its name server at {name_server}")
        with step(f"{ORDERS} orders sent, and billed by a push consumer"):
            stored, billing = asyncio.run(buy_and_bill(name_server))
        with step("read, added up and written back by Spark"):
            report = analyse(name_server)
    cents = sum(100 + number % 900 for number in range(ORDERS))
    agree = [
        (
            "orders acknowledged, billed and read by Spark",
            ORDERS,
            billing.billed.total(),
            sum(report.orders.values()),
        ),
        ("  of them paid", stored["paid"], billing.billed["paid"], report.orders.get("paid")),
        ("  of them shipped", stored["shipped"], billing.billed["shipped"], report.orders.get("shipped")),
        ("distinct message ids", ORDERS, report.message_ids),
        (
            "failed attempts, and messages in the retry topic",
            2 * (ORDERS // FAILING),
            billing.retried,
            report.retries,
        ),
        ("cents in all orders, and in the topic Spark wrote", cents, report.cents, report.cents_written_back),
        ("lag of the group billing", 0, billing.lag),
    ]
    print()
    wrong = 0
    for what, *numbers in agree:
        same = len(set(numbers)) == 1
        wrong += not same
        print(
            f"  {'ok  ' if same else 'DIFF'} {what:<52} {' = '.join(map(str, numbers)) if same else numbers}"
        )
    print()
    if wrong:
        print(f"{wrong} of these disagree: please report it, with the lines above.")
        return 1
    print("All agree. Next: `penstock serve`, the examples beside this one, and docs/.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
