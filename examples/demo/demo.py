"""The whole product in a minute: a broker, a producer of orders, two kinds of consumer that share the work
and fail now and then, and a pipeline on Spark that archives, routes and reports while all of that goes on.

Everything stays on this machine, on free ports. The exit code is 1 if any two numbers disagree. What the
pipeline makes is left in build/demo, or the folder that is given.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pyarrow.parquet as parquet

from penstock import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage, RetryLater, SimpleConsumer
from penstock.admin import AdminClient, TopicSettings, set_consume_mode
from penstock.testing import broker

HERE = Path(__file__).parent
ORDERS = 3_000
SECONDS = 20  # over which the orders come, in waves
FAILING = 40  # every so-manyth order fails twice before it is billed
PATIENCE_S = 300  # a minute is enough on a machine that has nothing else to do


@dataclass
class Billing:
    """Bills every order; some need three attempts. The consumers share one of these."""

    billed: dict[int, str] = field(default_factory=dict)
    """Order -> tag"""
    by_push: int = 0
    by_simple: int = 0
    failed: int = 0

    def bill(self, message: ReceivedMessage) -> bool:
        order = json.loads(message.body)["id"]
        if order % FAILING == 0 and message.reconsume_times < 2:
            self.failed += 1
            return False
        self.billed[order] = message.tag or ""
        return True


def new_order(number: int) -> Message:
    body = json.dumps({"id": number, "cents": 100 + number % 900}).encode()
    tag = "shipped" if number % 3 == 0 else "paid"
    customer = int(100 * (number * 0.618 % 1) ** 2)  # some buy more than others
    return Message("orders", body, tag=tag, keys=[f"customer-{customer}"])


async def produce(name_server: str) -> Counter[str]:
    """How many orders of each tag the broker has acknowledged."""
    stored: Counter[str] = Counter()
    began = time.monotonic()
    async with Producer(name_server, group="shop") as producer:
        while stored.total() < ORDERS:
            passed = min(1.0, (time.monotonic() - began) / SECONDS)
            due = int(ORDERS * (passed - math.sin(4 * math.pi * passed) / (4 * math.pi)))
            orders = [new_order(number) for number in range(stored.total(), due)]
            # Orders of one customer go to one queue, in order.
            await producer.send_many(orders, queue_key=lambda order: order.keys[0])
            stored.update(order.tag or "" for order in orders)
            await asyncio.sleep(0.2)
    return stored


async def consume(name_server: str, billing: Billing) -> None:
    """The group is in POP mode: the broker hands out single messages, to whoever asks."""
    push = PushConsumer(
        name_server,
        group="billing",
        consume_from=ConsumeFrom.FIRST_OFFSET,
        pop_retry_delays_ms=(1_000,),
        pop_batch=8,
        pop_threshold=8,
    )

    @push.on("orders")
    async def bill(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.002)  # work
        if not billing.bill(message):
            raise RetryLater
        billing.by_push += 1

    simple = SimpleConsumer(
        name_server, group="billing", subscribe={"orders": "*"}, consume_from=ConsumeFrom.FIRST_OFFSET
    )
    deadline = time.monotonic() + PATIENCE_S
    async with push, simple:
        while len(billing.billed) < ORDERS and time.monotonic() < deadline:
            for message in await simple.receive(max_messages=8, invisible_ms=30_000, wait_ms=1_000):
                await asyncio.sleep(0.002)
                if billing.bill(message):
                    await simple.ack(message)
                    billing.by_simple += 1
                else:
                    await simple.nack(message, delay_ms=1_000)


async def prepare(name_server: str) -> None:
    async with AdminClient(name_server) as admin:
        for topic in ("orders", "paid-orders"):
            await admin.create_topic(topic, TopicSettings(read_queues=4, write_queues=4))
        await set_consume_mode(admin, "orders", "billing", "POP")


async def work(name_server: str, billing: Billing) -> Counter[str]:
    stored, _ = await asyncio.gather(produce(name_server), consume(name_server, billing))
    return stored


async def lag_of(name_server: str, group: str) -> int:
    async with AdminClient(name_server) as admin:
        progress = await admin.consume_stats(group)
    return sum(q.broker_offset - q.consumer_offset for q in progress.offset_table.values())


class Pipeline:
    """`penstock pipeline run`, as a process of its own."""

    def __init__(self, folder: Path, name_server: str) -> None:
        self.folder = folder
        self.log = folder / "pipeline.log"
        file = shutil.copy(HERE / "pipeline.toml", folder)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli", "pipeline", "run", file],
                env={**os.environ, "NAMESRV_ADDR": name_server},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def jobs(self) -> dict[str, Any]:
        file = self.folder / "state" / "status.json"
        if not file.exists():
            return {}
        return {job["name"]: job for job in json.loads(file.read_bytes())["jobs"]}

    def wait(self, until: Callable[[dict[str, Any]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            jobs = self.jobs()
            if jobs and until(jobs):
                return
            time.sleep(0.2)
        sys.exit(f"The pipeline did not do its work in {PATIENCE_S} s: see {self.log}, and {self.jobs()}")

    def stop(self) -> int:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def reported(folder: Path, topic: str) -> int:
    file = folder / "report" / "topics.parquet"
    rows = parquet.read_table(file).to_pylist() if file.exists() else []
    return sum(row["messages"] for row in rows if row["topic"] == topic)


def say(text: str, began: float) -> None:
    print(f"  {time.monotonic() - began:5.1f} s  {text}", flush=True)


def run(folder: Path, began: float) -> list[tuple[str, list[int]]]:
    """Rows of numbers that must agree."""
    with broker() as server:
        name_server = server.name_server
        say(f"broker at {server.address}, name server at {name_server}", began)
        asyncio.run(prepare(name_server))
        pipeline = Pipeline(folder, name_server)
        say("pipeline started: archive, route and report", began)
        billing = Billing()
        try:
            stored = asyncio.run(work(name_server, billing))
            say(f"{stored.total()} orders sent and {len(billing.billed)} billed", began)
            say(f"by a push consumer {billing.by_push}, by a simple consumer {billing.by_simple}", began)
            pipeline.wait(lambda jobs: all(jobs[job]["messages"] >= ORDERS for job in ("archive", "paid")))
            say("archived and routed", began)
            done = pipeline.jobs()["report"]["runs"]
            pipeline.wait(lambda jobs: jobs["report"]["runs"] >= done + 2)  # one that began after the rest
            jobs = pipeline.jobs()
        finally:
            exit_code = pipeline.stop()
        say("pipeline stopped", began)
        lag = asyncio.run(lag_of(name_server, "billing"))
    archive = dataset.dataset(folder / "lake" / "orders", partitioning="hive").to_table()
    tags = Counter(archive["tags"].to_pylist())
    ids = set(archive["msgId"].to_pylist())
    cents = [json.loads(body)["cents"] for body in archive["body"].to_pylist()]
    groups = parquet.read_table(folder / "report" / "groups.parquet").to_pylist()
    billed = Counter(billing.billed.values())
    routed = reported(folder, "paid-orders")
    lags = [jobs[name]["lag"] for name in ("archive", "paid")]
    return [
        (
            "orders sent, billed, archived, in the report",
            [stored.total(), len(billing.billed), archive.num_rows, reported(folder, "orders")],
        ),
        ("  of them paid, and routed to paid-orders", [stored["paid"], billed["paid"], tags["paid"], routed]),
        ("  of them shipped", [stored["shipped"], billed["shipped"], tags["shipped"]]),
        ("orders, distinct message ids in the archive", [ORDERS, len(ids)]),
        ("cents ordered, archived", [sum(100 + number % 900 for number in range(ORDERS)), sum(cents)]),
        (
            "failed attempts, messages that came back",
            [2 * math.ceil(ORDERS / FAILING), billing.failed, sum(row["retries"] for row in groups)],
        ),
        ("lag of billing, of the archive, of the route", [0, lag, *lags]),
        ("exit code of the pipeline", [0, exit_code]),
    ]


def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1] / "build" / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    print("Orders are sold, billed, archived, routed and counted:")
    rows = run(folder, began)
    print()
    wrong = 0
    for what, numbers in rows:
        same = len(set(numbers)) == 1
        wrong += not same
        print(
            f"  {'ok  ' if same else 'DIFF'} {what:<50} {' = '.join(map(str, numbers)) if same else numbers}"
        )
    print()
    if wrong:
        print(f"{wrong} of these disagree: please report it, with the lines above and {folder}/pipeline.log")
        return 1
    print("All agree. Look at:")
    for plot in sorted((folder / "report").glob("*.png")):
        print(f"  {plot}")
    print(f"  {folder / 'lake' / 'orders'}  the archive, Parquet by topic and day")
    print(f"  {folder / 'pipeline.toml'}  the pipeline, without a line of code")
    print(
        "Next: `penstock serve`, the examples beside this one, docs/client.md, docs/pop.md, docs/pipelines.md"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
