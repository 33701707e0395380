"""`penstock mqadmin COMMAND`: Apache's administration commands, under their names and with their options.

A command is an entry in COMMANDS; the rest of the file is those commands.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.admin import AdminClient, set_consume_mode
from penstock.admin.modes import POP, PULL
from penstock.cli.output import DEFAULT_NAME_SERVER
from penstock.cli.verbs import Work, run_with_client
from penstock.errors import PenstockError, ServerError

if TYPE_CHECKING:
    from penstock.cli.verbs import Subparsers


@dataclass(frozen=True, slots=True)
class MqadminCommand:
    text: str
    options: Callable[[argparse.ArgumentParser], None]
    work: Work


def register(subparsers: Subparsers) -> None:
    mqadmin = subparsers.add_parser("mqadmin", help="Apache's mqadmin commands, with Apache's options")
    commands = mqadmin.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        parser = commands.add_parser(name, help=command.text, description=command.text)
        _add_namesrv(parser)
        command.options(parser)
        run_with_client(parser, command.work)


def _add_namesrv(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--namesrvAddr",
        dest="name_server",
        metavar="HOST:PORT",
        default=os.environ.get("NAMESRV_ADDR") or DEFAULT_NAME_SERVER,
        help="name servers, separated by ';' (default: NAMESRV_ADDR, else %(default)s)",
    )


def add_broker_or_cluster(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-b", "--brokerAddr", metavar="HOST:PORT", help="on this broker")
    where.add_argument("-c", "--clusterName", help="on every master of this cluster")


async def chosen_brokers(admin: AdminClient, args: argparse.Namespace) -> dict[str, str]:
    """name → address of what -b or -c says."""
    if args.brokerAddr:
        return {args.brokerAddr: args.brokerAddr}
    return await admin.masters(args.clusterName.strip())


# ---- setConsumeMode ---------------------------------------------------------------------------------


def _set_consume_mode_options(parser: argparse.ArgumentParser) -> None:
    add_broker_or_cluster(parser)
    parser.add_argument("-t", "--topicName", required=True)
    parser.add_argument("-g", "--groupName", required=True)
    parser.add_argument("-m", "--mode", required=True, type=str.upper, choices=(PULL, POP))
    parser.add_argument("-q", "--popShareQueueNum", type=int, default=0, help="default: 0, all queues")


async def _set_consume_mode(admin: AdminClient, args: argparse.Namespace) -> None:
    """On every broker that can; one that cannot is told of at the end."""
    failed: list[PenstockError] = []
    for name, address in (await chosen_brokers(admin, args)).items():
        try:
            await set_consume_mode(
                admin,
                args.topicName,
                args.groupName,
                args.mode,
                args.popShareQueueNum,
                brokers={name: address},
            )
        except ServerError as error:
            failed.append(error)
        else:
            print(f"set consume mode to {address} success.")
    if failed:
        raise failed[0]
    print(
        f"topic[{args.topicName}] group[{args.groupName}] consume mode[{args.mode}] "
        f"popShareQueueNum[{args.popShareQueueNum}]"
    )


COMMANDS: Final[dict[str, MqadminCommand]] = {
    "setConsumeMode": MqadminCommand(
        "let a group pull or pop a topic", _set_consume_mode_options, _set_consume_mode
    ),
}
