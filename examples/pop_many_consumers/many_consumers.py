"""Twelve consumers and three queues: how many of them work in PULL mode, and how many in POP mode."""

import asyncio
import os
import sys
import time
from collections import Counter

from penstock import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from penstock.admin import AdminClient, TopicSettings, set_consume_mode

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "pop-many-consumers"
QUEUES, CONSUMERS, MESSAGES = 3, 12, 120
WORK_S = 0.05
PATIENCE_S = 40


class Team:
    """Twelve consumers of one group, each working on one message at a time."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.done: Counter[int] = Counter()
        self.finished = asyncio.Event()
        self.members = [self.make_member(number) for number in range(CONSUMERS)]
        self.queues: dict[int, int] = {}

    def make_member(self, number: int) -> PushConsumer:
        member = PushConsumer(
            NAME_SERVER,
            group=f"pop-many-consumers-{self.mode}",
            consume_from=ConsumeFrom.FIRST_OFFSET,
            consume_threads=1,
            # Nobody takes more than it works on, so that there is something left for everybody.
            pop_batch=1,
            pop_threshold=1,
        )

        @member.on(TOPIC)
        async def work(message: ReceivedMessage) -> None:
            await asyncio.sleep(WORK_S)
            self.done[number] += 1
            if self.done.total() == MESSAGES:
                self.finished.set()

        member.on_assignment(lambda topic, queues, own: self.assigned(number, topic, len(own)))
        return member

    def assigned(self, number: int, topic: str, count: int) -> None:
        if topic == TOPIC:
            self.queues[number] = count

    @property
    def settled(self) -> bool:
        """In PULL mode three have a queue each, in POP mode all have the same one, which stands for all."""
        wanted = QUEUES if self.mode == "PULL" else CONSUMERS
        return [count for count in self.queues.values() if count] == [1] * wanted

    async def run(self) -> float:
        """Seconds for all messages."""
        await asyncio.gather(*(member.start() for member in self.members))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not self.settled:  # noqa: ASYNC110 - it takes a second or two, once
                    await asyncio.sleep(0.05)
                async with Producer(NAME_SERVER) as producer:
                    queues = await producer.queues(TOPIC)
                    began = time.monotonic()
                    for number in range(MESSAGES):
                        await producer.send(Message(TOPIC, b"%d" % number), queue=queues[number % QUEUES])
                await self.finished.wait()
            return time.monotonic() - began
        finally:
            await asyncio.gather(*(member.stop() for member in self.members))


async def main() -> int:
    async with AdminClient(NAME_SERVER) as admin:
        await admin.create_topic(TOPIC, TopicSettings(read_queues=QUEUES, write_queues=QUEUES))
        for mode in ("PULL", "POP"):
            await set_consume_mode(admin, TOPIC, f"pop-many-consumers-{mode}", mode)
    print(f"{MESSAGES} messages of {WORK_S * 1000:.0f} ms work, {QUEUES} queues, {CONSUMERS} consumers")
    busy = {}
    for mode in ("PULL", "POP"):
        team = Team(mode)
        try:
            seconds = await team.run()
        except TimeoutError:
            print(f"{mode}: {team.done.total()} of {MESSAGES} messages in {PATIENCE_S} s")
            return 1
        busy[mode] = len(team.done)
        print(f"{mode:4}: {len(team.done):2} of {CONSUMERS} consumers worked, all done in {seconds:.1f} s")
    return 0 if busy == {"PULL": QUEUES, "POP": CONSUMERS} else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
