"""One assigned queue of a consumer in POP mode; queue id -1 stands for all queues of its broker."""

from __future__ import annotations

import asyncio

from penstock.client.stats import TopicStats
from penstock.message.queue import MessageQueue


class PopQueue:
    """All calls come from the event loop. Times are milliseconds of its clock."""

    __slots__ = ("_change", "dropped", "last_pop_ms", "queue", "stats", "unacked")

    def __init__(self, queue: MessageQueue, stats: TopicStats, now_ms: float) -> None:
        self.queue = queue
        self.stats = stats
        self.dropped = False
        """Nothing more is popped for it; what is here is still consumed, its leases are ours."""
        self.unacked = 0
        """Messages popped that are not done with: neither acked nor put off, or still with a listener."""
        self.last_pop_ms = now_ms
        self._change: asyncio.Future[None] | None = None

    def drop(self) -> None:
        self.dropped = True
        self.tell()

    def tell(self) -> None:
        """Whoever waits for fewer unacked messages, or for the end, looks again."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    async def changed(self, timeout_ms: float | None = None) -> None:
        """Until a message is settled, the queue is dropped, or the time is over."""
        self._change = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._change
        except TimeoutError:
            pass
        finally:
            self._change = None

    async def sleep(self, delay_ms: float) -> None:
        """A pause that ends early when the queue is dropped."""
        loop = asyncio.get_running_loop()
        until = loop.time() + delay_ms / 1000
        while not self.dropped and (left := until - loop.time()) > 0:
            await self.changed(left * 1000)
