"""All consumers are restarted, one after the other: how long messages wait in PULL mode, and in POP mode."""

import asyncio
import os
import sys
import time

from penstock import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from penstock.admin import AdminClient, TopicSettings, set_consume_mode

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "pop-rolling-restart"
QUEUES, CONSUMERS = 3, 3
SEND_EVERY_S = 0.01
BETWEEN_RESTARTS_S = 0.7
DOWN_S = 0.3
LIMIT_S = 1.0
PATIENCE_S = 40


class Rollout:
    """A service with three replicas, a producer that never pauses, and a new version to roll out."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.sent = 0
        self.waits: dict[int, float] = {}
        self.queues: dict[int, int] = {}

    def make_replica(self, number: int) -> PushConsumer:
        replica = PushConsumer(
            NAME_SERVER,
            group=f"pop-rolling-restart-{self.mode}",
            consume_from=ConsumeFrom.FIRST_OFFSET,
        )

        @replica.on(TOPIC)
        async def work(message: ReceivedMessage) -> None:
            run, index, sent_at = message.body.decode().split()
            if run == self.mode:  # the other run's messages are in the topic, too
                self.waits.setdefault(int(index), time.time() - float(sent_at))

        replica.on_assignment(lambda topic, queues, own: self.assigned(number, topic, len(own)))
        return replica

    def assigned(self, number: int, topic: str, count: int) -> None:
        if topic == TOPIC:
            self.queues[number] = count

    async def produce(self, stop: asyncio.Event) -> None:
        async with Producer(NAME_SERVER) as producer:
            while not stop.is_set():
                await producer.send(Message(TOPIC, f"{self.mode} {self.sent} {time.time()}".encode()))
                self.sent += 1
                await asyncio.sleep(SEND_EVERY_S)

    async def run(self) -> float:
        """The longest that any message waited, in seconds."""
        replicas = [self.make_replica(number) for number in range(CONSUMERS)]
        await asyncio.gather(*(replica.start() for replica in replicas))
        stop = asyncio.Event()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while list(self.queues.values()) != [1] * CONSUMERS:  # noqa: ASYNC110 - takes a second, once
                    await asyncio.sleep(0.05)
                producing = asyncio.create_task(self.produce(stop))
                for number in range(CONSUMERS):
                    await asyncio.sleep(BETWEEN_RESTARTS_S)
                    await replicas[number].stop()
                    await asyncio.sleep(DOWN_S)
                    replicas[number] = self.make_replica(number)
                    await replicas[number].start()
                await asyncio.sleep(BETWEEN_RESTARTS_S)
                stop.set()
                await producing
                while len(self.waits) < self.sent:  # noqa: ASYNC110 - the last ones are on their way
                    await asyncio.sleep(0.05)
            return max(self.waits.values())
        finally:
            stop.set()
            await asyncio.gather(*(replica.stop() for replica in replicas))


async def main() -> int:
    async with AdminClient(NAME_SERVER) as admin:
        await admin.create_topic(TOPIC, TopicSettings(read_queues=QUEUES, write_queues=QUEUES))
        for mode in ("PULL", "POP"):
            await set_consume_mode(admin, TOPIC, f"pop-rolling-restart-{mode}", mode)
    longest = {}
    for mode in ("PULL", "POP"):
        rollout = Rollout(mode)
        try:
            longest[mode] = await rollout.run()
        except TimeoutError:
            print(f"{mode}: {len(rollout.waits)} of {rollout.sent} messages in {PATIENCE_S} s")
            return 1
        print(
            f"{mode:4}: {CONSUMERS} consumers restarted, {rollout.sent} messages sent meanwhile, "
            f"all consumed, the longest wait was {longest[mode] * 1000:.0f} ms"
        )
    print(f"in POP mode nothing waited longer than {LIMIT_S:.0f} s: {longest['POP'] < LIMIT_S}")
    return 0 if longest["POP"] < LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
