"""Marks beside the checkpoints, on whichever file system those are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Mark:
    """An empty file that says that something is done."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        hadoop: Any = spark.sparkContext._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]  # py4j
        self._path = hadoop.Path(path)
        self._files = self._path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def is_set(self) -> bool:
        return bool(self._files.exists(self._path))

    def set(self) -> None:
        self._files.create(self._path).close()
