"""The data pipeline on Spark: topics become DataFrames and DataFrames become messages.

Importing this package costs nothing: PySpark, Arrow and numpy are loaded when something here is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.source import RocketMQSource as RocketMQSource
    from penstock.spark.spark_session import session as session

__all__ = ["RocketMQSource", "session"]


def __getattr__(name: str) -> Any:
    if name == "session":
        from penstock.spark.spark_session import session

        return session
    if name == "RocketMQSource":
        from penstock.spark.source import RocketMQSource

        return RocketMQSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
