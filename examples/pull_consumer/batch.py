"""A job at its own pace: takes what is there, commits after each batch, and goes on there next time."""

import asyncio
import os
import sys

from penstock import ConsumeFrom, Message, Producer, PullConsumer

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "pull-readings"
READINGS = 30


def new_consumer() -> PullConsumer:
    return PullConsumer(
        NAME_SERVER,
        group="pull-job",
        subscribe={TOPIC: "*"},
        consume_from=ConsumeFrom.FIRST_OFFSET,
        auto_commit=False,
        pull_batch=10,
    )


async def main() -> int:
    async with Producer(NAME_SERVER, group="pull-sensor") as producer:
        sent = await producer.send_many([Message(TOPIC, str(n).encode()) for n in range(READINGS)])
    ids = {result.message_id for result in sent}
    print(f"{READINGS} readings sent")

    async with new_consumer() as consumer:
        batch = await consumer.poll()
        print(f"first job: {len(batch)} readings, and it fails before the commit")
        lost = {message.message_id for message in batch}

    done: set[str] = set()
    async with new_consumer() as consumer:
        while batch := await consumer.poll(timeout_ms=1_500):  # empty: nothing more is there
            done.update(message.message_id for message in batch)
            await consumer.commit(persist=True)
            print(f"second job: {len(batch)} readings of queue {batch[0].queue_id} done and committed")

    if not (lost and lost <= done and ids <= done):
        print(f"readings are missing: {len((ids | lost) - done)}")
        return 1
    print("all readings done, those of the first job again")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
