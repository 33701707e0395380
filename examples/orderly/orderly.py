"""The events of one customer are handled in their order, those of different customers side by side."""

import asyncio
import os
import random
import sys
import threading
import time
from collections import defaultdict

from penstock import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage, RetryLater

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "orderly-events"
CUSTOMERS = ["ann", "ben", "cleo", "dan"]
EVENTS = ["basket", "order", "payment", "parcel", "review"]
PATIENCE_S = 30


async def produce() -> set[str]:
    """The ids of the messages. `queue_key` sends everything of one customer to the same queue."""
    ids = set()
    async with Producer(NAME_SERVER, group="orderly-shop") as producer:
        for event in EVENTS:
            for customer in CUSTOMERS:
                message = Message(TOPIC, event.encode(), keys=[customer])
                ids.add((await producer.send(message, queue_key=customer)).message_id)
    return ids


async def consume(waiting: set[str]) -> dict[str, list[str]]:
    """What was handled for each customer, in the order in which it was."""
    handled: dict[str, list[str]] = defaultdict(list)
    lock = threading.Lock()
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    consumer = PushConsumer(
        NAME_SERVER, group="orderly-crm", orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET
    )

    @consumer.on(TOPIC)
    def handle(message: ReceivedMessage) -> None:
        """Runs on worker threads, one for each queue at most."""
        customer, event = message.keys[0], message.body.decode()
        time.sleep(random.uniform(0.0, 0.05))
        with lock:
            if (customer, event) == ("ben", "payment") and message.reconsume_times == 0:
                print("ben: the payment fails, his queue waits for it")
                raise RetryLater("the bank is busy", suspend_ms=500)
            print(f"{customer}: {event}")
            if message.message_id in waiting:
                waiting.discard(message.message_id)
                handled[customer].append(event)
            if not waiting:
                loop.call_soon_threadsafe(done.set)

    async with consumer:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()
        except TimeoutError:
            print(f"{len(waiting)} events were not handled in {PATIENCE_S} s")
    return handled


async def main() -> int:
    waiting = await produce()
    print(f"{len(waiting)} events sent")
    handled = await consume(waiting)
    if any(handled[customer] != EVENTS for customer in CUSTOMERS):
        print(f"out of order: {dict(handled)}")
        return 1
    print("every customer's events were handled in order")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
