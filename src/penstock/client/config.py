"""Settings of producers and consumers: the protocol's defaults, checked when they are made.

A setting that cannot work is refused at construction, with a text that says what is allowed, so that
no service starts and then misbehaves hours later. `Timings` holds the protocol's fixed times; nobody
should need to change them but tests.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import ssl
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from penstock.client.allocation import AllocationStrategy, Averagely
from penstock.errors import InvalidArgument
from penstock.limits import MAX_BODY_BYTES, MAX_INVISIBLE_MS, POP_MAX_MESSAGES
from penstock.message.names import check_group, check_topic
from penstock.transport.client import RpcHook


class MessageModel(StrEnum):
    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFrom(StrEnum):
    """Where a group without a stored offset begins."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class Between:
    """Range of a number; `also` lists values outside it that have a meaning of their own."""

    low: int
    high: int
    also: tuple[int, ...] = ()

    def check(self, name: str, value: Any) -> None:
        good = isinstance(value, int) and not isinstance(value, bool)
        if good and (self.low <= value <= self.high or value in self.also):
            return
        extra = "".join(f" or {item}" for item in self.also)
        raise InvalidArgument(
            f"{name} must be an integer from {self.low} to {self.high}{extra}, not {value!r}"
        )


POP_RETRY_DELAYS_MS = tuple(
    1_000 * seconds
    for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
)
"""Protocol: after the first failed attempt ten seconds, after the sixteenth and all others two hours."""

_YEAR_MS = 366 * 24 * 3_600_000
Millis = Annotated[int, Between(0, _YEAR_MS)]
PositiveMillis = Annotated[int, Between(1, _YEAR_MS)]


_RULES: dict[type[Any], list[tuple[str, Between | None, Any]]] = {}


def _rules(kind: type[Any]) -> list[tuple[str, Between | None, Any]]:
    if kind in _RULES:
        return _RULES[kind]
    hints = typing.get_type_hints(kind, include_extras=True)
    rules: list[tuple[str, Between | None, Any]] = []
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        metadata = getattr(hint, "__metadata__", ())
        between = next((rule for rule in metadata if isinstance(rule, Between)), None)
        rules.append((item.name, between, hint))
    _RULES[kind] = rules
    return rules


