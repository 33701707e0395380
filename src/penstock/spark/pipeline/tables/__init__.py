"""Lake tables: where an archive goes and a replay comes from.

A batch that Spark runs again, after a crash between the write and the checkpoint, has the same messages. It
must not add them a second time, so each batch owns the directories that are named after it and replaces what
is there. For a folder of Parquet files that is all. Delta and Iceberg tables in addition list their files: a
batch is published in one transaction, which also says which batch it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.pipeline.config import Archive, Pipeline, Replay


class Table(Protocol):
    def add(self, batch: DataFrame, query_id: str, batch_id: int) -> None:
        """Adds the rows of a batch, unless that was done before."""

    def read(self, spark: SparkSession) -> DataFrame: ...


def open_table(job: Archive | Replay, pipeline: Pipeline) -> Table:
    """Raises MissingExtra where the library of the format is not installed."""
    path = pipeline.path(job.path)
    if job.format == "delta":
        from penstock.spark.pipeline.tables.delta import Delta

        return Delta(path)
    if job.format == "iceberg":
        from penstock.spark.pipeline.tables.iceberg import Iceberg

        return Iceberg(path, job.table, job.catalog)
    from penstock.spark.pipeline.tables.files import Files

    return Files(path)
