"""The options of the source: everything is checked here, before any task runs."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from penstock.client.config import parse_addresses
from penstock.message.names import check_group, check_topic
from penstock.message.queue import MessageQueue
from penstock.message.tags import parse_subscription
from penstock.spark import option_parsing as parsing
from penstock.spark.option_parsing import OptionError, Options
from penstock.spark.schema import COLUMNS, ERROR_COLUMN, PropertiesForm

EARLIEST: Final = -2
LATEST: Final = -1
"""Stand-ins for an offset in the JSON of startingOffsets and endingOffsets."""

LARGEST_BATCH: Final = 256 << 20
"""Arrow counts the bytes of a column in 31 bits, and compressed bodies grow."""

ALIASES: Final = {
    "rocketmq.namesrv": "nameServer",
    "topic": "subscribe",
    "includeHeaders": "includeProperties",
}
IGNORED_PREFIXES: Final = {"kafka.": "it is meant for Kafka; see nameServer and consumerGroup here"}
READ_OPTIONS: Final = (
    *("nameServer", "subscribe", "subscribePattern", "assign", "subExpression", "subExpressionType"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("failOnDataLoss", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"),
    *("maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "maxPartitions", "consumerGroup"),
    *("groupIdPrefix", "commitOffsetsToBroker", "includeProperties", "columns", "pullBatchSize"),
    *("pullBatchBytes", "pullInflight", "pullTimeoutMs", "fetchOffset.numRetries"),
    *("fetchOffset.retryIntervalMs", "routeCacheTtlMs", "brokerUnavailable", "onCorrupt", "verifyCrc"),
    *("decompress", "arrowBatchBytes", "mode", "filterPushdown"),
)
_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_BATCH_ONLY: Final = (*_ENDING, "filterPushdown")
_STREAM_ONLY: Final = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("commitOffsetsToBroker", "brokerUnavailable"),
)

OnCorrupt = Literal["fail", "skip", "keep"]
ExpressionType = Literal["TAG", "SQL92"]


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading starts or ends, before a broker was asked what that means."""

    kind: Literal["earliest", "latest", "group", "offsets", "timestamp", "timestamps"]
    timestamp_ms: int = 0
    queues: Mapping[MessageQueue, int] | None = None
    latest_when_too_new: bool = False
    """A timestamp after the last message: start at the end (true) or refuse (false)."""