def _check_fields(settings: Any) -> None:
    """Integers by their range, booleans and enums by their type; the rest is checked where it is used."""
    for name, between, hint in _rules(type(settings)):
        value = getattr(settings, name)
        if between is not None:
            between.check(name, value)
        elif hint is str and not isinstance(value, str):
            raise InvalidArgument(f"{name} must be text, not {value!r}")
        elif hint is bool and not isinstance(value, bool):
            raise InvalidArgument(f"{name} must be True or False, not {value!r}")
        elif isinstance(hint, type) and issubclass(hint, StrEnum) and not isinstance(value, hint):
            allowed = ", ".join(f"{hint.__name__}.{member.name}" for member in hint)
            raise InvalidArgument(f"{name} must be one of {allowed}, not {value!r}")
        elif typing.get_origin(hint) is Literal and value not in typing.get_args(hint):
            raise InvalidArgument(f"{name} must be one of {typing.get_args(hint)}, not {value!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """The protocol's fixed times."""

    rebalance_interval_ms: PositiveMillis = 20_000
    rebalance_min_interval_ms: Millis = 1_000
    lock_retry_ms: Millis = 500
    pull_error_ms: Millis = 3_000
    """After a failed pull, and while the consumer does not run, has no lock or no subscription."""
    pull_paused_ms: Millis = 1_000
    flow_control_ms: Millis = 50
    broker_busy_ms: Millis = 20
    offset_illegal_ms: Millis = 10_000
    pull_idle_ms: PositiveMillis = 120_000
    """A queue not pulled for this long has lost its pull request; the next rebalance starts it anew."""
    resubmit_ms: Millis = 5_000
    lock_first_ms: Millis = 1_000
    lock_interval_ms: PositiveMillis = 20_000
    lock_max_live_ms: PositiveMillis = 30_000
    unlock_delay_ms: PositiveMillis = 20_000
    unlock_wait_ms: Millis = 500
    relock_failed_ms: Millis = 3_000
    orderly_continuous_ms: PositiveMillis = 60_000
    reset_offset_wait_ms: Millis = 10_000
    offline_check_ms: PositiveMillis = 1_000
    """First heartbeat round after the start."""
    persist_first_ms: Millis = 10_000
    discovery_interval_ms: PositiveMillis = 120_000
    stats_interval_ms: PositiveMillis = 10_000

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSettings:
    """What producers and consumers have in common."""

    name_server: str = ""
    """`host:port;host:port`. Empty: the environment's NAMESRV_ADDR, else asked from `discovery_domain`."""
    discovery_domain: str = ""
    """Host (or host:port) of an HTTP server that answers /rocketmq/nsaddr with the name-server list."""
    discovery_subgroup: str = "nsaddr"
    instance_name: str = "DEFAULT"
    client_ip: str = ""
    unit_name: str = ""
    unit_mode: bool = False
    namespace: str = ""
    """Sent with every request (`nsd`, `ns`); names are not rewritten."""
    route_interval_ms: PositiveMillis = 30_000
    heartbeat_interval_ms: PositiveMillis = 30_000
    persist_interval_ms: PositiveMillis = 5_000
    api_timeout_ms: PositiveMillis = 3_000
    connect_timeout_ms: PositiveMillis = 3_000
    vip_channel: bool = False
    max_in_flight: Annotated[int, Between(1, 1_000_000)] = 65_535
    tls: ssl.SSLContext | None = None
    """From penstock.transport.tls.client_context(...); None is a plain connection."""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    rpc_hooks: Sequence[RpcHook] = ()
    timings: Timings = field(default_factory=Timings)

    def __post_init__(self) -> None:
        _check_fields(self)
        if bool(self.access_key) != bool(self.secret_key):
            raise InvalidArgument("access_key and secret_key belong together: give both or neither")
        for part in ("instance_name", "unit_name", "client_ip"):
            if "@" in getattr(self, part):
                raise InvalidArgument(
                    f"{part} must not contain '@', which separates the parts of a client id"
                )
        if not self.instance_name:
            raise InvalidArgument("instance_name must not be empty")
        parse_addresses(self.name_server)

    @classmethod
    def make(cls, name_server: str | None, settings: Self | None, options: Mapping[str, Any]) -> Self:
        """Settings from a constructor's arguments; an unknown name is refused with the nearest known one."""
        known = [item.name for item in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise InvalidArgument(f"unknown setting {name!r}{hint}")
        given = dict(options)
        if name_server is not None:
            given["name_server"] = name_server
        if settings is None:
            if "group" not in given and issubclass(cls, ConsumerSettings):
                raise InvalidArgument("group is needed: the consumers of a group share its messages")
            return cls(**given)
        return dataclasses.replace(settings, **given)

    def name_servers(self) -> list[str]:
        """The static addresses, empty if they have to be discovered."""
        return parse_addresses(self.name_server or os.environ.get("NAMESRV_ADDR", ""))


def parse_addresses(text: str) -> list[str]:
    """`host:port` items separated by `;`. A value like http://host/x:9876 is reduced to its last part."""
    text = text.strip()
    if text.startswith(("http://", "https://")):
        text = text.rsplit("/", 1)[1]
    addresses = [item.strip() for item in text.split(";") if item.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise InvalidArgument(f"{address!r} is not an address; write host:port, several separated by ';'")
    return addresses


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerSettings(ClientSettings):
    group: str = "PENSTOCK_PRODUCER"
    send_timeout_ms: PositiveMillis = 3_000
    send_attempt_timeout_ms: Annotated[int, Between(1, _YEAR_MS, also=(-1,))] = -1
    """Longest time for one attempt while another may follow; -1: an attempt may use the whole time."""
    retry_times: Annotated[int, Between(0, 100)] = 2
    retry_response_codes: frozenset[int] = frozenset()
    """Answers that are tried again on another broker, besides the protocol's own list."""
    retry_another_broker_when_not_stored_ok: bool = False
    max_message_bytes: Annotated[int, Between(1, 16 << 20)] = MAX_BODY_BYTES
    compress_over_bytes: Annotated[int, Between(0, 1 << 31)] = 4_096
    compress_type: Literal["zlib", "lz4", "zstd"] = "zlib"
    compress_level: Annotated[int, Between(1, 22)] = 5
    create_topic_key: str = "TBW102"
    default_topic_queues: Annotated[int, Between(1, 1_024)] = 4
    latency_fault_tolerance: bool = False
    latency_steps_ms: tuple[tuple[int, int], ...] = (
        (15_000, 30_000),
        (5_000, 10_000),
        (3_000, 6_000),
        (1_800, 5_000),
        (550, 2_000),
    )
    """(a send took this long, its broker is avoided for that long), longest first."""
    max_pending_messages: Annotated[int, Between(10, 1 << 31, also=(0,))] = 0
    """Back-pressure: sends under way at once; 0 is off."""
    max_pending_bytes: Annotated[int, Between(1 << 20, 1 << 40, also=(0,))] = 0
    batch_messages: Annotated[int, Between(1, 10_000)] = 512
    batch_bytes: Annotated[int, Between(1, 4 << 20)] = 256 * 1024
    """How large `send_many` makes one request."""
    batch_requests: Annotated[int, Between(1, 1_000)] = 16
    """Requests that `send_many` keeps under way."""
    topics: Sequence[str] = ()
    """Topics whose routes are fetched at the start."""

    def __post_init__(self) -> None:
        super(ProducerSettings, self).__post_init__()
        _check_group(self.group, "DEFAULT_PRODUCER")
        for topic in self.topics:
            check_topic(topic)
        if list(self.latency_steps_ms) != sorted(self.latency_steps_ms, reverse=True):
            raise InvalidArgument("latency_steps_ms must be sorted, longest latency first")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerSettings(ClientSettings):
    """What push and pull consumers have in common."""

    group: str
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_timestamp_ms: Annotated[int, Between(0, 1 << 62, also=(-1,))] = -1
    """Start for ConsumeFrom.TIMESTAMP, milliseconds since 1970; -1: half an hour before the start."""
    allocation: AllocationStrategy = field(default_factory=Averagely)
    local_offset_dir: str = ""
    """Where broadcasting offsets are kept; empty: ~/.rocketmq_offsets."""
    pull_threshold_messages: Annotated[int, Between(1, 65_535)] = 1_000
    pull_threshold_mib: Annotated[int, Between(1, 1_024)] = 100
    max_span: Annotated[int, Between(1, 65_535)] = 2_000

    def __post_init__(self) -> None:
        super(ConsumerSettings, self).__post_init__()
        _check_group(self.group, "DEFAULT_CONSUMER")
        if not callable(getattr(self.allocation, "allocate", None)):
            raise InvalidArgument(f"allocation must be an allocation strategy, not {self.allocation!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PushSettings(ConsumerSettings):
    orderly: bool = False
    consume_threads: Annotated[int, Between(1, 1_000)] = 20
    consume_batch: Annotated[int, Between(1, 1_024)] = 1
    consume_backlog: Annotated[int, Between(1, 10_000_000)] = 100_000
    """Listener batches that may wait for a worker; what is over it is handed out later."""
    consume_timeout_ms: PositiveMillis = 15 * 60_000
    pull_batch: Annotated[int, Between(1, 1_024)] = 32
    pull_batch_bytes: Annotated[int, Between(1, 2**31 - 1)] = 262_144
    pull_interval_ms: Annotated[int, Between(0, 65_535)] = 0
    pull_suspend_ms: PositiveMillis = 15_000
    pull_timeout_ms: PositiveMillis = 30_000
    pull_threshold_messages_topic: Annotated[int, Between(1, 6_553_500, also=(-1,))] = -1
    pull_threshold_mib_topic: Annotated[int, Between(1, 102_400, also=(-1,))] = -1
    post_subscription: bool = False
    class_filter: bool = False
    """The group's messages are filtered by filter servers (deprecated in the protocol)."""
    max_reconsume_times: Annotated[int, Between(0, 2**31 - 1, also=(-1,))] = -1
    """-1: 16 attempts for concurrent, no limit for orderly consumption."""
    suspend_ms: Annotated[int, Between(10, 30_000)] = 1_000
    client_rebalance: bool = False
    """True: the broker is never asked whether the group pulls or pops a topic, so it always pulls."""
    pop_invisible_ms: Annotated[int, Between(100, MAX_INVISIBLE_MS)] = 60_000
    """How long a popped message is this consumer's; after that the broker gives it to another."""
    pop_batch: Annotated[int, Between(1, POP_MAX_MESSAGES)] = 32
    pop_threshold: Annotated[int, Between(1, 65_535)] = 96
    """Popped messages of a queue that may be here unacked before no more are popped."""
    pop_poll_ms: PositiveMillis = 15_000
    pop_renew: bool = True
    """Whether the lease is extended while a listener works on a message, up to consume_timeout_ms."""
    pop_retry_delays_ms: tuple[int, ...] = POP_RETRY_DELAYS_MS
    """After how long a failed message comes again, by attempt."""
    pop_over_limit: Literal["dead_letter", "ack"] = "dead_letter"
    """What becomes of a message after its last attempt: it is kept in the dead-letter topic, or dropped."""
    stop_timeout_ms: Millis = 10_000
    """How long a stop waits for listeners that run; messages not begun are left to the next owner."""

    def __post_init__(self) -> None:
        super(PushSettings, self).__post_init__()
        if self.orderly and self.message_model is MessageModel.BROADCASTING:
            raise InvalidArgument(
                "orderly consumption needs message_model=CLUSTERING: "
                "a broadcasting group takes no broker locks, so no order can be kept across consumers"
            )
        if self.pull_timeout_ms < self.pull_suspend_ms:
            raise InvalidArgument(
                "pull_timeout_ms must not be below pull_suspend_ms, or every long poll times out"
            )
        if not self.pop_retry_delays_ms:
            raise InvalidArgument("pop_retry_delays_ms must have at least one delay")
        for delay_ms in self.pop_retry_delays_ms:
            Between(0, MAX_INVISIBLE_MS).check("each of pop_retry_delays_ms", delay_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class PullSettings(ConsumerSettings):
    pull_batch: Annotated[int, Between(1, 1_024)] = 10
    pull_suspend_ms: PositiveMillis = 20_000
    pull_timeout_ms: PositiveMillis = 30_000
    poll_timeout_ms: Millis = 5_000
    pull_threshold_all: Annotated[int, Between(1, 1 << 31)] = 10_000
    auto_commit: bool = True
    auto_commit_interval_ms: Annotated[int, Between(1_000, _YEAR_MS)] = 5_000
    topic_check_interval_ms: PositiveMillis = 30_000

    def __post_init__(self) -> None:
        super(PullSettings, self).__post_init__()
        if self.pull_timeout_ms < self.pull_suspend_ms:
            raise InvalidArgument(
                "pull_timeout_ms must not be below pull_suspend_ms, or every long poll times out"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SimpleSettings(ConsumerSettings):
    invisible_ms: Annotated[int, Between(1, MAX_INVISIBLE_MS)] = 30_000
    """How long a received message is this consumer's, where `receive` is not told."""
    wait_ms: PositiveMillis = 15_000
    """How long `receive` waits for a message, where it is not told."""

    def __post_init__(self) -> None:
        super(SimpleSettings, self).__post_init__()
        if self.message_model is MessageModel.BROADCASTING:
            raise InvalidArgument("a simple consumer shares its messages with its group: no broadcasting")


def _check_group(group: str, refused: str) -> None:
    check_group(group)
    if group == refused:
        raise InvalidArgument(f"{refused} is the protocol's placeholder; choose a group of your own")


def parse_consume_timestamp(text: str) -> int:
    """The protocol's `yyyyMMddHHmmss` in local time, as milliseconds since 1970."""
    try:
        return int(datetime.strptime(text, "%Y%m%d%H%M%S").timestamp() * 1000)
    except ValueError:
        raise InvalidArgument(f"{text!r} is not a time; write yyyyMMddHHmmss, e.g. 20260131235959") from None
