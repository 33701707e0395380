"""Figures of topics and consumer groups over time windows, as tables and plots.

Every run looks at the last hours anew: late messages count where they belong, and nothing has to be kept
between runs. Latency is the time from a message's birth in the producer to its place in the broker's log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no type information
import pyarrow.csv  # type: ignore[import-untyped]  # as above
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # as above

from penstock.admin import AdminClient, group_lags
from penstock.errors import MissingExtra, ServerError
from penstock.message.names import dlq_topic, pop_retry_topic_v1, pop_retry_topic_v2, retry_topic
from penstock.message.properties import Key
from penstock.spark.brokers import brokers
from penstock.spark.option_parsing import duration_ms
from penstock.spark.pipeline.config import Pipeline, Report
from penstock.transport.loop import run as run_loop
from penstock.wire.bodies import GroupLag
from penstock.wire.codes import ResponseCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATENCIES: Final = (50, 95, 99)

_LATENCY: Final = "unix_millis(storeTimestamp) - unix_millis(bornTimestamp) AS latency_ms"
_FIGURES: Final = ", ".join(
    (
        "count(*) AS messages",
        "percentile_approx(latency_ms, array(0.5, 0.95, 0.99), 1000) AS percentiles",
        "max(latency_ms) AS latency_max_ms",
        "min(storeTimestamp) AS first",
        "max(storeTimestamp) AS last",
    )
)
_LATENCY_COLUMNS: Final = ", ".join(
    (*(f"percentiles[{i}] AS latency_p{p}_ms" for i, p in enumerate(LATENCIES)), "latency_max_ms")
)


_GROUPS: Final = pa.schema(
    [
        ("window_start", pa.timestamp("us", tz="UTC")),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("retries", pa.int64()),
        ("dead_letters", pa.int64()),
        ("retries_per_message", pa.float64()),
    ]
)

_LAGS: Final = pa.schema(
    [
        ("at", pa.timestamp("ms", tz="UTC")),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("mode", pa.string()),
        ("ready", pa.int64()),
        ("in_flight", pa.int64()),
        ("delayed", pa.int64()),
        ("oldest_age_ms", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Tables:
    """A report in Arrow tables; the file names are those of the fields."""

    topics: pa.Table
    """All of the time looked at, a row for each topic."""
    windows: pa.Table
    groups: pa.Table
    """Retries and dead letters by window, group and the topic they are from."""
    lags: pa.Table
    """What the groups had not consumed when the report was made, and how long the oldest of it waits."""
    top_keys: pa.Table


class Returned(NamedTuple):
    """What a topic of returned messages is about."""

    group: str
    dead: bool
    origin: str | None
    """The topic they are from, where the name says so; else each message does."""


def run(spark: SparkSession, pipeline: Pipeline, job: Report) -> int:
    """Makes the report once; the number of messages it covers."""
    draw = _plotter() if job.plots else None
    tables = make(spark, pipeline.name_server, job)
    folder = Path(pipeline.path(job.path))
    folder.mkdir(parents=True, exist_ok=True)
    for table_name in Tables.__slots__:
        _write(getattr(tables, table_name), folder, table_name)
    if draw is not None:
        draw(tables, folder)
    return int(sum(tables.topics["messages"].to_pylist()))


def make(spark: SparkSession, name_server: str, job: Report) -> Tables:
    since_ms = time.time_ns() // 1_000_000 - duration_ms(job.last)
    window_ms = duration_ms(job.window)
    options = {
        "nameServer": name_server,
        "startingTimestamp": str(since_ms),
        "startingOffsetsByTimestampStrategy": "latest",
        # Retention may pass a report while it reads: then it is about what is left.
        "failOnDataLoss": "false",
    }
    columns = "topic,keys,bornTimestamp,storeTimestamp"
    messages = _read(spark, options, job.topics, columns).selectExpr(
        "*", f"unix_millis(storeTimestamp) div {window_ms} * {window_ms} AS window_ms", _LATENCY
    )
    messages = messages.cache()
    try:
        topics = _sql(
            messages, f"SELECT topic, {_FIGURES} FROM {{messages}} GROUP BY topic", "topic, first, last"
        )
        windows = _sql(
            messages,
            f"SELECT timestamp_millis(window_ms) AS window_start, topic, {_FIGURES} FROM {{messages}} "
            "GROUP BY window_ms, topic",
            f"window_start, topic, messages / {window_ms / 1000}D AS per_second",
        )
        top_keys = _top_keys(messages, job.top_keys)
    finally:
        messages.unpersist()
    returned = _returned_topics(name_server, job)
    groups = _groups(spark, options, returned, windows, window_ms)
    lags = _lags(run_loop(_ask_lags(name_server, job)), job.topics, time.time_ns() // 1_000_000)
    return Tables(topics, windows, groups, lags, top_keys)


def _read(spark: SparkSession, options: dict[str, str], topics: list[str], columns: str) -> DataFrame:
    reader = spark.read.format("rocketmq").options(**options)
    return reader.option("subscribe", ",".join(topics)).option("columns", columns).load()


def _sql(messages: DataFrame, query: str, columns: str) -> pa.Table:
    figures = messages.sparkSession.sql(query, messages=messages)
    chosen = "SELECT {columns}, messages, {latencies} FROM {{figures}} ORDER BY ALL"
    text = chosen.format(columns=columns, latencies=_LATENCY_COLUMNS)
    return messages.sparkSession.sql(text, figures=figures).toArrow()


def _top_keys(messages: DataFrame, count: int) -> pa.Table:
    return messages.sparkSession.sql(
        """
        WITH single AS (SELECT topic, explode(split(keys, ' ')) AS key FROM {messages} WHERE keys != ''),
             counted AS (SELECT topic, key, count(*) AS messages FROM single WHERE key != ''
                         GROUP BY topic, key),
             ranked AS (SELECT *, row_number() OVER (PARTITION BY topic ORDER BY messages DESC, key) AS place
                        FROM counted)
        SELECT topic, place, key, messages FROM ranked WHERE place <= {count} ORDER BY topic, place
        """,
        messages=messages,
        count=count,
    ).toArrow()


def _returned_topics(name_server: str, job: Report) -> dict[str, Returned]:
    """Retry and dead-letter topics of the groups; those that do not exist have had no message yet."""
    wanted: dict[str, Returned] = {}
    for group in job.groups:
        wanted[retry_topic(group)] = Returned(group, False, None)
        wanted[dlq_topic(group)] = Returned(group, True, None)
        for topic in job.topics:
            for name in (pop_retry_topic_v1(group, topic), pop_retry_topic_v2(group, topic)):
                wanted[name] = Returned(group, False, topic)
    connected = brokers(name_server)
    return {
        topic: meaning
        for topic, meaning in wanted.items()
        if connected.run(connected.api.topic_route(topic)) is not None
    }


def _groups(
    spark: SparkSession,
    options: dict[str, str],
    returned: dict[str, Returned],
    windows: pa.Table,
    window_ms: int,
) -> pa.Table:
    counts: dict[tuple[Any, str, str], list[int]] = {}
    if returned:
        messages = _read(spark, options, list(returned), "topic,properties,storeTimestamp")
        origin = f"coalesce(properties['{Key.DLQ_ORIGIN_TOPIC}'], properties['{Key.RETRY_TOPIC}'])"
        window = f"timestamp_millis(unix_millis(storeTimestamp) div {window_ms} * {window_ms})"
        found = messages.selectExpr("topic", f"{window} AS window_start", f"{origin} AS origin")
        for row in found.groupBy("topic", "window_start", "origin").count().toArrow().to_pylist():
            meaning = returned[row["topic"]]
            place = (row["window_start"], meaning.group, meaning.origin or row["origin"] or "")
            counts.setdefault(place, [0, 0])[meaning.dead] += row["count"]
    sent = {(row["window_start"], row["topic"]): row["messages"] for row in windows.to_pylist()}
    rows = [
        {
            "window_start": start,
            "group": group,
            "topic": topic,
            "retries": retries,
            "dead_letters": dead,
            "retries_per_message": retries / sent[start, topic] if (start, topic) in sent else None,
        }
        for (start, group, topic), (retries, dead) in sorted(counts.items())
    ]
    return pa.Table.from_pylist(rows, _GROUPS)


async def _ask_lags(name_server: str, job: Report) -> list[GroupLag]:
    lags: list[GroupLag] = []
    async with AdminClient(name_server) as admin:
        for group in job.groups:
            try:
                lags += await group_lags(admin, group)
            except ServerError as error:
                if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:  # it has not consumed yet
                    raise
    return lags


def _lags(lags: list[GroupLag], topics: list[str], now_ms: int) -> pa.Table:
    rows = [
        {
            "at": now_ms,
            "group": lag.group,
            "topic": lag.topic,
            "mode": lag.mode,
            "ready": lag.ready,
            "in_flight": lag.in_flight,
            "delayed": lag.delayed,
            "oldest_age_ms": None if lag.oldest_timestamp is None else max(0, now_ms - lag.oldest_timestamp),
        }
        for lag in lags
        if lag.topic in topics or lag.topic == retry_topic(lag.group)
    ]
    return pa.Table.from_pylist(rows, _LAGS)


def _write(table: pa.Table, folder: Path, name: str) -> None:
    """Readers find the last report or this one, never half of it."""
    for form, write in (("parquet", pq.write_table), ("csv", pa.csv.write_csv)):
        fresh = folder / f".{name}.{form}.new"
        write(table, fresh)
        os.replace(fresh, folder / f"{name}.{form}")


def _plotter() -> Callable[[Tables, Path], None]:
    try:
        from penstock.spark.pipeline.plots import draw
    except ImportError as error:
        raise MissingExtra(
            "plots need matplotlib: pip install 'penstock[plots]', or plots = false"
        ) from error
    return draw
