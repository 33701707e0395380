"""`penstock topic create|list|show|delete`."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from penstock.admin import AdminClient, TopicSettings
from penstock.admin.topics import parse_perm, perm_text
from penstock.cli.output import count, print_json, print_table
from penstock.cli.verbs import add_cluster, add_verb
from penstock.errors import InvalidArgument
from penstock.wire.bodies import TopicConfig

if TYPE_CHECKING:
    from penstock.cli.verbs import Subparsers


def register(subparsers: Subparsers) -> None:
    topic = subparsers.add_parser("topic", help="create, list, show and delete topics")
    verbs = topic.add_subparsers(metavar="VERB", required=True)

    create = add_verb(verbs, "create", _create, "create a topic, or change what is given on an existing one")
    create.add_argument("name")
    create.add_argument(
        "-q", "--queues", type=count, help="read and write queues on each broker (default: 8)"
    )
    create.add_argument("--read-queues", type=count, metavar="N", help="where they differ from --queues")
    create.add_argument("--write-queues", type=count, metavar="N", help="where they differ from --queues")
    create.add_argument("--perm", type=_perm, metavar="RW", help="letters of RWX, or a number (default: RW)")
    create.add_argument(
        "--order", action=argparse.BooleanOptionalAction, help="messages of a queue stay in order"
    )
    create.add_argument(
        "-a",
        "--attribute",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set an attribute, for example message.type=FIFO; KEY= removes it",
    )
    add_cluster(create)

    lister = add_verb(verbs, "list", _list, "list topics")
    lister.add_argument("--all", action="store_true", help="system, retry and dead-letter topics, too")

    show = add_verb(verbs, "show", _show, "show settings, queues and consumer groups of a topic")
    show.add_argument("name")

    delete = add_verb(verbs, "delete", _delete, "delete a topic on all its brokers and in the name servers")
    delete.add_argument("name")
    add_cluster(delete)


def _perm(text: str) -> int:
    try:
        return parse_perm(text)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# ---- verbs ------------------------------------------------------------------------------------------


async def _create(admin: AdminClient, args: argparse.Namespace) -> None:
    settings = TopicSettings(
        read_queues=args.read_queues or args.queues,
        write_queues=args.write_queues or args.queues,
        perm=args.perm,
        order=args.order,
        attributes=_attribute_changes(args.attribute),
    )
    made = await admin.create_topic(args.name, settings, cluster=args.cluster)
    if args.json:
        print_json({"topic": args.name, "brokers": made})
    else:
        _print_configs(made)


def _attribute_changes(pairs: list[str]) -> dict[str, str]:
    changes = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidArgument(f"{pair!r} is not of the form KEY=VALUE")
        changes["+" + key if value else "-" + key] = value
    return changes


def _print_configs(configs: dict[str, TopicConfig]) -> None:
    rows = [
        (
            broker,
            config.read_queue_nums,
            config.write_queue_nums,
            perm_text(config.perm),
            "yes" if config.order else "no",
            ",".join(f"{key}={value}" for key, value in sorted(config.attributes.items())),
        )
        for broker, config in sorted(configs.items())
    ]
    print_table(("BROKER", "READ QUEUES", "WRITE QUEUES", "PERM", "ORDER", "ATTRIBUTES"), rows)


async def _list(admin: AdminClient, args: argparse.Namespace) -> None:
    topics = await admin.topics(include_system=args.all)
    if args.json:
        print_json([{"topic": topic.name, "queues": topic.queues} for topic in topics])
        return
    rows = [
        (topic.name, data.broker_name, data.read_queue_nums, data.write_queue_nums, perm_text(data.perm))
        for topic in topics
        for data in sorted(topic.queues, key=lambda data: data.broker_name)
    ]
    print_table(("TOPIC", "BROKER", "READ QUEUES", "WRITE QUEUES", "PERM"), rows)


async def _show(admin: AdminClient, args: argparse.Namespace) -> None:
    stats = await admin.topic_stats(args.name)
    groups = await admin.topic_groups(args.name)
    configs = {}
    for broker, address in (await admin.masters()).items():
        config = await admin.topic_config(address, args.name)
        if config is not None:
            configs[broker] = config
    queues = sorted(stats.offset_table.items())
    if args.json:
        print_json(
            {
                "topic": args.name,
                "brokers": configs,
                "queues": [
                    {
                        "brokerName": queue.broker_name,
                        "queueId": queue.queue_id,
                        **msgspec.to_builtins(offset),
                    }
                    for queue, offset in queues
                ],
                "consumerGroups": groups,
                "putTps": stats.topic_put_tps,
            }
        )
        return
    _print_configs(configs)
    print()
    print_table(
        ("BROKER", "QUEUE", "MIN OFFSET", "MAX OFFSET", "LAST MESSAGE"),
        [
            (
                queue.broker_name,
                queue.queue_id,
                offset.min_offset,
                offset.max_offset,
                _time_text(offset.last_update_timestamp),
            )
            for queue, offset in queues
        ],
    )
    print()
    print(f"messages per second: {stats.topic_put_tps:.2f}")
    print(f"consumer groups: {', '.join(groups) or 'none'}")


def _time_text(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000):%Y-%m-%d %H:%M:%S}" if time_ms else ""


async def _delete(admin: AdminClient, args: argparse.Namespace) -> None:
    brokers = await admin.delete_topic(args.name, cluster=args.cluster)
    if args.json:
        print_json({"topic": args.name, "deletedFrom": brokers})
    else:
        print(f"deleted {args.name} from {', '.join(brokers) or 'the name servers'}")
