"""Messages that become visible later: the broker keeps them for the time of their delay level."""

import asyncio
import os
import sys
import time

from penstock import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "delayed-reminders"
LEVELS = {2: 5, 1: 1, 0: 0}  # of the broker's 18 levels, with their seconds; 0 is no delay
PATIENCE_S = 30


async def main() -> int:
    waiting: dict[str, int] = {}
    async with Producer(NAME_SERVER, group="delayed-shop") as producer:
        for level, seconds in LEVELS.items():
            message = Message(TOPIC, f"the one for {seconds} s".encode(), delay_level=level)
            waiting[(await producer.send(message)).message_id] = seconds
            print(f"sent {message.body.decode()}")

    consumer = PushConsumer(NAME_SERVER, group="delayed-mailer", consume_from=ConsumeFrom.FIRST_OFFSET)
    early: list[str] = []
    order: list[int] = []
    done = asyncio.Event()

    @consumer.on(TOPIC)
    async def remind(message: ReceivedMessage) -> None:
        if message.message_id not in waiting:
            return
        seconds = waiting.pop(message.message_id)
        waited = time.time() - message.born_ms / 1000
        print(f"got {message.body.decode()} after {waited:.1f} s")
        order.append(seconds)
        if waited < seconds:
            early.append(message.message_id)
        if not waiting:
            done.set()

    async with consumer:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()
        except TimeoutError:
            print(f"{len(waiting)} messages did not come in {PATIENCE_S} s")
            return 1
    if early or order != sorted(order):
        print("some came too early")
        return 1
    print("none came early, and the shortest delay came first")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
