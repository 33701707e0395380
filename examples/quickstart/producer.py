"""Sends ten orders and prints where each of them is stored."""

import asyncio
import os

from penstock import Message, Producer

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAME_SERVER, group="quickstart-shop") as producer:
        for number in range(1, 11):
            order = Message("quickstart", f"order {number}".encode(), tag="paid", keys=[f"order-{number}"])
            sent = await producer.send(order)
            print(f"order {number} stored in queue {sent.queue.queue_id} at offset {sent.queue_offset}")


if __name__ == "__main__":
    asyncio.run(main())
