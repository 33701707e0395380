"""The file of a pipeline: TOML in, checked settings out. Needs no Spark and no broker."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from penstock.client.config import parse_addresses
from penstock.errors import IllegalName, InvalidArgument
from penstock.message.names import check_group, check_topic
from penstock.spark.option_parsing import duration_ms
from penstock.spark.options import READ_OPTIONS, read_options
from penstock.spark.write_options import WRITE_OPTIONS

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
_JOB_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OURS: Final = (
    *("nameServer", "subscribe", "subscribePattern", "assign", "topic", "startingOffsets", "consumerGroup"),
    *("columns", "includeProperties"),
)
"""Options that settings of a job stand for, or that would take away columns it needs."""
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)

NonEmpty = Annotated[str, Meta(min_length=1)]
Instant = Annotated[datetime, Meta(tz=True)]
Format = Literal["parquet", "delta", "iceberg"]
TableName = Annotated[str, Meta(pattern=r"^\w+\.\w+$")]
DEFAULT_TABLE: Final = "penstock.messages"
OptionValues = dict[str, str | int | bool]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything in the file: a misspelt name is an error."""


class Transform(Settings, frozen=True, kw_only=True):
    """What happens to messages on their way: first `where`, then `sql`, then `function`."""

    where: NonEmpty | None = None
    sql: NonEmpty | None = None
    """A SELECT from the view `messages`: the columns of the source and `text`."""
    function: Annotated[str, Meta(pattern=r"^[\w.]+:\w+$")] | None = None
    """`module:name` of a Python function from DataFrame to DataFrame."""


class StreamSettings(Transform, frozen=True, kw_only=True):
    topics: list[str] = []
    topic_pattern: NonEmpty | None = None
    start: Literal["earliest", "latest", "group"] = "earliest"
    """Where a job without a checkpoint begins."""
    every: str = "5s"
    """Time from the start of one batch to that of the next."""
    options: OptionValues = {}
    """More options of the source, such as maxOffsetsPerTrigger."""

    def __post_init__(self) -> None:
        _check_durations(self.every)
        if bool(self.topics) == bool(self.topic_pattern):
            raise ValueError("needs topics or topic_pattern, and not both")
        _check_topics(self.topics)
        _check_options("options", self.options, READ_OPTIONS)
        # The source knows best what its options may be.
        read_options(self.source_options(DEFAULT_NAME_SERVER, "any")).stream_start()

    def source_options(self, name_server: str, group: str) -> dict[str, str]:
        topics = {"subscribe": ",".join(self.topics)}
        if self.topic_pattern is not None:
            topics = {"subscribePattern": self.topic_pattern}
        ours = {"nameServer": name_server, "startingOffsets": self.start, "consumerGroup": group}
        return ours | topics | option_texts(self.options)


class Archive(StreamSettings, frozen=True, kw_only=True, tag_field="job", tag="archive"):
    """Topics into a table, partitioned by topic and day."""

    path: NonEmpty
    format: Format = "parquet"
    table: TableName = DEFAULT_TABLE
    catalog: dict[str, str] = {}
    """Iceberg only: where the table is registered; by default in a catalog of its own below the path."""
    every: str = "1m"

    def __post_init__(self) -> None:
        StreamSettings.__post_init__(self)
        _check_table(self)


class Output(Settings, frozen=True, kw_only=True):
    topic: str
    where: NonEmpty | None = None

    def __post_init__(self) -> None:
        _check_topics([self.topic])


