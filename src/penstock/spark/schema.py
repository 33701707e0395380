"""The columns of the source, as Spark and as Arrow spell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pyarrow import Schema  # type: ignore[import-untyped]  # pyarrow ships no type information

PropertiesForm = Literal["map", "raw", "none"]

COLUMNS: Final[dict[str, str]] = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "msgId": "string",
    "tags": "string",
    "keys": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "flag": "int",
    "sysFlag": "int",
    "bornTimestamp": "timestamp",
    "bornHost": "string",
    "storeTimestamp": "timestamp",
    "storeHost": "string",
    "reconsumeTimes": "int",
    "physicalOffset": "bigint",
}
"""Column name -> Spark SQL type, in the order of the schema."""

ERROR_COLUMN: Final = "error"
"""Only there with onCorrupt=keep: what is wrong with the record of this row."""


def column_type(name: str, properties: PropertiesForm) -> str:
    """The Spark SQL type of a column; only the properties have more than one form."""
    if name == ERROR_COLUMN or (name == "properties" and properties == "raw"):
        return "string"
    return COLUMNS[name]


def spark_ddl(columns: Sequence[str], properties: PropertiesForm) -> str:
    """The schema as Spark's DDL text: needs no Spark session and no JVM."""
    return ", ".join(f"{name} {column_type(name, properties)}" for name in columns)


def arrow_schema(columns: Sequence[str], properties: PropertiesForm) -> Schema:
    import pyarrow as pa  # here, because planning knows the columns without it

    # Spark compares Arrow types exactly: no large, view or dictionary types, all nullable, times in UTC.
    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([(name, types[column_type(name, properties)]) for name in columns])
