"""The command line: `penstock NOUN VERB`. Each module here adds its own commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from penstock import __version__
from penstock.errors import NoNameServer, PenstockError

HOMES: Final = {
    "serve": "serve",
    "namesrv": "serve",
    "broker": "serve",
    "topic": "topics",
    "group": "groups",
    "mqadmin": "mqadmin",
    "send": "messages",
    "tail": "messages",
    "sql": "sql",
    "pipeline": "pipeline",
}
"""Module of each command: only that of the command at hand is loaded, so that each is quick."""

EXAMPLES = """examples:
  penstock serve --data ./data                   a name server and a broker, until Ctrl-C
  penstock topic create orders --queues 8
  penstock send orders '{"id": 17}' --tag paid --key 17
  penstock tail orders --from first
  penstock group mode set billing orders POP
  penstock group show billing
  penstock sql "SELECT tags, count(*) FROM orders GROUP BY tags"
  penstock pipeline run orders.toml

The name server's address, where it is not given, is NAMESRV_ADDR or 127.0.0.1:9876.
"""

NO_NAME_SERVER_HINT: Final = "start one with `penstock serve`, or say where it is with -n or NAMESRV_ADDR"
BROKEN_PIPE_EXIT: Final = 128 + 13
"""As a shell reports it for a program that SIGPIPE ended."""


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """Of one command, or of all."""
    root = argparse.ArgumentParser(
        prog="penstock",
        description="RocketMQ for Python and Spark people.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    homes = [HOMES[command]] if command in HOMES else dict.fromkeys(HOMES.values())
    for home in homes:
        import_module(f"penstock.cli.{home}").register(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. An error of ours is one line, not a traceback; Ctrl-C ends quietly."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        options = parser(arguments[0] if arguments else None).parse_args(arguments)
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except NoNameServer as error:
        print(f"penstock: {error}; {NO_NAME_SERVER_HINT}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # the reader of our output, such as `head`, has enough; what is still buffered has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE_EXIT
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"penstock: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
