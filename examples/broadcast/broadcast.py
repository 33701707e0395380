"""Every replica of a service gets every message: here, to keep a price list in its memory up to date."""

import asyncio
import os
import sys
import tempfile

from penstock import Message, MessageModel, Producer, PushConsumer, ReceivedMessage
from penstock.admin import AdminClient, TopicSettings

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "broadcast-prices"
PRICES = {"apple": "30", "pear": "45", "plum": "25"}
PATIENCE_S = 20


class Replica:
    """One copy of the service. In real life each is a process of its own, on a machine of its own."""

    def __init__(self, name: str, offsets: str) -> None:
        self.name = name
        self.prices: dict[str, str] = {}
        self.ready = asyncio.Event()
        self.up_to_date = asyncio.Event()
        self.consumer = PushConsumer(
            NAME_SERVER,
            group="broadcast-shop",
            message_model=MessageModel.BROADCASTING,
            # Progress is kept by the consumer itself, in a file that is found again by the instance's name.
            instance_name=name,
            local_offset_dir=offsets,
        )
        self.consumer.on(TOPIC)(self.update)
        self.consumer.on_assignment(lambda topic, queues, own: self.ready.set())

    async def update(self, message: ReceivedMessage) -> None:
        fruit = message.keys[0]
        self.prices[fruit] = message.body.decode()
        print(f"{self.name}: {fruit} costs {self.prices[fruit]}")
        if self.prices == PRICES:
            self.up_to_date.set()


async def main() -> int:
    async with AdminClient(NAME_SERVER) as admin:
        await admin.create_topic(TOPIC, TopicSettings(read_queues=2, write_queues=2))
    with tempfile.TemporaryDirectory() as offsets:
        replicas = [Replica("replica-1", offsets), Replica("replica-2", offsets)]
        async with replicas[0].consumer, replicas[1].consumer, Producer(NAME_SERVER) as producer:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    # Only what is sent from now on matters: the default start, ConsumeFrom.LAST_OFFSET.
                    for replica in replicas:
                        await replica.ready.wait()
                    for fruit, cents in PRICES.items():
                        await producer.send(Message(TOPIC, cents.encode(), keys=[fruit]))
                    print(f"{len(PRICES)} prices sent")
                    for replica in replicas:
                        await replica.up_to_date.wait()
            except TimeoutError:
                print(f"not all prices came: {[replica.prices for replica in replicas]}")
                return 1
    print("both replicas know all prices")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
