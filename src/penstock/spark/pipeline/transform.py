"""Messages in, rows out: the Spark SQL and Python that a file brings along."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.errors import InvalidArgument
from penstock.message.properties import Key
from penstock.spark.failures import reason
from penstock.spark.pipeline.config import Pipeline, StreamSettings, Transform
from penstock.spark.sql import with_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.pipeline")

VIEW: Final = "messages"


def messages(spark: SparkSession, pipeline: Pipeline, name: str, job: StreamSettings) -> DataFrame:
    """The stream of a job's topics."""
    options = job.source_options(pipeline.name_server, pipeline.group(name))
    return tried("topics", lambda: spark.readStream.format("rocketmq").options(**options).load())


def transformed(frame: DataFrame, job: Transform, pipeline: Pipeline) -> DataFrame:
    """Without any transform the frame as it is."""
    if job.where is None and job.sql is None and job.function is None:
        return frame
    frame = with_text(frame)
    if job.where is not None:
        condition = job.where
        frame = tried("where", lambda: frame.where(condition))
    if job.sql is not None:
        query = job.sql
        # Analysed at once, so that the next job may use the name for its own messages.
        frame.createOrReplaceTempView(VIEW)
        frame = tried("sql", lambda: frame.sparkSession.sql(query))
    else:
        frame = frame.drop("text")
    if job.function is not None:
        frame = _call(job.function, frame, pipeline)
    return frame


def with_sharding_key(frame: DataFrame) -> DataFrame:
    """Messages for the sink: what had a sharding key keeps its order."""
    if "shardingKey" in frame.columns or dict(frame.dtypes).get("properties") != "map<string,string>":
        return frame
    key = f"'{Key.SHARDING_KEY}'"
    return frame.selectExpr(
        *[f"`{name}`" for name in frame.columns if name != "properties"],
        f"properties[{key}] AS shardingKey",
        f"map_filter(properties, (name, value) -> name != {key}) AS properties",
    )


def tried(setting: str, make: Callable[[], DataFrame]) -> DataFrame:
    """Spark finds mistakes in a plan when it is made."""
    logger = logging.getLogger("SQLQueryContextLogger")  # would print each of them as well
    was_disabled, logger.disabled = logger.disabled, True
    try:
        return make()
    except PySparkException as error:
        raise InvalidArgument(f"{setting}: {reason(error)}") from None
    finally:
        logger.disabled = was_disabled


def _call(path: str, frame: DataFrame, pipeline: Pipeline) -> DataFrame:
    function = find_function(path, pipeline.folder, frame.sparkSession)
    try:
        result = function(frame)
    except Exception as error:
        log.debug("function %s", path, exc_info=True)
        raise InvalidArgument(f"function {path}: {type(error).__name__}: {reason(error)}") from error
    if not isinstance(result, DataFrame):
        raise InvalidArgument(f"function {path} must return a DataFrame, not {type(result).__name__}")
    return result


def find_function(
    path: str, folder: Path, spark: SparkSession | None = None
) -> Callable[[DataFrame], DataFrame]:
    """A function of an installed module, or of one beside the file, which is then sent to the workers."""
    module_name, _, name = path.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = import_module(module_name)
        function: Callable[[DataFrame], DataFrame] = getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"function {path}: {error}") from error
    if not callable(function):
        raise InvalidArgument(f"function {path} cannot be called")
    file = module.__file__
    if spark is not None and file is not None and Path(file).parent == folder:
        spark.sparkContext.addPyFile(file)
    return function
