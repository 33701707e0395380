"""Topics into a lake table, partitioned by topic and day, each message exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument
from penstock.spark.pipeline.config import Archive, Pipeline
from penstock.spark.pipeline.tables import open_table
from penstock.spark.pipeline.tables.files import BATCH_COLUMN, PARTITIONS
from penstock.spark.pipeline.transform import messages, transformed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def plan(frame: DataFrame, job: Archive, pipeline: Pipeline) -> DataFrame:
    """The rows of the table."""
    frame = frame.selectExpr("*", "date_format(storeTimestamp, 'yyyy-MM-dd') AS day")
    rows = transformed(frame, job, pipeline)
    types = dict(rows.dtypes)
    for name in PARTITIONS:
        if types.get(name) != "string":
            raise InvalidArgument(f"the transform must keep {name}, a string: the table is partitioned by it")
    if BATCH_COLUMN in rows.columns:
        raise InvalidArgument(f"the column {BATCH_COLUMN} is the archive's own: give it another name")
    return rows


def start(spark: SparkSession, pipeline: Pipeline, name: str, job: Archive) -> DataStreamWriter:
    table = open_table(job, pipeline)
    rows = plan(messages(spark, pipeline, name, job), job, pipeline)

    def add(batch: DataFrame, batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id is not None, "Spark names the query of every batch"
        table.add(batch, query_id, batch_id)

    return rows.writeStream.foreachBatch(add)
