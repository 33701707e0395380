"""Parquet files below folders of topic and day, and of the batch that wrote them.

Any reader of Parquet sees the right rows, without a log of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql.types import StringType

from penstock.errors import InvalidArgument
from penstock.spark.failures import reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = ("topic", "day")
BATCH_COLUMN: Final = "batch"


class Files:
    """A plain folder of Parquet files, on any file system that Spark knows."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, batch: DataFrame, query_id: str, batch_id: int) -> None:
        write_batch(batch, batch_name(query_id, batch_id), self._path, PARTITIONS)

    def read(self, spark: SparkSession) -> DataFrame:
        return read_files(spark, [self._path], self._path)


def batch_name(query_id: str, batch_id: int) -> str:
    """The id belongs to the checkpoint: a query that starts anew never replaces another one's batches."""
    return f"{query_id}-{batch_id}"


def write_batch(batch: DataFrame, name: str, path: str, partitions: Sequence[str]) -> None:
    """Dynamic overwrite replaces just the directories of this batch."""
    # Spark's default for times is an old form without a unit, which other readers have trouble with.
    batch.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    rows = batch.selectExpr("*", f"'{name}' AS {BATCH_COLUMN}")
    writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(*partitions, BATCH_COLUMN).parquet(path)


def batch_files(name: str, path: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """The files of a batch, with the values in the names of their directories."""
    for file in sorted(Path(path).glob(f"*=*/*=*/{BATCH_COLUMN}={name}/*.parquet")):
        pairs = (part.split("=", 1) for part in file.relative_to(path).parts[:-1])
        yield file, {key: unquote(value) for key, value in pairs}


def read_files(spark: SparkSession, files: Sequence[str], base: str | None = None) -> DataFrame:
    reader = spark.read if base is None else spark.read.option("basePath", base)
    try:
        schema = reader.parquet(*files).schema
        for name in PARTITIONS:
            if name in schema.names:
                # Spark would take a topic named 007 for a number, and has to be told.
                schema[name].dataType = StringType()
        return reader.schema(schema).parquet(*files)
    except PySparkException as error:
        raise InvalidArgument(f"path: {reason(error)}") from None
