"""What commands that ask servers have in common: where the name server is, and a client to ask with."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from penstock.admin import AdminClient
from penstock.cli.output import add_json, add_name_server
from penstock.transport.loop import run

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Subparsers = _SubParsersAction[argparse.ArgumentParser]

Work = Callable[[AdminClient, argparse.Namespace], Coroutine[Any, Any, None]]


def add_verb(verbs: Subparsers, name: str, work: Work, text: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text)
    add_name_server(parser)
    add_json(parser)
    run_with_client(parser, work)
    return parser


def run_with_client(parser: argparse.ArgumentParser, work: Work) -> None:
    parser.set_defaults(run=lambda args: run(_with_client(work, args)))


async def _with_client(work: Work, args: argparse.Namespace) -> int:
    async with AdminClient(args.name_server) as admin:
        await work(admin, args)
    return 0


def add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--cluster", help="only on the brokers of this cluster (default: all)")
