"""Topics as tables: a query names them, and they become views when Spark asks for them."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, PySparkException

from penstock.errors import InvalidArgument, TopicNotFound
from penstock.spark.failures import reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

TEXT_COLUMN: Final = "text"
"""The body as a string, beside the columns of the source."""

_ONE_NAME: Final = re.compile(r"`([^`]+)`")


def with_text(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("*", f"cast(body AS string) AS {TEXT_COLUMN}")


def query(spark: SparkSession, text: str, options: Mapping[str, str]) -> DataFrame:
    """The result of a query in which every table that Spark does not know is a topic.

    Spark itself finds the names, one after the other, by not knowing them: this is right for subqueries,
    common table expressions and whatever else its grammar has.
    """
    tried: set[str] = set()
    logger = logging.getLogger("SQLQueryContextLogger")  # would print each of these errors
    was_disabled, logger.disabled = logger.disabled, True
    try:
        while True:
            try:
                return spark.sql(text)
            except AnalysisException as error:
                topic = _missing_table(error)
                if topic is None or topic in tried:
                    raise InvalidArgument(_explained(error)) from None
                tried.add(topic)
            _create_view(spark, topic, options)
    except PySparkException as error:
        raise InvalidArgument(_explained(error)) from None
    finally:
        logger.disabled = was_disabled


def _missing_table(error: AnalysisException) -> str | None:
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return None
    name = (error.getMessageParameters() or {}).get("relationName", "")
    match = _ONE_NAME.fullmatch(name)
    if match is None:
        raise InvalidArgument(f"{name.replace('`', '')} is not a topic: name topics without a schema")
    return match[1]


def _create_view(spark: SparkSession, topic: str, options: Mapping[str, str]) -> None:
    reader = spark.read.format("rocketmq").options(**options).option("subscribe", topic)
    try:
        frame = with_text(reader.load())
    except PySparkException as error:
        raise TopicNotFound(reason(error)) from None
    frame.createOrReplaceTempView(f"`{topic}`")


def _explained(error: PySparkException) -> str:
    """Spark's own text without the plan; for a mistake in the grammar also the place."""
    lines = str(error).strip().splitlines()
    end = next(
        (number for number, line in enumerate(lines) if line.startswith(("'", "==", "+-"))), len(lines)
    )
    shown = [line for line in lines[:end] if line.strip()]
    if "== SQL ==" in lines:
        shown += lines[lines.index("== SQL ==") + 1 :]
    return "\n".join(re.sub(r"\s*SQLSTATE: \w+", "", line) for line in shown).strip()
