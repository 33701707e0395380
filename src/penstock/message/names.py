"""Names of topics and groups: what is legal, what is derived, what belongs to the system."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from penstock.errors import IllegalName
from penstock.limits import MAX_GROUP_CHARS, MAX_RETRY_TOPIC_CHARS, MAX_TOPIC_CHARS

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
LOGICAL_BROKER_PREFIX: Final = "__syslo__"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"

NOT_SENDABLE: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""System topics that clients may not send to."""

SYSTEM_TOPICS: Final = NOT_SENDABLE | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC, "CHECKPOINT_TOPIC"}
"""Fixed system topics; a broker adds its own name, its cluster's and the cluster's reply topic."""

PREDEFINED_GROUPS: Final = frozenset(
    {
        "DEFAULT_PRODUCER",
        "DEFAULT_CONSUMER",
        "TOOLS_CONSUMER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        "CID_RMQ_SYS_TRANS",
    }
)

_SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
_DERIVED_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)
_PATTERN: Final = "^[%|a-zA-Z0-9_-]+$"
_is_legal: Final = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch


@lru_cache(4096)
def check_topic(name: str) -> None:
    """Raise IllegalName, with the remark that brokers answer, unless this can name a topic."""
    _check_characters("topic", name)
    if name.startswith(_DERIVED_PREFIXES):
        if len(name) > MAX_RETRY_TOPIC_CHARS:
            raise IllegalName(
                f"The specified topic is DLQ or Retry topic: {name}, "
                f"and it's longer than topic max length: {MAX_RETRY_TOPIC_CHARS}"
            )
    elif len(name) > MAX_TOPIC_CHARS:
        raise IllegalName(f"The specified topic: {name}, is longer than topic max length: {MAX_TOPIC_CHARS}")


@lru_cache(4096)
def check_group(name: str) -> None:
    """Raise IllegalName, with the remark that brokers answer, unless this can name a group."""
    _check_characters("group", name)
    if len(name) > MAX_GROUP_CHARS:
        raise IllegalName(f"The specified group: {name}, is longer than group max length: {MAX_GROUP_CHARS}")


def _check_characters(kind: str, name: str) -> None:
    if not isinstance(name, str):
        raise IllegalName(f"The specified {kind} must be text, not {name!r}")
    if not _is_legal(name):
        if not name or name.isspace():
            raise IllegalName(f"The specified {kind} is blank.")
        raise IllegalName(
            f"The specified {kind}: {name}, contains illegal characters, allowing only {_PATTERN}"
        )


def is_system_topic(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(_SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    return name.startswith(_SYSTEM_GROUP_PREFIX)


def is_retry_topic(name: str) -> bool:
    return name.startswith(RETRY_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def pop_retry_topic_v1(group: str, topic: str) -> str:
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(group: str, topic: str) -> str:
    """Not a legal name for users, so it cannot collide with another group's retry topic."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def normal_topic(pop_retry_topic: str, group: str) -> str:
    """The topic behind either form of a group's POP retry topic; any other name is its own."""
    for separator in "+_":
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if pop_retry_topic.startswith(prefix):
            return pop_retry_topic[len(prefix) :]
    return pop_retry_topic


def group_of_retry_topic(name: str) -> str:
    """The group of a retry topic; a POP retry topic of the first form cannot be told apart from a group."""
    return name.removeprefix(RETRY_PREFIX).partition("+")[0]


def wrap_namespace(namespace: str | None, name: str) -> str:
    """The name that goes over the wire for a client with a (version 1) namespace."""
    if not namespace or not name or is_system_topic(name) or is_system_group(name):
        return name
    prefix, rest = _split_derived(name)
    return name if rest.startswith(namespace + "%") else f"{prefix}{namespace}%{rest}"


def unwrap_namespace(namespace: str | None, name: str) -> str:
    """The user's name for one from the wire; names of other namespaces stay as they are."""
    if not namespace:
        return name
    prefix, rest = _split_derived(name)
    return prefix + rest.removeprefix(namespace + "%")


def _split_derived(name: str) -> tuple[str, str]:
    for prefix in _DERIVED_PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
