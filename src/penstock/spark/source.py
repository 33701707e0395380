"""The format `rocketmq` as Spark sees it, and the batch reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.errors import MissingExtra
from penstock.message.queue import MessageQueue
from penstock.spark.cluster import Bounds, Cluster, DataLossError, place
from penstock.spark.option_parsing import OptionError
from penstock.spark.options import ReadOptions, read_options
from penstock.spark.ranges import OffsetRange, Task, plan_tasks
from penstock.spark.reader import read_ranges
from penstock.spark.schema import spark_ddl
from penstock.spark.write_options import write_options

if TYPE_CHECKING:
    from pyarrow import RecordBatch  # type: ignore[import-untyped]  # pyarrow ships no type information


OLDEST_FOR_STREAMS: Final = (4, 2)
"""The first with limits for each batch and with AvailableNow for Python sources."""


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in pyspark.__version__.split(".")[:2])


class RocketMQSource(DataSource):
    """Spark calls these methods in several processes, so nothing here holds a connection."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        """Called when a read is defined: everything that can be checked is checked here."""
        options = read_options(self.options, warn=True)
        Cluster(options).queues()
        return spark_ddl(options.pull.columns, options.pull.properties)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        _refuse_other_columns(schema, options)
        if options.filter_pushdown:
            from penstock.spark.pushdown import PushdownReader

            return PushdownReader(options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        if _version() < OLDEST_FOR_STREAMS:
            needed = ".".join(map(str, OLDEST_FOR_STREAMS))
            raise MissingExtra(
                f"streams need PySpark {needed} or newer, this is {pyspark.__version__}: "
                "pip install --upgrade 'penstock[spark]'"
            )
        from penstock.spark.stream import StreamReader

        options = read_options(self.options)
        _refuse_other_columns(schema, options)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import TopicWriter, check_topic_exists

        options = write_options(self.options, schema, overwrite=overwrite)
        check_topic_exists(options)
        return TopicWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        from penstock.spark.sink import TopicStreamWriter, check_topic_exists

        options = write_options(self.options, schema, overwrite=overwrite)
        check_topic_exists(options)
        return TopicStreamWriter(options)


def _refuse_other_columns(schema: StructType, options: ReadOptions) -> None:
    if tuple(schema.fieldNames()) != options.pull.columns:
        wanted = ", ".join(schema.fieldNames())
        raise OptionError(f"the source decides its columns, not .schema({wanted}); use the option columns")


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Task) -> None:
        super().__init__(ranges)
        self.ranges = ranges


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
        return read_ranges(partition.ranges, self._options.pull)


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
