"""The batch reader, and the partitions that both readers give to tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.message.queue import MessageQueue
from penstock.spark.cluster import Bounds, Cluster, DataLossError, place
from penstock.spark.option_parsing import OptionError
from penstock.spark.options import PullOptions, ReadOptions
from penstock.spark.ranges import OffsetRange, Task, plan_tasks

if TYPE_CHECKING:
    from pyarrow import RecordBatch  # type: ignore[import-untyped]  # pyarrow ships no type information


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Task) -> None:
        super().__init__(ranges)
        self.ranges = ranges

    def read(self, options: PullOptions) -> Iterator[RecordBatch]:
        """Called in the task: planning needs nothing of what reading loads."""
        from penstock.spark.reader import read_ranges

        return read_ranges(self.ranges, options)


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._start = options.batch_start()

    def partitions(self) -> Sequence[InputPartition]:
        return plan_partitions(self._ranges(), self._options)

    def _ranges(self) -> list[OffsetRange]:
        """What to read of each queue."""
        options = self._options
        cluster = Cluster(options)
        queues = cluster.queues()
        bounds = cluster.bounds(queues)
        starts = cluster.resolve(self._start, queues, bounds)
        ends = cluster.resolve(options.end, queues, bounds)
        ranges = []
        for queue, address in queues.items():
            start, end = _checked_range(queue, starts[queue], ends[queue], bounds[queue], options)
            ranges.append(OffsetRange(queue, start, end, address))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return partition.read(self._options.pull)


def plan_partitions(ranges: Sequence[OffsetRange], options: ReadOptions) -> list[InputPartition]:
    tasks = plan_tasks(
        ranges,
        max_records=options.max_records_per_partition,
        min_tasks=options.min_partitions,
        max_tasks=options.partition_limit(),
    )
    # Spark takes an empty list for a partition without a value, and then reads that.
    return [RangesPartition(task) for task in tasks or [()]]


def _checked_range(
    queue: MessageQueue, start: int, end: int, bounds: Bounds, options: ReadOptions
) -> tuple[int, int]:
    if start < bounds.min_offset:
        if options.pull.fail_on_data_loss:
            raise DataLossError(
                f"{place(queue)}: offset {start} was asked for, but the queue now begins at "
                f"{bounds.min_offset}; set failOnDataLoss=false to start there"
            )
        start = bounds.min_offset
    if max(start, end) > bounds.max_offset:
        raise OptionError(
            f"{place(queue)}: offset {max(start, end)} was asked for, "
            f"but the queue ends at {bounds.max_offset}"
        )
    if start > end:
        raise OptionError(f"{place(queue)}: the start {start} is behind the end {end}")
    return start, end
