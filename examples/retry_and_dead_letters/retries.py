"""Messages that fail come again after a delay; those that keep failing end in the dead-letter topic."""

import asyncio
import os
import sys
from collections import Counter

from penstock import (
    ConsumeFrom,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
)

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC, GROUP = "retries-orders", "retries-billing"
DEAD_LETTERS = f"%DLQ%{GROUP}"
ORDERS = ["good", "flaky", "hopeless", "garbage"]
ATTEMPTS = {"good": 1, "flaky": 2, "hopeless": 3, "garbage": 1}
PATIENCE_S = 30


async def bill_orders(ids: set[str]) -> Counter[str]:
    """How often each order was tried."""
    attempts: Counter[str] = Counter()
    done = asyncio.Event()
    consumer = PushConsumer(
        NAME_SERVER,
        group=GROUP,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        max_reconsume_times=2,  # the first attempt and two more; 16 more without this
    )

    @consumer.on(TOPIC)
    async def bill(message: ReceivedMessage) -> None:
        order = message.body.decode()
        if message.message_id in ids:
            attempts[order] += 1
        if attempts == ATTEMPTS:
            done.set()
        print(f"{order}: attempt {message.reconsume_times + 1}")
        if order == "garbage":
            raise RetryLater("no attempt will ever succeed", level=-1)  # to the dead letters at once
        if order == "hopeless" or (order == "flaky" and message.reconsume_times == 0):
            # Level 1 is one second. Any other exception lets the broker choose: 10 s, 30 s, 1 min, ...
            raise RetryLater("the bank does not answer", level=1)
        print(f"{order}: billed")

    async with consumer:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()
        except TimeoutError:
            print(f"not all attempts were made in {PATIENCE_S} s")
    return attempts


async def read_dead_letters(ids: set[str]) -> set[str]:
    """The dead orders. A dead-letter topic is read like any other, by a group of its own."""
    dead: set[str] = set()
    async with PullConsumer(
        NAME_SERVER,
        group="retries-repair",
        subscribe={DEAD_LETTERS: "*"},
        consume_from=ConsumeFrom.FIRST_OFFSET,
    ) as consumer:
        while messages := await consumer.poll(timeout_ms=2_000):
            for message in messages:
                if message.message_id in ids:
                    dead.add(message.body.decode())
                    came_from = message.properties["RETRY_TOPIC"]
                    print(f"dead letter: {message.body.decode()}, first sent to {came_from}")
            await consumer.commit()
    return dead


async def main() -> int:
    async with Producer(NAME_SERVER, group="retries-shop") as producer:
        sent = await producer.send_many([Message(TOPIC, order.encode()) for order in ORDERS])
    ids = {result.message_id for result in sent}
    attempts = await bill_orders(ids)
    dead = await read_dead_letters(ids)
    if attempts != ATTEMPTS or dead != {"hopeless", "garbage"}:
        print(f"unexpected: attempts {dict(attempts)}, dead letters {dead}")
        return 1
    print("two orders billed, two dead letters")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
