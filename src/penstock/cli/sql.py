"""`penstock sql`: a query over topics."""

from __future__ import annotations

import argparse
import base64
import sys
import time
from typing import TYPE_CHECKING, Any

from penstock.cli.output import add_name_server, count, print_json, print_table
from penstock.client.config import parse_addresses
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from pyspark.sql import DataFrame

    Subparsers = _SubParsersAction[argparse.ArgumentParser]

EXAMPLES = """examples:
  penstock sql "SELECT tags, count(*) FROM orders GROUP BY tags"
  penstock sql --since 1h "SELECT keys, text FROM orders WHERE tags = 'paid'"
  penstock sql "SELECT * FROM `%RETRY%billing`" --format parquet --out retries

Every table is a topic; names with '-' or '%' go between backticks. The columns are those of the Spark
source and text, which is the body as a string.
"""


def register(subparsers: Subparsers) -> None:
    sql = subparsers.add_parser(
        "sql",
        help="query topics with Spark SQL",
        description="Query topics with Spark SQL.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sql.add_argument("query", help="a query in Spark SQL; '-' reads it from the input")
    sql.add_argument("--since", metavar="TIME", help="only messages stored in the last 30s, 15m, 1h, 7d ...")
    sql.add_argument(
        "--limit", type=count, default=1_000, metavar="N", help="rows of the table at most (default: 1000)"
    )
    sql.add_argument("--format", choices=("table", "json", "csv", "parquet"), default="table")
    sql.add_argument("--out", metavar="PATH", help="write all rows of the result into this folder")
    sql.add_argument("--master", help="Spark master (default: SPARK_MASTER, else all cores of this machine)")
    add_name_server(sql)
    sql.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.out is None and options.format == "parquet":
        raise InvalidArgument("--format parquet needs --out PATH")
    if options.out is not None and options.format == "table":
        raise InvalidArgument("--out needs --format csv, json or parquet")
    parse_addresses(options.name_server)  # Spark takes long to start: not for what cannot work
    from pyspark.errors import PySparkException

    from penstock.spark.failures import reason
    from penstock.spark.sql import query

    source = {"nameServer": options.name_server} | _since(options.since)
    text = sys.stdin.read() if options.query == "-" else options.query
    spark = _session(options)
    try:
        result = query(spark, text, source)
        if options.out is not None:
            _write(result, options.format, options.out)
        else:
            _show(result, options.format, options.limit)
    except PySparkException as error:
        raise InvalidArgument(reason(error)) from None
    finally:
        spark.stop()
    return 0


def _session(options: argparse.Namespace) -> Any:
    from penstock.spark import session

    return session("penstock sql", master=options.master, config={"spark.log.level": "OFF"})


def _since(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    from penstock.spark.option_parsing import duration_ms

    try:
        start_ms = time.time_ns() // 1_000_000 - duration_ms(text)
    except ValueError as error:
        raise InvalidArgument(f"--since {text}: {error}") from None
    return {"startingTimestamp": str(start_ms), "startingOffsetsByTimestampStrategy": "latest"}


def _write(result: DataFrame, form: str, path: str) -> None:
    if form == "csv":
        result = result.select([_text_cell(result, name) for name in result.columns])
    writer = result.write.mode("errorifexists")
    writer.csv(path, header=True) if form == "csv" else writer.format(form).save(path)
    print(f"written to {path}")


def _text_cell(result: DataFrame, name: str) -> Any:
    """CSV has no bytes and no maps."""
    column = result[f"`{name}`"]
    kind = dict(result.dtypes)[name]
    if kind == "binary":
        return column.cast("string").alias(name)
    if kind.startswith(("map<", "array<", "struct<")):
        from pyspark.sql.functions import to_json

        return to_json(column).alias(name)
    return column


def _show(result: DataFrame, form: str, limit: int) -> None:
    names = result.columns
    rows = [tuple(row) for row in result.limit(limit + 1).collect()]
    if len(rows) > limit:
        print(f"penstock: only the first {limit} rows are shown (--limit, --out)", file=sys.stderr)
    rows = rows[:limit]
    if form == "json":
        print_json([dict(zip(names, map(_plain, row), strict=True)) for row in rows])
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[_plain(value) for value in row] for row in rows])
    else:
        print_table(names, [[_plain(value) for value in row] for row in rows])


def _plain(value: Any) -> Any:
    """As people and JSON take it: bytes that are a text as that text."""
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
