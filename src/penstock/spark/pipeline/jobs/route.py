"""Topics into topics: filtered, transformed, fanned out. At least once, as the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidArgument
from penstock.spark.pipeline.config import OptionValues, Output, Pipeline, Route, option_texts
from penstock.spark.pipeline.transform import messages, transformed, tried, with_sharding_key
from penstock.spark.sink import check_topic_exists
from penstock.spark.sql import with_text
from penstock.spark.write_options import COLUMN_ALIASES, COLUMN_TYPES, write_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_PLACE: Final = ("brokerName", "queueId")
"""Where a message was is not where it goes, unless the sink is told so."""


def plan(frame: DataFrame, job: Route, pipeline: Pipeline) -> DataFrame:
    """The rows that the sink gets."""
    rows = with_sharding_key(transformed(frame, job, pipeline))
    if job.targets():
        rows = _addressed(rows, job.targets())
    elif "topic" not in rows.columns:
        raise InvalidArgument("the transform must give a column topic, since there is no to and no outputs")
    rows = for_sink(rows, job.sink)
    # The sink checks names and types; asking it here shows mistakes before anything runs.
    write_options(_sink_options(job, pipeline), rows.schema, overwrite=False)
    return rows


def start(spark: SparkSession, pipeline: Pipeline, name: str, job: Route) -> DataStreamWriter:
    rows = plan(messages(spark, pipeline, name, job), job, pipeline)
    options = _sink_options(job, pipeline)
    for output in job.targets():
        check_topic_exists(write_options(options | {"topic": output.topic}, rows.schema, overwrite=False))
    return rows.writeStream.format("rocketmq").options(**options)


def for_sink(rows: DataFrame, sink: OptionValues) -> DataFrame:
    """Only what the sink uses: every other column would travel for nothing."""
    by_column = str(sink.get("queueSelector", "")).lower() == "column"
    known = {name.lower() for name in (*COLUMN_TYPES, *COLUMN_ALIASES) if by_column or name not in _PLACE}
    return rows.select([f"`{name}`" for name in rows.columns if name.lower() in known])


def _sink_options(job: Route, pipeline: Pipeline) -> dict[str, str]:
    return {"nameServer": pipeline.name_server} | option_texts(job.sink)


def _addressed(rows: DataFrame, outputs: Sequence[Output]) -> DataFrame:
    """One row for each output whose condition holds, in one pass over the messages."""
    if "text" not in rows.columns and "body" in rows.columns:
        rows = with_text(rows)
    choices = [
        f"if({output.where}, '{output.topic}', NULL)" if output.where is not None else f"'{output.topic}'"
        for output in outputs
    ]
    kept = [f"`{name}`" for name in rows.columns if name != "topic"]
    targets = f"explode(array_compact(array({', '.join(choices)}))) AS topic"
    return tried("outputs", lambda: rows.selectExpr(*kept, targets))
