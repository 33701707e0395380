"""Reads a stretch of time again: queues are assigned by hand, and no group's progress is touched."""

import asyncio
import os
import sys
import time

from penstock import Message, Producer, PullConsumer

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "pull-history"


async def send(values: range) -> None:
    async with Producer(NAME_SERVER, group="pull-sensor") as producer:
        await producer.send_many([Message(TOPIC, str(value).encode()) for value in values])


async def replay(start_ms: int) -> list[int]:
    """Everything stored from a time on until now."""
    consumer = PullConsumer(NAME_SERVER, group="pull-replay", auto_commit=False)
    consumer.assign([])
    values: list[int] = []
    async with consumer:
        queues = await consumer.fetch_queues(TOPIC)
        consumer.assign(queues)
        left = 0
        for queue in queues:
            start = await consumer.search_offset(queue, start_ms)
            left += await consumer.max_offset(queue) - start
            await consumer.seek(queue, start)
        while left > len(values):
            batch = await consumer.poll()
            if not batch:
                break  # nothing came for 5 s
            values += [int(message.body) for message in batch]
    return values


async def main() -> int:
    await send(range(100))
    await asyncio.sleep(0.1)
    start_ms = time.time_ns() // 1_000_000
    await send(range(100, 110))
    print("100 readings sent, a pause, 10 more")
    again = sorted(await replay(start_ms))
    print(f"read again from the pause on: {again[0]} to {again[-1]}" if again else "nothing came")
    return 0 if again == list(range(100, 110)) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
