"""A worker that takes jobs when it is ready: receive, work, ack; extend a long one, give back a bad one."""

import os
import sys

from penstock import ConsumeFrom, LeaseLost, Message
from penstock.sync import Producer, SimpleConsumer

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "simple-jobs"


def main() -> int:
    with Producer(NAME_SERVER) as producer:
        for job in ("short", "long", "flaky"):
            producer.send(Message(TOPIC, job.encode()))
    finished: list[str] = []
    consumer = SimpleConsumer(
        NAME_SERVER, group="simple-worker", subscribe={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST_OFFSET
    )
    with consumer:
        while len(finished) < 3:
            # Nobody else gets these for ten seconds, wherever they came from.
            messages = consumer.receive(max_messages=8, invisible_ms=10_000)
            if not messages:
                print("no more jobs came")
                return 1
            for message in messages:
                job = message.body.decode()
                if job == "flaky" and message.reconsume_times == 0:
                    consumer.nack(message, delay_ms=500)
                    print("flaky failed, again in 500 ms")
                    continue
                if job == "long":
                    consumer.extend(message, 60_000)
                    print("long takes longer, the lease is extended")
                try:
                    consumer.ack(message)
                except (
                    LeaseLost
                ) as lost:  # somebody else has it now: what was done here must be safe to do twice
                    print(lost)
                    continue
                finished.append(job)
                print(f"{job} is done at attempt {message.reconsume_times + 1}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