class Route(StreamSettings, frozen=True, kw_only=True, tag_field="job", tag="route"):
    """Topics into topics."""

    to: str | None = None
    outputs: list[Output] = []
    """A message goes to each of these whose condition holds."""
    sink: OptionValues = {}
    """More options of the sink."""

    def __post_init__(self) -> None:
        StreamSettings.__post_init__(self)
        _check_options("sink", self.sink, WRITE_OPTIONS)
        if self.to is not None and self.outputs:
            raise ValueError("needs to or outputs, and not both")
        if self.to is not None:
            _check_topics([self.to])
        if not self.targets() and self.sql is None and self.function is None:
            raise ValueError("needs to or outputs, or a transform whose result has a column topic")
        circle = sorted({output.topic for output in self.targets()} & set(self.topics))
        if circle:
            raise ValueError(f"reads and writes topic {circle[0]}: messages would go round for ever")

    def targets(self) -> list[Output]:
        return self.outputs if self.to is None else [Output(topic=self.to)]


class Replay(Transform, frozen=True, kw_only=True, tag_field="job", tag="replay"):
    """An archive back into a topic, once."""

    path: NonEmpty
    format: Format = "parquet"
    table: TableName = DEFAULT_TABLE
    catalog: dict[str, str] = {}
    to: str
    topics: list[str] = []
    """Of the archived topics only these."""
    since: Instant | None = None
    until: Instant | None = None
    """Stored at or after `since` and before `until`."""
    sink: OptionValues = {}

    def __post_init__(self) -> None:
        _check_table(self)
        _check_topics([self.to, *self.topics])
        _check_options("sink", self.sink, WRITE_OPTIONS)
        if self.since and self.until and self.since >= self.until:
            raise ValueError("since must be before until")


class Report(Settings, frozen=True, kw_only=True, tag_field="job", tag="report"):
    """Figures of topics and groups over time windows, as tables and plots."""

    topics: Annotated[list[str], Meta(min_length=1)]
    groups: list[str] = []
    path: NonEmpty
    window: str = "1m"
    last: str = "24h"
    """How far back the report looks."""
    every: str = "1m"
    """How often it is made anew."""
    top_keys: Annotated[int, Meta(ge=0, le=1_000)] = 10
    plots: bool = True

    def __post_init__(self) -> None:
        _check_durations(self.window, self.last, self.every)
        _check_topics(self.topics)
        for group in self.groups:
            _check_name(check_group, group)
        if _URI.match(self.path):
            raise ValueError("path: a report is written to a folder of this machine")


Job = Archive | Route | Replay | Report


class SparkSettings(Settings, frozen=True, kw_only=True):
    master: str | None = None
    memory: str | None = None
    config: OptionValues = {}


class _File(Settings, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    name_server: str | None = None
    state: NonEmpty = "state"
    spark: SparkSettings = SparkSettings()
    jobs: dict[str, dict[str, Any]]


KINDS: Final[dict[str, Any]] = {"archive": Archive, "route": Route, "replay": Replay, "report": Report}
_PARTS: Final[dict[str, Any]] = {"outputs": Output, "spark": SparkSettings}
"""Tables within a table of the file."""


class Pipeline(Struct, frozen=True):
    name: str
    name_server: str
    folder: Path
    """Of the file: paths in it are relative to this."""
    state: str
    spark: SparkSettings
    jobs: dict[str, Job]

    def path(self, text: str) -> str:
        """An address as it is, any other path relative to the file."""
        return text if _URI.match(text) else str(self.folder / text)

    @property
    def state_path(self) -> str:
        return self.path(self.state)

    @property
    def local_state(self) -> Path | None:
        """The folder of the checkpoints; None where those are not on this machine."""
        return None if _URI.match(self.state) else self.folder / self.state

    @property
    def status_file(self) -> Path:
        """Beside the checkpoints, or beside the file where those are not on this machine."""
        local = self.local_state
        return local / "status.json" if local is not None else self.folder / f"{self.name}.status.json"

    def group(self, job: str) -> str:
        """Where lag displays find the progress of a job."""
        return f"{self.name}-{job}"


def load(file: Path, *, name_server: str | None = None) -> Pipeline:
    """Raises InvalidArgument that names the file and the place in it."""
    try:
        document = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file}: {error}") from None
    head = _convert(document, _File, str(file))
    if not head.jobs:
        raise InvalidArgument(f"{file}: has no jobs; a job is a table such as [jobs.archive]")
    jobs = {name: _job(name, settings, file) for name, settings in head.jobs.items()}
    pipeline = Pipeline(
        name=head.name or re.sub(r"[^A-Za-z0-9_-]", "-", file.stem),
        name_server=name_server or head.name_server or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAME_SERVER,
        folder=file.absolute().parent,
        state=head.state,
        spark=head.spark,
        jobs=jobs,
    )
    try:
        parse_addresses(pipeline.name_server)
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: name_server: {error}") from None
    _check_together(pipeline, file)
    return pipeline


