"""The stream reader: decides from where to where each batch reads. One process of its own runs it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import InvalidArgument, TopicNotFound
from penstock.message.queue import MessageQueue
from penstock.spark.batch import RangesPartition, plan_partitions
from penstock.spark.cluster import Bounds, Cluster, DataLossError, place, served
from penstock.spark.offsets import (
    QueueOffsets,
    StreamOffset,
    batch_start,
    initial_offset,
    is_initial,
    parse_offset,
    share_out,
)
from penstock.spark.options import ReadOptions
from penstock.spark.ranges import OffsetRange

if TYPE_CHECKING:
    from pyarrow import RecordBatch  # type: ignore[import-untyped]  # pyarrow ships no type information

log = logging.getLogger("penstock.spark")

MIRROR_INTERVAL_S: Final = 1.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._start = options.stream_start()
        self._cluster = Cluster(options)
        self._bounds: dict[MessageQueue, Bounds] = {}
        """Of every queue, as last seen."""
        self._reachable: set[MessageQueue] = set()
        self._target: QueueOffsets | None = None
        """Where an AvailableNow run ends."""
        self._held_since: dict[MessageQueue, float] = {}
        self._waiting_since: float | None = None
        self._mirrored: QueueOffsets = {}
        self._mirrored_at = 0.0

    # ---- what Spark calls ---------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        return initial_offset(self._start.kind)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Everything available must not be the default where an option limits: Trigger.Once asks for it."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        # Every broker of the route must answer here: a run that leaves one out would look complete.
        queues = self._cluster.queues(refresh=True)
        self._target = {queue: bounds.max_offset for queue, bounds in self._cluster.bounds(queues).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        if is_initial(start):
            queues = self._cluster.queues(refresh=True)
            self._bounds = self._cluster.bounds(queues)
            self._reachable = set(queues)
            first = self._cluster.resolve(self._start, queues, self._bounds)
            first |= self._passed_by_retention(first)
            # Even without a message this is an offset of its own: it is what fixes the start for good.
            return self._end(first, first, self._backlog(first), limit)
        known = parse_offset(start).queues
        self._refuse_other_topics(known)
        self._see_bounds(known)
        passed = self._passed_by_retention(known)
        first = self._new_queues(known) | passed
        positions = {**known, **first}
        backlog = self._backlog(positions)
        waiting = sum(backlog.values())
        # Positions that moved are written down also when nothing waits: a loss is reported once.
        idle = not passed and (waiting == 0 or not self._enough(waiting, limit))
        self._mirror(known, at_once=idle)
        return start if idle else self._end(positions, first, backlog, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        if not self._bounds:
            return None
        return StreamOffset(
            {queue: bounds.max_offset for queue, bounds in self._bounds.items()}, {}
        ).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last = parse_offset(end)
        starts = batch_start(start, last)
        needed = [queue for queue, offset in starts.items() if offset < last.queues[queue]]
        queues = self._cluster.serving(needed)
        ranges = []
        for queue in needed:
            if queue in queues:
                ranges.append(OffsetRange(queue, starts[queue], last.queues[queue], queues[queue]))
            else:
                self._report_loss(
                    f"{place(queue)} is gone, with offsets {starts[queue]} to {last.queues[queue]}"
                )
        return plan_partitions(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return partition.read(self._options.pull)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark plans the batch behind `end`, which means that everything before it is done."""
        if not is_initial(end):
            self._mirror(parse_offset(end).queues)

    # ---- where a batch ends -------------------------------------------------------------------------

    def _end(
        self,
        positions: QueueOffsets,
        first: QueueOffsets,
        backlog: dict[MessageQueue, int],
        limit: ReadLimit,
    ) -> dict[str, Any]:
        shares = self._limited(backlog, positions, limit)
        ends = {queue: offset + shares.get(queue, 0) for queue, offset in positions.items()}
        return StreamOffset(ends, first).to_json()

    def _backlog(self, positions: QueueOffsets) -> dict[MessageQueue, int]:
        """Messages that can be read now; nothing of a broker that does not answer."""
        backlog = {}
        for queue, offset in positions.items():
            if queue in self._reachable:
                end = self._bounds[queue].max_offset
                if self._target is not None:
                    end = min(end, self._target.get(queue, offset))
                backlog[queue] = max(0, end - offset)
        return backlog

    def _enough(self, waiting: int, limit: ReadLimit) -> bool:
        """Whether minOffsetsPerTrigger is reached, or has been waited for long enough."""
        wanted = self._options.min_offsets_per_trigger
        if wanted is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return True
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if waiting < wanted and now - self._waiting_since < self._options.max_trigger_delay_ms / 1000:
            return False
        self._waiting_since = None
        return True

    def _limited(
        self, backlog: dict[MessageQueue, int], positions: QueueOffsets, limit: ReadLimit
    ) -> dict[MessageQueue, int]:
        """Spark has one limit at a time, so that of the other option is added here."""
        if isinstance(limit, ReadAllAvailable):
            return backlog
        max_rows, max_bytes = self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        if max_rows is not None:
            backlog = share_out(backlog, max_rows)
        if max_bytes is not None:
            sizes = self._cluster.mean_bytes({q: positions[q] for q, count in backlog.items() if count})
            waiting = {queue: backlog[queue] * size for queue, size in sizes.items()}
            shares = share_out(waiting, max_bytes)
            backlog = {queue: max(1, share // sizes[queue]) for queue, share in shares.items()}
        return backlog

    # ---- queues that come and go --------------------------------------------------------------------

    def _see_bounds(self, known: QueueOffsets) -> None:
        """Asks all queues for their bounds; those of a broker that is down stay where they are."""
        wait = self._options.wait_for_broker
        self._reachable = set()
        try:
            queues = self._cluster.queues()
        except TopicNotFound as error:
            if not wait:
                raise
            log.warning("%s, or no broker that has it is up: waiting", error)
            return
        fresh = self._cluster.bounds(queues, skip_unreachable=wait)
        self._reachable = set(fresh)
        serving = served(queues)
        for queue, offset in known.items():
            if queue in fresh:
                self._check_end(queue, offset, fresh[queue])
            elif (queue.topic, queue.broker_name) not in serving:
                # A broker may be down for a while. But a run to the end must not leave its queues out.
                if self._target is not None:
                    self._report_loss(f"{place(queue)}: no broker serves it, offset {offset} is next")
            elif queue not in queues:
                # A broker that is there will not bring back a queue.
                last_seen = self._bounds.pop(queue, None)
                if last_seen is not None and last_seen.max_offset > offset:
                    unread = f"offsets {offset} to {last_seen.max_offset} unread"
                    self._report_loss(f"{place(queue)} is gone, with {unread}")
        self._bounds |= fresh

    def _check_end(self, queue: MessageQueue, offset: int, bounds: Bounds) -> None:
        """An end before the position: a replica with a shorter log took over. It may still catch up."""
        if bounds.max_offset >= offset:
            self._held_since.pop(queue, None)
            return
        now = time.monotonic()
        since = self._held_since.setdefault(queue, now)
        text = f"{place(queue)}: offset {offset} is next, but the queue now ends at {bounds.max_offset}"
        if now - since > self._options.pull.pull_timeout_ms / 1000:
            self._report_loss(text)
        else:
            log.warning("%s; waiting for it to catch up", text)

    def _new_queues(self, known: QueueOffsets) -> dict[MessageQueue, int]:
        """Queues that have got their first messages, with where they begin."""
        found = {}
        topics = {queue.topic for queue in known}
        for queue in self._reachable - known.keys():
            bounds = self._bounds[queue]
            if bounds.max_offset <= bounds.min_offset or (
                self._target is not None and queue not in self._target
            ):
                continue
            if bounds.min_offset > 0 and queue.topic in topics:
                self._report_loss(f"{place(queue)} is new here, yet already begins at {bounds.min_offset}")
            found[queue] = bounds.min_offset
        return found

    def _passed_by_retention(self, positions: QueueOffsets) -> dict[MessageQueue, int]:
        """Positions whose messages are gone, with where their queues begin now."""
        moved = {}
        for queue, offset in positions.items():
            if queue in self._reachable and self._bounds[queue].min_offset > offset:
                moved[queue] = self._bounds[queue].min_offset
                self._report_loss(
                    f"{place(queue)}: offset {offset} is next, but the queue now begins at {moved[queue]}: "
                    f"{moved[queue] - offset} messages are gone"
                )
        return moved

    def _report_loss(self, text: str) -> None:
        if self._options.pull.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss=false to go on")
        log.warning("%s; going on because failOnDataLoss is false", text)

    def _refuse_other_topics(self, known: QueueOffsets) -> None:
        topics = self._options.topics
        foreign = sorted({queue.topic for queue in known if topics and queue.topic not in topics})
        if foreign:
            raise InvalidArgument(
                f"the checkpoint belongs to topic {', '.join(foreign)}, but this query reads "
                f"{', '.join(topics)}; give it a checkpoint of its own"
            )

    # ---- the group ----------------------------------------------------------------------------------

    def _mirror(self, offsets: QueueOffsets, *, at_once: bool = False) -> None:
        """Shows what is done to the consumer group, not more often than people look."""
        if not self._options.commit_offsets or offsets == self._mirrored:
            return
        now = time.monotonic()
        if at_once or now - self._mirrored_at >= MIRROR_INTERVAL_S:
            self._cluster.mirror(
                {q: offset for q, offset in offsets.items() if offset != self._mirrored.get(q)}
            )
            self._mirrored, self._mirrored_at = offsets, now
