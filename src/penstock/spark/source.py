"""The format `rocketmq` as Spark sees it.

Spark loads this module in several processes that ask for little more than the name of the format, so all
else is loaded by the methods that need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from penstock.spark.options import ReadOptions


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
        from penstock.spark.cluster import Cluster
        from penstock.spark.options import read_options
        from penstock.spark.schema import spark_ddl

        options = read_options(self.options, warn=True)
        Cluster(options).queues()
        return spark_ddl(options.pull.columns, options.pull.properties)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options(schema)
        if options.filter_pushdown:
            from penstock.spark.pushdown import PushdownReader

            return PushdownReader(options)
        from penstock.spark.batch import BatchReader

        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        if _version() < OLDEST_FOR_STREAMS:
            from penstock.errors import MissingExtra

            needed = ".".join(map(str, OLDEST_FOR_STREAMS))
            raise MissingExtra(
                f"streams need PySpark {needed} or newer, this is {pyspark.__version__}: "
                "pip install --upgrade 'penstock[spark]'"
            )
        from penstock.spark.stream import StreamReader

        return StreamReader(self._read_options(schema))

    def _read_options(self, schema: StructType) -> ReadOptions:
        from penstock.spark.option_parsing import OptionError
        from penstock.spark.options import read_options

        options = read_options(self.options)
        if tuple(schema.fieldNames()) != options.pull.columns:
            wanted = ", ".join(schema.fieldNames())
            raise OptionError(
                f"the source decides its columns, not .schema({wanted}); use the option columns"
            )
        return options

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import TopicWriter, check_topic_exists
        from penstock.spark.write_options import write_options

        options = write_options(self.options, schema, overwrite=overwrite)
        check_topic_exists(options)
        return TopicWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        from penstock.spark.sink import TopicStreamWriter, check_topic_exists
        from penstock.spark.write_options import write_options

        options = write_options(self.options, schema, overwrite=overwrite)
        check_topic_exists(options)
        return TopicStreamWriter(options)
