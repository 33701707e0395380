"""Reading offset ranges inside a task: several pulls on the way while the last answers are decoded.

A range is cut into slots that are filled by themselves, each with pulls at explicit offsets, and handed on
in order. What waits in memory is bounded by bytes, not by slots.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no type information

from penstock.client.api import BrokerApi, PullResult, PullStatus
from penstock.client.routes import broker_address
from penstock.errors import PenstockError, RequestTimeout
from penstock.spark.brokers import brokers, settle_worker
from penstock.spark.cluster import DataLossError, place, pull_header
from penstock.spark.columns import Decoder
from penstock.spark.layout import Segment
from penstock.spark.options import PullOptions
from penstock.spark.ranges import OffsetRange

log = logging.getLogger("penstock.spark")

SLOTS_AT_ONCE: Final = 64
"""For tasks with many small ranges: one after the other each would cost a round trip."""

FIRST_SLOT_OFFSETS: Final = 32
"""What every broker answers at once; later slots follow the size of the messages seen."""

RETRY_MS: Final = 100
REQUEST_TIMEOUT_MS: Final = 5_000


def read_ranges(ranges: Sequence[OffsetRange], options: PullOptions) -> Iterator[pa.RecordBatch]:
    """All messages of the ranges, queue by queue in order."""
    settle_worker()
    cluster = brokers(options.name_server)
    decoder = Decoder(options)
    fetcher = Fetcher(cluster.api, ranges, options)
    try:
        while segments := cluster.run(fetcher.next_segments()):
            batch = decoder.decode(segments)
            if batch.num_rows:
                yield batch
    finally:
        cluster.run(fetcher.close())
    if decoder.skipped_corrupt:
        log.warning("%d damaged records were skipped", decoder.skipped_corrupt)


class PullFailed(PenstockError):
    """A broker refuses to answer a pull, and would again; the text names the queue and the offset."""


class _Slot:
    """Some offsets of one range, being filled."""

    __slots__ = ("end", "error", "filled", "range", "segments", "start")

    def __init__(self, source: OffsetRange, start: int, end: int) -> None:
        self.range = source
        self.start = start
        self.end = end
        self.segments: deque[Segment] = deque()
        self.filled = False
        self.error: BaseException | None = None


def _has_news(slot: _Slot) -> bool:
    return slot.filled or bool(slot.segments)


class Fetcher:
    """Keeps pulls on the way. All of it runs on the event loop's thread."""

    def __init__(self, api: BrokerApi, ranges: Sequence[OffsetRange], options: PullOptions) -> None:
        self._api = api
        self._options = options
        self._slots = self._cut(ranges)
        self._window: deque[_Slot] = deque()
        self._width = min(SLOTS_AT_ONCE, options.pull_inflight * max(1, len(ranges)))
        self._buffered_bytes = 0
        self._buffer_limit = 2 * options.arrow_batch_bytes + options.pull_batch_bytes
        self._changed = asyncio.Condition()
        self._mean_bytes = options.pull_batch_bytes / FIRST_SLOT_OFFSETS
        self._addresses: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _cut(self, ranges: Sequence[OffsetRange]) -> Iterator[_Slot]:
        for source in ranges:
            start = source.start
            while start < source.end:
                offsets = int(self._options.pull_batch_bytes / self._mean_bytes)
                end = min(source.end, start + min(max(offsets, 1), self._options.pull_batch_size))
                yield _Slot(source, start, end)
                start = end

    async def next_segments(self) -> list[Segment]:
        """About one Arrow batch of answers; none at the end."""
        taken: list[Segment] = []
        taken_bytes = 0
        while taken_bytes < self._options.arrow_batch_bytes:
            self._fill_window()
            if not self._window:
                break
            slot = self._window[0]
            async with self._changed:
                # The first slot may have been waiting for room; as the first it need not.
                self._changed.notify_all()
                await self._changed.wait_for(partial(_has_news, slot))
            while slot.segments and taken_bytes < self._options.arrow_batch_bytes:
                segment = slot.segments.popleft()
                taken.append(segment)
                taken_bytes += len(segment.body)
                self._buffered_bytes -= len(segment.body)
            if slot.filled and not slot.segments:
                if slot.error is not None:
                    raise slot.error
                self._window.popleft()
        return taken

    def _fill_window(self) -> None:
        while len(self._window) < self._width:
            slot = next(self._slots, None)
            if slot is None:
                return
            self._window.append(slot)
            task = asyncio.get_running_loop().create_task(self._fill(slot))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Also when Spark stops in the middle, as after a LIMIT."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- one slot -----------------------------------------------------------------------------------

    async def _fill(self, slot: _Slot) -> None:
        try:
            await self._pull_all(slot)
        except Exception as error:  # whatever it is, the task that waits for this slot must see it
            slot.error = error
        slot.filled = True
        async with self._changed:
            self._changed.notify_all()

    async def _pull_all(self, slot: _Slot) -> None:
        loop = asyncio.get_running_loop()
        offset = slot.start
        progress = loop.time()
        while offset < slot.end:
            await self._room(slot)
            patience_ms = self._options.pull_timeout_ms - int((loop.time() - progress) * 1000)
            next_offset, problem = await self._pull(slot, offset)
            if next_offset > offset:
                offset = next_offset
                progress = loop.time()
                continue
            if patience_ms <= 0:
                raise self._stuck(slot, offset, problem)
            await asyncio.sleep(RETRY_MS / 1000)

    async def _room(self, slot: _Slot) -> None:
        """Waits while too much is buffered; the first slot always may have one answer, or nothing moves."""
        if self._buffered_bytes < self._buffer_limit:
            return
        async with self._changed:
            await self._changed.wait_for(
                lambda: (
                    self._buffered_bytes < self._buffer_limit
                    or (self._window[0] is slot and not slot.segments)
                )
            )

    async def _pull(self, slot: _Slot, offset: int) -> tuple[int, str]:
        """One pull: the next offset to ask for, and why it is not further on if it is not."""
        queue = slot.range.queue
        try:
            answer = await self._ask(slot, offset)
        except PenstockError as error:
            if not error.retriable:
                raise PullFailed(f"{place(queue)} at offset {offset}: {error}") from error
            await self._look_up_address(slot)
            return offset, str(error)
        if answer.status is PullStatus.FOUND:
            body = bytes(answer.body)
            slot.segments.append(Segment(queue, offset, slot.end, body))
            self._buffered_bytes += len(body)
            if answer.next_offset > offset:
                self._mean_bytes = max(1.0, len(body) / (answer.next_offset - offset))
            async with self._changed:
                self._changed.notify_all()
            return answer.next_offset, "the broker's next offset does not move"
        if answer.status is PullStatus.OFFSET_ILLEGAL and answer.next_offset > offset:
            self._lost(slot, offset, answer)
        return (
            answer.next_offset,
            f"the broker answers {answer.status.name}, its last offset is {answer.max_offset}",
        )

    async def _ask(self, slot: _Slot, offset: int) -> PullResult:
        queue = slot.range.queue
        options = self._options
        wanted = slot.end - offset if options.expression == "*" else options.pull_batch_size
        header = pull_header(options, queue, offset, min(wanted, options.pull_batch_size))
        address = self._addresses.get(queue.broker_name, slot.range.address)
        return await self._api.pull(address, header, min(REQUEST_TIMEOUT_MS, options.pull_timeout_ms))

    async def _look_up_address(self, slot: _Slot) -> None:
        """A broker that came back may have another address, and a replica may serve in its place."""
        queue = slot.range.queue
        try:
            route = await self._api.topic_route(queue.topic)
        except PenstockError:
            return  # the name server may be down with it; the old address is as good as any
        for broker in route.broker_datas if route is not None else ():
            if broker.broker_name == queue.broker_name and broker.broker_addrs:
                self._addresses[queue.broker_name] = broker_address(broker)

    # ---- trouble ------------------------------------------------------------------------------------

    def _lost(self, slot: _Slot, offset: int, answer: PullResult) -> None:
        lost = min(answer.next_offset, slot.end) - offset
        text = (
            f"{lost} messages of {place(slot.range.queue)} from offset {offset} on are gone: "
            f"the queue now begins at {answer.min_offset}"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss=false to go on from there")
        log.warning("%s; going on from there because failOnDataLoss is false", text)

    def _stuck(self, slot: _Slot, offset: int, problem: str) -> PenstockError:
        return RequestTimeout(
            f"{place(slot.range.queue)}: no progress at offset {offset} (wanted up to {slot.end}) "
            f"for {self._options.pull_timeout_ms} ms (option pullTimeoutMs): {problem}"
        )
