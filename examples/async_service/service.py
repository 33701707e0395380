"""A service: takes orders from one topic and puts invoices into another, until SIGTERM or Ctrl-C.

On a signal, invoices that are being written are finished, the progress is saved and the consumer leaves its
group, so that others take over at once; then the producer is closed. What was not begun stays in the topic.
"""

import asyncio
import os

from penstock import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
ORDERS, INVOICES = "service-orders", "service-invoices"


class Billing:
    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.written = 0
        self.unfinished = 0

    async def bill(self, message: ReceivedMessage) -> None:
        """If the invoice cannot be sent, the exception brings the order back later."""
        self.unfinished += 1
        order = message.body.decode()
        await asyncio.sleep(0.1)  # the real work: a database, another service
        await self._producer.send(Message(INVOICES, f"invoice for {order}".encode(), keys=[order]))
        self.written += 1
        self.unfinished -= 1


async def main() -> None:
    async with Producer(NAME_SERVER, group="service-billing") as producer:
        billing = Billing(producer)
        consumer = PushConsumer(
            NAME_SERVER,
            group="service-billing",
            consume_from=ConsumeFrom.FIRST_OFFSET,
            consume_threads=4,  # so many coroutines at a time
            stop_timeout_ms=5_000,  # how long the invoices that are being written may take at the end
        )
        consumer.on(ORDERS)(billing.bill)
        print("service: started", flush=True)
        await consumer.run()  # returns after SIGTERM or SIGINT, when everything that runs has ended
    print(
        f"service: stopped, {billing.written} invoices written, {billing.unfinished} unfinished", flush=True
    )


if __name__ == "__main__":
    asyncio.run(main())
