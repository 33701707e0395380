"""`penstock group list|show|leases|mode`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from penstock.admin import AdminClient, consume_modes, group_lags, set_consume_mode
from penstock.admin.modes import PULL, topic_masters
from penstock.cli.output import print_json, print_table
from penstock.cli.verbs import add_cluster, add_verb
from penstock.errors import InvalidArgument, ServerError
from penstock.message.names import is_retry_topic
from penstock.wire.bodies import GroupLag, LeaseInfo, SetMessageRequestModeRequestBody
from penstock.wire.codes import ResponseCode

if TYPE_CHECKING:
    from penstock.cli.verbs import Subparsers

LEASES_SHOWN = 100


def register(subparsers: Subparsers) -> None:
    group = subparsers.add_parser("group", help="consumer groups: progress, leases, pull or pop")
    verbs = group.add_subparsers(metavar="VERB", required=True)

    lister = add_verb(verbs, "list", _list, "list groups with what waits and what is in flight, by topic")
    lister.add_argument("--topic", help="only this topic")
    lister.add_argument("--all", action="store_true", help="retry topics, too")

    show = add_verb(verbs, "show", _show, "show a group's progress, consumers and settings")
    show.add_argument("group")

    leases = add_verb(verbs, "leases", _leases, "show what is in flight in POP mode: by whom, until when")
    leases.add_argument("group")
    leases.add_argument("--topic", help="only this topic")
    leases.add_argument(
        "--limit", type=int, default=LEASES_SHOWN, metavar="N", help="those that end first (default: 100)"
    )

    mode = verbs.add_parser("mode", help="whether a group pulls or pops a topic")
    modes = mode.add_subparsers(metavar="VERB", required=True)
    get = add_verb(modes, "get", _mode_get, "show whether a group pulls or pops its topics")
    get.add_argument("group")
    get.add_argument("topic", nargs="?", help="only this topic")
    put = add_verb(modes, "set", _mode_set, "let a group pull or pop a topic; running consumers follow")
    put.add_argument("group")
    put.add_argument("topic")
    put.add_argument("mode", type=str.upper, choices=("PULL", "POP"))
    put.add_argument(
        "-q",
        "--share",
        type=int,
        default=0,
        metavar="N",
        help="POP: how many other consumers' queues each consumer pops, too (default: 0, all queues)",
    )
    add_cluster(put)


# ---- list and show ----------------------------------------------------------------------------------


async def _list(admin: AdminClient, args: argparse.Namespace) -> None:
    lags = [
        lag
        for lag in await group_lags(admin, topic=args.topic)
        if args.all or not is_retry_topic(lag.topic) or lag.total
    ]
    if args.json:
        print_json([_with_age(lag) for lag in lags])
    else:
        _print_lags(lags)


def _print_lags(lags: Sequence[GroupLag]) -> None:
    print_table(
        ("GROUP", "TOPIC", "MODE", "READY", "IN FLIGHT", "DELAYED", "OLDEST"),
        [
            (
                lag.group,
                lag.topic,
                lag.mode,
                lag.ready,
                lag.in_flight,
                lag.delayed,
                _age_text(_age_ms(lag.oldest_timestamp)),
            )
            for lag in lags
        ],
    )


def _with_age(lag: GroupLag) -> dict[str, object]:
    return {**msgspec.to_builtins(lag), "oldestAgeMs": _age_ms(lag.oldest_timestamp)}


def _age_ms(time_ms: int | None) -> int | None:
    return None if time_ms is None else max(0, _now_ms() - time_ms)


def _age_text(age_ms: int | None) -> str:
    """`850 ms`, `12.3 s`, `4 min`, `7 h`, `3 d`: as much as a person needs to worry or not."""
    if age_ms is None:
        return ""
    if age_ms < 1_000:
        return f"{age_ms} ms"
    if age_ms < 60_000:
        return f"{age_ms / 1_000:.1f} s"
    minutes = age_ms // 60_000
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} d"


async def _show(admin: AdminClient, args: argparse.Namespace) -> None:
    configs = {
        broker: config
        for broker, address in (await admin.masters()).items()
        if (config := (await admin.groups(address)).get(args.group)) is not None
    }
    if not configs:
        raise InvalidArgument(f"there is no group {args.group}")
    lags = await group_lags(admin, args.group)
    online = await admin.consumer_connection(args.group)
    clients = sorted(online.connection_set, key=lambda client: client.client_id) if online else []
    if args.json:
        print_json(
            {
                "group": args.group,
                "lags": [_with_age(lag) for lag in lags],
                "clients": clients,
                "brokers": configs,
            }
        )
        return
    _print_lags(lags)
    print()
    if clients:
        print_table(
            ("CLIENT", "ADDRESS", "LANGUAGE"),
            [(client.client_id, client.client_addr, client.language) for client in clients],
        )
    else:
        print("no consumer is online")
    print()
    print_table(
        ("BROKER", "ENABLED", "ATTEMPTS", "RETRY QUEUES"),
        [
            (
                broker,
                "yes" if config.consume_enable else "no",
                config.retry_max_times,
                config.retry_queue_nums,
            )
            for broker, config in sorted(configs.items())
        ],
    )


# ---- leases -----------------------------------------------------------------------------------------


async def _leases(admin: AdminClient, args: argparse.Namespace) -> None:
    if args.limit < 1:
        raise InvalidArgument(f"--limit must be 1 or more, not {args.limit}")
    try:
        found = await admin.leases(args.group, args.topic, at_most=args.limit)
    except ServerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise InvalidArgument(
                f"{error.address} is not a broker of Penstock's: it lists no leases"
            ) from None
        raise
    if args.json:
        print_json({"group": args.group, "total": found.total, "leases": found.leases})
        return
    print_table(
        ("TOPIC", "BROKER", "QUEUE", "OFFSETS", "STATE", "HELD BY", "SINCE", "UNTIL", "LEFT"),
        [
            (
                lease.topic,
                lease.broker_name,
                f"{lease.queue_id} (retries)" if lease.retry else lease.queue_id,
                offsets_text(lease.offsets),
                _state_text(lease),
                lease.client_id or lease.holder,
                _clock_text(lease.pop_timestamp),
                _clock_text(lease.visible_timestamp),
                _age_text(max(0, lease.visible_timestamp - _now_ms())),
            )
            for lease in found.leases
        ],
    )
    shown = sum(len(lease.offsets) for lease in found.leases)
    more = f", {shown} of them shown" if shown < found.total else ""
    print(f"\n{found.total} message(s) in flight{more}")


def _state_text(lease: LeaseInfo) -> str:
    if lease.order:
        return "in order"
    return "put off" if lease.delayed else "in flight"


def offsets_text(offsets: Sequence[int]) -> str:
    """`7`, `3-9` or `3-5,8,10-12`."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and offset == runs[-1][1] + 1:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _clock_text(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000):%H:%M:%S.%f}"[:-3]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# ---- modes ------------------------------------------------------------------------------------------


