"""What lies beside the checkpoints: a lock, and marks on whichever file system those are."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import WrongState

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


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """No other run uses the checkpoints in this folder meanwhile: two would repeat and lose batches.

    Raises WrongState if one does. A run that is killed leaves nothing behind that has to be cleaned up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WrongState(
                f"another run uses the checkpoints in {folder}; stop it first, or give this pipeline "
                "another `state` folder"
            ) from None
        yield
