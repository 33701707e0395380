"""The options and columns of the sink: everything is checked here, before any task runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from penstock.client.config import parse_addresses
from penstock.limits import MAX_BODY_BYTES
from penstock.message.names import check_group, check_topic
from penstock.spark import option_parsing as parsing
from penstock.spark.option_parsing import OptionError, Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

WRITE_OPTIONS: Final = (
    *("nameServer", "topic", "producerGroup", "batchBytes", "batchMessages", "queueSelector"),
    *("deliveryGuarantee", "sinkId", "sendTimeoutMs", "retries", "onOversize"),
)
_SPARKS_OWN: Final = ("checkpointLocation", "queryName", "path")
_ALIASES: Final = {"rocketmq.namesrv": "nameServer"}

COLUMN_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "binary"),
    "shardingKey": ("string",),
    "queueId": ("int",),
    "brokerName": ("string",),
    "delayLevel": ("int",),
    "delayMs": ("bigint",),
    "deliverAt": ("timestamp",),
    "flag": ("int",),
    "properties": ("map<string,string>",),
}
"""Column of the sink -> Spark SQL types it may have."""

COLUMN_ALIASES: Final = {"value": "body", "key": "keys"}
"""Kafka's names."""

OnOversize = Literal["fail", "dlq"]
Selector = Literal["hash", "roundrobin", "column"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    name_server: str
    topic: str | None
    """Overrides the topic column."""
    producer_group: str
    batch_bytes: int
    batch_messages: int
    selector: Selector
    sink_id: str | None
    send_timeout_ms: int
    retries: int
    on_oversize: OnOversize
    columns: tuple[str, ...]
    """What each column of the input is to the sink, in order; empty for one that is not used."""


def write_options(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WriteOptions:
    options = Options(given, _ALIASES)
    options.warn_unknown((*WRITE_OPTIONS, *_ALIASES, *_SPARKS_OWN), {"kafka.": "it is meant for Kafka"})
    if overwrite:
        raise OptionError(
            "a topic cannot be overwritten: use mode append, or for a stream outputMode append"
            " (running aggregates: foreachBatch with outputMode update, and write each batch)"
        )
    name_server = options.get("nameServer", parsing.text, "")
    if not name_server:
        raise OptionError("option nameServer is required: host:port, several joined by ';'")
    columns = _columns(schema)
    topic = options.get("topic", parsing.text, None)
    group = options.get("producerGroup", parsing.text, "penstock-spark-sink")
    try:
        parse_addresses(name_server)
        check_group(group)
        if topic is not None:
            check_topic(topic)
    except ValueError as error:
        raise OptionError(f"option nameServer, producerGroup or topic: {error}") from None
    if topic is None and "topic" not in columns:
        raise OptionError("needs the option topic or a column topic")
    options.get("deliveryGuarantee", parsing.one_of("at-least-once"), "at-least-once")
    return WriteOptions(
        name_server=name_server,
        topic=topic,
        producer_group=group,
        batch_bytes=min(options.get("batchBytes", parsing.size_bytes, 1 << 20), MAX_BODY_BYTES),
        batch_messages=options.get("batchMessages", parsing.positive, 1024),
        selector=_selector(options, columns),
        sink_id=options.get("sinkId", parsing.text, None),
        send_timeout_ms=options.get("sendTimeoutMs", parsing.positive, 3_000),
        retries=options.get("retries", parsing.not_negative, 5),
        on_oversize=cast(OnOversize, options.get("onOversize", parsing.one_of("fail", "dlq"), "fail")),
        columns=columns,
    )


def _selector(options: Options, columns: tuple[str, ...]) -> Selector:
    default = "hash" if "shardingKey" in columns else "roundrobin"
    selector = options.get("queueSelector", parsing.one_of("hash", "roundrobin", "column"), default)
    needed = {"hash": "shardingKey", "column": "queueId"}.get(selector)
    if needed is not None and needed not in columns:
        raise OptionError(f"option queueSelector={selector} needs a column {needed}")
    return cast(Selector, selector)


def _columns(schema: StructType) -> tuple[str, ...]:
    known = {name.lower(): name for name in COLUMN_TYPES} | COLUMN_ALIASES
    found = []
    for field in schema.fields:
        name = known.get(field.name.lower(), "")
        kind = field.dataType.simpleString()
        if name and kind not in COLUMN_TYPES[name]:
            allowed = " or ".join(COLUMN_TYPES[name])
            raise OptionError(f"column {field.name} is {kind}, but the sink needs {allowed}")
        if name and name in found:
            raise OptionError(f"column {field.name}: there is another column for {name}")
        found.append(name)
    if "body" not in found:
        names = ", ".join(schema.fieldNames())
        raise OptionError(f"the sink needs a column body (or value), found {names}")
    return tuple(found)
