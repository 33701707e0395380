"""One of three consumers hangs: what that does to the others' messages in PULL mode, and in POP mode."""

import asyncio
import logging
import os
import sys
import time

from penstock import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from penstock.admin import AdminClient, TopicSettings, set_consume_mode

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "pop-hung-consumer"
QUEUES, CONSUMERS, MESSAGES = 3, 3, 90
LEASE_MS = 3_000
LOOK_AFTER_S = 2.0
PATIENCE_S = 40


class Team:
    """Three consumers. The one that gets the message "hang" never comes back from it."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.done: dict[bytes, float] = {}
        self.released = asyncio.Event()
        self.hung = asyncio.Event()
        self.queues: dict[int, int] = {}
        self.members = [self.make_member(number) for number in range(CONSUMERS)]

    def make_member(self, number: int) -> PushConsumer:
        member = PushConsumer(
            NAME_SERVER,
            group=f"pop-hung-consumer-{self.mode}",
            consume_from=ConsumeFrom.FIRST_OFFSET,
            consume_threads=1,
            pop_threshold=1,
            pop_invisible_ms=LEASE_MS,
            # Else the lease of a message is extended while its listener runs, up to consume_timeout_ms.
            pop_renew=False,
        )

        @member.on(TOPIC)
        async def work(message: ReceivedMessage) -> None:
            if message.body == b"hang" and not self.hung.is_set():
                self.hung.set()
                await self.released.wait()
            self.done[message.body] = time.monotonic()

        member.on_assignment(lambda topic, queues, own: self.assigned(number, topic, len(own)))
        return member

    def assigned(self, number: int, topic: str, count: int) -> None:
        if topic == TOPIC:
            self.queues[number] = count

    async def run(self) -> tuple[int, float]:
        """Messages that wait after two seconds, and how long the one that hung took in all."""
        await asyncio.gather(*(member.start() for member in self.members))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while list(self.queues.values()) != [1] * CONSUMERS:  # noqa: ASYNC110 - takes a second, once
                    await asyncio.sleep(0.05)
                async with Producer(NAME_SERVER) as producer:
                    await producer.send(Message(TOPIC, b"hang"))
                    began = time.monotonic()
                    await self.hung.wait()
                    queues = await producer.queues(TOPIC)
                    for number in range(MESSAGES):
                        await producer.send(Message(TOPIC, b"%d" % number), queue=queues[number % QUEUES])
                await asyncio.sleep(LOOK_AFTER_S)
                waiting = sum(b"%d" % number not in self.done for number in range(MESSAGES))
                if self.mode == "POP":
                    while b"hang" not in self.done:  # noqa: ASYNC110 - another consumer gets it
                        await asyncio.sleep(0.05)
                self.released.set()
                while len(self.done) < MESSAGES + 1:  # noqa: ASYNC110 - leave nothing for the next run
                    await asyncio.sleep(0.05)
            return waiting, self.done[b"hang"] - began
        finally:
            self.released.set()
            await asyncio.gather(*(member.stop() for member in self.members))


async def main() -> int:
    logging.getLogger("penstock").setLevel(logging.ERROR)  # a hung listener is worth a warning, not here
    async with AdminClient(NAME_SERVER) as admin:
        await admin.create_topic(TOPIC, TopicSettings(read_queues=QUEUES, write_queues=QUEUES))
        for mode in ("PULL", "POP"):
            await set_consume_mode(admin, TOPIC, f"pop-hung-consumer-{mode}", mode)
    backlog = {}
    for mode in ("PULL", "POP"):
        try:
            backlog[mode], seconds = await Team(mode).run()
        except TimeoutError:
            print(f"{mode}: not all messages came in {PATIENCE_S} s")
            return 1
        print(f"{mode:4}: {backlog[mode]:2} of {MESSAGES} messages wait behind the hung consumer")
        if mode == "POP":
            print(f"      the one it held was consumed by another after {seconds:.1f} s")
    return 0 if backlog["POP"] == 0 < backlog["PULL"] else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
