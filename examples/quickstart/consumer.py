"""Consumes ten orders, then ends. Run producer.py first: it also creates the topic."""

import asyncio
import os
import sys

from penstock import ConsumeFrom, PushConsumer, ReceivedMessage

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
ORDERS = 10
PATIENCE_S = 20


async def main() -> int:
    # A group that consumes for the first time starts with the first message there is, not with the next one.
    consumer = PushConsumer(NAME_SERVER, group="quickstart-billing", consume_from=ConsumeFrom.FIRST_OFFSET)
    billed: list[str] = []
    done = asyncio.Event()

    @consumer.on("quickstart", tags="paid")
    async def bill(message: ReceivedMessage) -> None:
        """A normal return means consumed; an exception would bring the message back later."""
        billed.append(message.body.decode())
        print(f"billed {billed[-1]}")
        if len(billed) >= ORDERS:
            done.set()

    async with consumer:  # a service would `await consumer.run()`: until Ctrl-C or SIGTERM
        try:
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()
        except TimeoutError:
            print(f"only {len(billed)} orders came in {PATIENCE_S} s; did producer.py run?")
            return 1
    print(f"{len(billed)} orders billed")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
