"""Starts the service, stops it with SIGTERM in the middle of its work, starts it again, and looks whether
every order has its invoice in the end."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from penstock import ConsumeFrom, Message, Producer, PullConsumer
from penstock.admin import AdminClient

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
ORDERS, INVOICES = "service-orders", "service-invoices"
SERVICE = Path(__file__).with_name("service.py")
COUNT = 40
PATIENCE_S = 30


async def serve_until(invoices: PullConsumer, seen: Counter[str], enough: int) -> int:
    """Runs the service until so many of the orders in `seen` have invoices; its exit code."""
    service = await asyncio.create_subprocess_exec(sys.executable, str(SERVICE))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while sum(map(bool, seen.values())) < enough:
                for message in await invoices.poll(timeout_ms=200):
                    order = message.keys[0]
                    if order in seen:  # not one of an earlier run
                        seen[order] += 1
    except TimeoutError:
        print(f"that took longer than {PATIENCE_S} s")
    print(f"{sum(map(bool, seen.values()))} orders have invoices; SIGTERM to the service", flush=True)
    service.send_signal(signal.SIGTERM)
    return await service.wait()


async def main() -> int:
    async with AdminClient(NAME_SERVER) as admin:
        for topic in (ORDERS, INVOICES):
            await admin.create_topic(topic)
    run = time.time_ns()
    seen = Counter({f"order-{run}-{number}": 0 for number in range(COUNT)})
    async with Producer(NAME_SERVER, group="service-shop") as producer:
        await producer.send_many([Message(ORDERS, order.encode()) for order in seen])
    print(f"{COUNT} orders sent", flush=True)
    async with PullConsumer(
        NAME_SERVER,
        group="service-audit",
        subscribe={INVOICES: "*"},
        consume_from=ConsumeFrom.FIRST_OFFSET,
    ) as invoices:
        codes = [await serve_until(invoices, seen, COUNT // 4), await serve_until(invoices, seen, COUNT)]
    missing = sum(1 for count in seen.values() if count == 0)
    twice = sum(1 for count in seen.values() if count > 1)
    if missing or codes != [0, 0]:
        print(f"{missing} orders have no invoice; exit codes of the service: {codes}")
        return 1
    print(f"every order has its invoice, {twice} have more than one")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