async def _mode_get(admin: AdminClient, args: argparse.Namespace) -> None:
    """Topics that the group consumes without a mode of their own are pulled, unless the broker says else."""
    found: list[tuple[str, SetMessageRequestModeRequestBody]] = []
    for broker, modes in (await consume_modes(admin)).items():
        found += [
            (broker, mode)
            for mode in modes
            if mode.consumer_group == args.group and args.topic in (None, mode.topic)
        ]
    if args.json:
        print_json([{"brokerName": broker, **msgspec.to_builtins(mode)} for broker, mode in found])
        return
    if not found:
        where = f"topic {args.topic}" if args.topic else "any topic"
        print(f"no mode is set for group {args.group} on {where}: it takes the brokers' default, {PULL}")
        return
    print_table(
        ("TOPIC", "BROKER", "MODE", "SHARED QUEUES"),
        [
            (mode.topic, broker, mode.mode, _share_text(mode))
            for broker, mode in sorted(found, key=lambda item: (item[1].topic, item[0]))
        ],
    )


def _share_text(mode: SetMessageRequestModeRequestBody) -> object:
    if mode.mode == PULL:
        return ""
    return mode.pop_share_queue_num if mode.pop_share_queue_num > 0 else "all"


async def _mode_set(admin: AdminClient, args: argparse.Namespace) -> None:
    brokers = await topic_masters(admin, args.topic, args.cluster)
    await set_consume_mode(admin, args.topic, args.group, args.mode, args.share, brokers=brokers)
    if args.json:
        print_json({"group": args.group, "topic": args.topic, "mode": args.mode, "brokers": sorted(brokers)})
    else:
        verb = "pops" if args.mode == "POP" else "pulls"
        print(f"group {args.group} {verb} topic {args.topic} on {', '.join(sorted(brokers))}")