@dataclass(frozen=True, slots=True)
class PullOptions:
    """What a task needs to read its ranges; travels to the executors."""

    name_server: str
    consumer_group: str
    expression: str
    expression_type: ExpressionType
    tags: frozenset[str]
    """Tags re-checked by string, since the broker compares hashes; empty: no check."""
    columns: tuple[str, ...]
    properties: PropertiesForm
    pull_batch_size: int
    pull_batch_bytes: int
    pull_inflight: int
    pull_timeout_ms: int
    fail_on_data_loss: bool
    on_corrupt: OnCorrupt
    verify_crc: bool
    decompress: bool
    arrow_batch_bytes: int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything a driver needs to plan a read."""

    pull: PullOptions
    topics: tuple[str, ...]
    topic_pattern: str | None
    assigned: tuple[MessageQueue, ...]
    start: Position | None
    """None: the default, which is latest for a stream and earliest for a batch."""
    end: Position
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    max_partitions: int | None
    commit_offsets: bool
    fetch_retries: int
    fetch_retry_interval_ms: int
    route_cache_ttl_ms: int
    wait_for_broker: bool
    filter_pushdown: bool
    given: frozenset[str]
    """Lower-cased names of the options that were given, to refuse those of the other mode."""

    @property
    def name_server(self) -> str:
        return self.pull.name_server

    def subscribed(self) -> str:
        """The subscription in words, for messages to people."""
        if self.topic_pattern is not None:
            return f"topics matching {self.topic_pattern!r}"
        return "topic " + ", ".join(self.topics)

    def batch_start(self) -> Position:
        self._refuse(_STREAM_ONLY, "only works for streams (readStream)")
        start = self.start or Position("earliest")
        if start.kind == "latest" or LATEST in (start.queues or {}).values():
            raise OptionError("option startingOffsets: a batch read cannot start at latest")
        return start

    def stream_start(self) -> Position:
        self._refuse(_BATCH_ONLY, "only works for batch reads (spark.read)")
        return self.start or Position("latest")

    def _refuse(self, names: tuple[str, ...], reason: str) -> None:
        wrong = [name for name in names if name.lower() in self.given]
        if wrong:
            raise OptionError(f"option {', '.join(wrong)} {reason}")

    def partition_limit(self) -> int:
        """Tasks per batch where the user named no limit: a planner has no view of the cluster."""
        return self.max_partitions or max(2 * (os.cpu_count() or 1), self.min_partitions or 0)


def read_options(given: Mapping[str, str], *, warn: bool = False) -> ReadOptions:
    options = Options(given, ALIASES)
    if warn:
        options.warn_unknown((*READ_OPTIONS, *ALIASES), IGNORED_PREFIXES)
    topics, pattern, assigned = _subscription(options)
    options.get("mode", parsing.one_of("pull"), "pull")
    min_partitions = options.get("minPartitions", parsing.positive, None)
    max_partitions = options.get("maxPartitions", parsing.positive, None)
    if min_partitions and max_partitions and min_partitions > max_partitions:
        raise OptionError("option minPartitions is above maxPartitions")
    min_offsets = options.get("minOffsetsPerTrigger", parsing.positive, None)
    max_offsets = options.get("maxOffsetsPerTrigger", parsing.positive, None)
    if min_offsets and max_offsets and min_offsets > max_offsets:
        raise OptionError("option minOffsetsPerTrigger is above maxOffsetsPerTrigger")
    result = ReadOptions(
        pull=_pull_options(options, topics, pattern),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        start=_position(options, "starting"),
        end=_position(options, "ending") or Position("latest"),
        max_offsets_per_trigger=max_offsets,
        max_bytes_per_trigger=options.get("maxBytesPerTrigger", parsing.size_bytes, None),
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=options.get("maxTriggerDelay", parsing.duration_ms, 15 * 60_000),
        min_partitions=min_partitions,
        max_records_per_partition=options.get("maxRecordsPerPartition", parsing.positive, None),
        max_partitions=max_partitions,
        commit_offsets=options.get("commitOffsetsToBroker", parsing.flag, options.has("consumerGroup")),
        fetch_retries=options.get("fetchOffset.numRetries", parsing.not_negative, 10),
        fetch_retry_interval_ms=options.get("fetchOffset.retryIntervalMs", parsing.not_negative, 1_000),
        route_cache_ttl_ms=options.get("routeCacheTtlMs", parsing.not_negative, 10_000),
        wait_for_broker=options.get("brokerUnavailable", parsing.one_of("wait", "fail"), "wait") == "wait",
        filter_pushdown=options.get("filterPushdown", parsing.flag, False),
        given=frozenset(options.given),
    )
    for name, position in (("startingOffsets", result.start), ("endingOffsets", result.end)):
        _check_queues_are_read(name, position, topics, assigned)
    return result


def _subscription(options: Options) -> tuple[tuple[str, ...], str | None, tuple[MessageQueue, ...]]:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if options.has(name)]
    if len(ways) != 1:
        found = f"found {' and '.join(ways)}" if ways else "found none"
        raise OptionError(f"needs exactly one of the options subscribe, subscribePattern, assign; {found}")
    pattern = options.get("subscribePattern", parsing.text, None)
    no_queues: tuple[MessageQueue, ...] = ()
    assigned = options.get("assign", parsing.queue_lists, no_queues)
    topics = options.get("subscribe", parsing.comma_list, tuple(sorted({q.topic for q in assigned})))
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"option subscribePattern={pattern!r}: {error}") from None
    for topic in topics:
        try:
            check_topic(topic)
        except ValueError as error:
            raise OptionError(f"option {ways[0]}: topic {topic!r}: {error}") from None
    return topics, pattern, assigned


def _pull_options(options: Options, topics: tuple[str, ...], pattern: str | None) -> PullOptions:
    name_server = options.get("nameServer", parsing.text, "")
    if not name_server:
        raise OptionError("option nameServer is required: host:port, several joined by ';'")
    try:
        parse_addresses(name_server)
    except ValueError as error:
        raise OptionError(f"option nameServer: {error}") from None
    kind = cast(ExpressionType, options.get("subExpressionType", parsing.one_of("TAG", "SQL92"), "TAG"))
    expression = options.get("subExpression", parsing.text, "*")
    if kind == "SQL92" and expression == "*":
        raise OptionError("option subExpressionType=SQL92 needs a condition in subExpression")
    tags: frozenset[str] = frozenset()
    if kind == "TAG":
        tags = frozenset(parse_subscription("", expression).tags)
    properties = _properties_form(options)
    on_corrupt = cast(OnCorrupt, options.get("onCorrupt", parsing.one_of("fail", "skip", "keep"), "fail"))
    seed = "\n".join((name_server, *topics, pattern or "", expression))
    prefix = options.get("groupIdPrefix", parsing.text, "spark-rocketmq-source")
    group = f"{prefix}-{hashlib.sha256(seed.encode()).hexdigest()[:12]}"
    group = options.get("consumerGroup", parsing.text, group)
    try:
        check_group(group)
    except ValueError as error:
        raise OptionError(f"option consumerGroup: {group!r}: {error}") from None
    return PullOptions(
        name_server=name_server,
        consumer_group=group,
        expression=expression,
        expression_type=kind,
        tags=tags,
        columns=_columns(options, properties, on_corrupt),
        properties=properties,
        pull_batch_size=options.get("pullBatchSize", parsing.positive, 1024),
        pull_batch_bytes=options.get("pullBatchBytes", parsing.size_bytes, 4 << 20),
        pull_inflight=options.get("pullInflight", parsing.positive, 4),
        pull_timeout_ms=options.get("pullTimeoutMs", parsing.positive, 30_000),
        fail_on_data_loss=options.get("failOnDataLoss", parsing.flag, True),
        on_corrupt=on_corrupt,
        verify_crc=options.get("verifyCrc", parsing.flag, False),
        decompress=options.get("decompress", parsing.flag, True),
        arrow_batch_bytes=min(options.get("arrowBatchBytes", parsing.size_bytes, 4 << 20), LARGEST_BATCH),
    )


def _properties_form(options: Options) -> PropertiesForm:
    # true and false are Kafka's values of includeHeaders.
    named = {"true": "map", "false": "none"}
    form = options.get("includeProperties", parsing.one_of("map", "raw", "none", "true", "false"), "map")
    return cast(PropertiesForm, named.get(form, form))


def _columns(options: Options, properties: PropertiesForm, on_corrupt: OnCorrupt) -> tuple[str, ...]:
    everything = tuple(name for name in COLUMNS if name != "properties" or properties != "none")
    chosen = options.get("columns", parsing.comma_list, everything)
    known = {name.lower(): name for name in COLUMNS}
    columns = []
    for name in chosen:
        if name.lower() not in known:
            raise OptionError(f"option columns: no column {name!r}; there are {', '.join(COLUMNS)}")
        columns.append(known[name.lower()])
    if "properties" in columns and properties == "none":
        raise OptionError("option columns asks for properties, but includeProperties is none")
    return (*columns, ERROR_COLUMN) if on_corrupt == "keep" else tuple(columns)


def _position(options: Options, side: Literal["starting", "ending"]) -> Position | None:
    strategy = options.get(f"{side}OffsetsByTimestampStrategy", parsing.one_of("error", "latest"), "error")
    # An end after the last message is simply the end; only a start there is worth a question.
    latest = strategy == "latest" or side == "ending"
    timestamp = options.get(f"{side}Timestamp", parsing.not_negative, None)
    if timestamp is not None:
        return Position("timestamp", timestamp_ms=timestamp, latest_when_too_new=latest)
    queues = options.get(f"{side}OffsetsByTimestamp", parsing.queue_numbers, None)
    if queues is not None:
        if min(queues.values()) < 0:
            raise OptionError(f"option {side}OffsetsByTimestamp: a timestamp is negative")
        return Position("timestamps", queues=queues, latest_when_too_new=latest)
    return options.get(f"{side}Offsets", _starting if side == "starting" else _ending, None)


def _starting(value: str) -> Position:
    kinds: tuple[Literal["earliest", "latest", "group"], ...] = ("earliest", "latest", "group")
    for kind in kinds:
        if value.lower() == kind:
            return Position(kind)
    queues = parsing.queue_numbers(_json_or_words(value, "earliest, latest, group"))
    if min(queues.values()) < EARLIEST:
        raise ValueError("an offset is below -2")
    return Position("offsets", queues=queues)


def _ending(value: str) -> Position:
    if value.lower() == "latest":
        return Position("latest")
    queues = parsing.queue_numbers(_json_or_words(value, "latest"))
    if min(queues.values()) < LATEST:
        raise ValueError("an end cannot be earliest (-2) or lower")
    return Position("offsets", queues=queues)


def _json_or_words(value: str, words: str) -> str:
    if not value.startswith("{"):
        raise ValueError(f"must be {words} or JSON of offsets")
    return value


def _check_queues_are_read(
    name: str, position: Position | None, topics: tuple[str, ...], assigned: tuple[MessageQueue, ...]
) -> None:
    """Offsets for a queue that is not read are a mistake, not a wish."""
    for queue in (position and position.queues) or ():
        if (topics and queue.topic not in topics) or (assigned and queue not in assigned):
            place = f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
            raise OptionError(f"option {name} (or its timestamp form) names {place}, which is not read")