def _job(name: str, settings: Mapping[str, Any], file: Path) -> Job:
    where = f"{file}: jobs.{name}"
    if not _JOB_NAME.fullmatch(name):
        raise InvalidArgument(f"{where}: a job's name has letters, digits, '-' and '_' only")
    kind = settings.get("job")
    if not isinstance(kind, str):
        raise InvalidArgument(f"{where}: needs job = {' or '.join(map(repr, KINDS))}")
    if kind not in KINDS:
        raise InvalidArgument(f"{where}: there is no job {kind!r}{_hint(kind, list(KINDS))}")
    job: Job = _convert(settings, KINDS[kind], where)
    return job


def _convert(value: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        place = place.rstrip("`").lstrip(".")
        unknown = re.fullmatch(r"Object contains unknown field `(.+)`", text)
        if unknown is not None:
            part = place.partition("[")[0]
            known = [field.encode_name for field in msgspec.structs.fields(_PARTS.get(part, kind))]
            text = f"unknown setting {unknown[1]}{_hint(unknown[1], known)}"
        choice = re.fullmatch(r"Invalid enum value '(.*)'", text)
        if choice is not None:
            types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
            text += _hint(choice[1], get_args(types[place]))
        raise InvalidArgument(f"{where}{'.' if place else ''}{place}: {text}") from None


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


def _check_together(pipeline: Pipeline, file: Path) -> None:
    """What single jobs cannot see."""
    for name in pipeline.jobs:
        try:
            check_group(pipeline.group(name))
        except IllegalName as error:
            raise InvalidArgument(f"{file}: jobs.{name}: {error}") from None
    tables: dict[str, str] = {}
    for name, job in pipeline.jobs.items():
        if isinstance(job, Archive | Report):
            other = tables.setdefault(pipeline.path(job.path), name)
            if other != name:
                raise InvalidArgument(f"{file}: jobs.{name} and jobs.{other} write to the same path")


def option_texts(options: OptionValues) -> dict[str, str]:
    """As Spark takes them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }


def _check_options(setting: str, given: OptionValues, known: Sequence[str]) -> None:
    usable = {name.lower(): name for name in known if name not in _OURS}
    for name in given:
        if name.lower() in {ours.lower() for ours in _OURS}:
            raise ValueError(f"{setting}: {name} is the job's own business")
        if name.lower() not in usable:
            raise ValueError(f"{setting}: unknown option {name}{_hint(name, list(usable.values()))}")


def _check_durations(*texts: str) -> None:
    for text in texts:
        try:
            long_enough = duration_ms(text) > 0
        except ValueError as error:
            raise ValueError(f"{text!r} {error}") from None
        if not long_enough:
            raise ValueError(f"{text!r}: must be longer than nothing")


def _check_table(job: Archive | Replay) -> None:
    if job.format != "iceberg" and (job.catalog or job.table != DEFAULT_TABLE):
        raise ValueError("table and catalog are for format = 'iceberg' only")
    if job.format != "parquet" and _URI.match(job.path):
        raise ValueError(f"path: a {job.format} table is written to a folder that every worker sees")


def _check_topics(names: list[str]) -> None:
    for name in names:
        _check_name(check_topic, name)


def _check_name(check: Any, name: str) -> None:
    try:
        check(name)
    except IllegalName as error:
        raise ValueError(f"{name!r}: {error}") from None
