"""Whether the memory of a producer and a push consumer stays flat over millions of messages.

python bench/client_memory.py              2 million messages, a few minutes
python bench/client_memory.py --messages 400000

Both clients live in this process, the broker in another. The resident memory is noted after every tenth of
the messages; the caches and pools of the client have their size after the first fifth.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import servers

from penstock import ConsumeFrom, ConsumeStatus, Message, Producer, PushConsumer
from penstock.transport.loop import loop_factory

HERE = Path(__file__).resolve().parent
TOPIC = "ClientMemory"
MOST_GROWTH_MB = 8.0
PORTION = 10_000


def resident_mb() -> float:
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) / 1024


def no_op(messages: Sequence[Message], context: object) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


async def run(name_server: str, count: int) -> list[float]:
    """Resident memory after every tenth."""
    noted: list[float] = []
    consumer = PushConsumer(
        name_server,
        group="memory",
        listener=no_op,  # type: ignore[arg-type]
        subscribe={TOPIC: "*"},
        consume_from=ConsumeFrom.FIRST_OFFSET,
    )
    async with Producer(name_server, group="memory", send_timeout_ms=30_000) as producer, consumer:
        consumed = consumer.stats.topic(TOPIC).consume_ok
        for sent in range(PORTION, count + 1, PORTION):
            await producer.send_many([Message(TOPIC, b"x" * 200, keys=str(i)) for i in range(PORTION)])
            while consumed.value < sent - PORTION:  # noqa: ASYNC110, a counter tells nobody of a change
                await asyncio.sleep(0.005)
            if sent % (count // 10) == 0:
                noted.append(resident_mb())
                print(
                    f"   {sent:>9,} sent, {consumed.value:>11,.0f} consumed: {noted[-1]:.1f} MB", flush=True
                )
        while consumed.value < count:  # noqa: ASYNC110, as above
            await asyncio.sleep(0.01)
    return noted


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2_000_000)
    options = parser.parse_args()
    with servers.penstock("async") as broker, asyncio.Runner(loop_factory=loop_factory()) as runner:
        noted = runner.run(run(broker.name_server, options.messages))
    growth = max(noted[2:]) - noted[1]
    flat = growth <= MOST_GROWTH_MB
    text = (
        f"{options.messages:,} messages sent and consumed; resident MB after each tenth: "
        f"{' '.join(f'{mb:.1f}' for mb in noted)}\n"
        f"{'held    ' if flat else 'NOT HELD'}  growth after the first fifth: {growth:.1f} MB, "
        f"allowed {MOST_GROWTH_MB:g}"
    )
    print(text)
    if options.messages >= 2_000_000:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "client-memory.txt").write_text(text + "\n")
    sys.exit(not flat)


if __name__ == "__main__":
    main()
