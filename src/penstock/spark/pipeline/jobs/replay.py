"""An archive back into a topic: by time and condition, with the keys, tags and properties of old.

A replay happens once: when it is done, a mark beside the checkpoints says so. One that was cut short sends
again from its start, under the same unique keys, so that consumers can tell.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import Observation
from pyspark.sql.functions import count, lit

from penstock.errors import InvalidArgument
from penstock.spark.pipeline.config import Pipeline, Replay, option_texts
from penstock.spark.pipeline.jobs.route import for_sink
from penstock.spark.pipeline.state import Mark
from penstock.spark.pipeline.tables import open_table
from penstock.spark.pipeline.transform import transformed, with_sharding_key
from penstock.spark.write_options import write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_PLACE: Final = ("topic", "brokerName", "queueId", "queueOffset")
"""Where a message was; an archive with a transform may not have all of it."""


def plan(frame: DataFrame, job: Replay, pipeline: Pipeline) -> DataFrame:
    """The rows that the sink gets, those of one queue in one task and in their old order."""
    missing = [name for name in ("topic", "day", "storeTimestamp") if name not in frame.columns]
    if missing:
        raise InvalidArgument(f"path: the table has no column {missing[0]}, so it cannot be replayed")
    for text, sign in ((job.since, ">="), (job.until, "<")):
        if text is not None:
            instant = text.isoformat()
            # The day alone lets Spark leave out whole directories.
            day = f"day {'>=' if sign == '>=' else '<='} date_format(TIMESTAMP '{instant}', 'yyyy-MM-dd')"
            frame = frame.where(f"storeTimestamp {sign} TIMESTAMP '{instant}' AND {day}")
    if job.topics:
        frame = frame.where(frame["topic"].isin(job.topics))
    if set(_PLACE) <= set(frame.columns):
        frame = frame.repartition(*_PLACE[:-1]).sortWithinPartitions(*_PLACE)
    rows = for_sink(with_sharding_key(transformed(frame, job, pipeline)), job.sink)
    rows = rows.drop("topic")
    write_options(_sink_options(job, pipeline, "check"), rows.schema, overwrite=False)
    return rows


def run(spark: SparkSession, pipeline: Pipeline, name: str, job: Replay) -> int:
    """Messages sent; 0 if this was done before."""
    settings = msgspec.json.encode(job, order="deterministic")
    identity = hashlib.sha256(settings).hexdigest()[:16]
    mark = Mark(spark, f"{pipeline.state_path}/{name}/replayed-{identity}")
    if mark.is_set():
        return 0
    rows = plan(open_table(job, pipeline).read(spark), job, pipeline)
    # Unique keys count rows, so a table that has grown since the last attempt needs other ones.
    files = hashlib.sha256("\n".join(sorted(rows.inputFiles())).encode()).hexdigest()[:16]
    sent = Observation()
    rows = rows.observe(sent, count(lit(1)).alias("rows"))
    sink = rows.write.format("rocketmq").options(**_sink_options(job, pipeline, f"{name}-{identity}-{files}"))
    sink.mode("append").save()
    mark.set()
    return int(sent.get["rows"])


def _sink_options(job: Replay, pipeline: Pipeline, sink_id: str) -> dict[str, str]:
    options = {"nameServer": pipeline.name_server, "topic": job.to, "sinkId": sink_id}
    return options | option_texts(job.sink)
