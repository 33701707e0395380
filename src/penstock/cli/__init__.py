"""The command line: `penstock NOUN VERB`. Each module here adds its own commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from penstock.cli import messages, serve, topics
from penstock.errors import PenstockError

EXAMPLES = """examples:
  penstock serve --data ./data                   a name server and a broker, until Ctrl-C
  penstock topic create orders --queues 8
  penstock send orders '{"id": 17}' --tag paid --key 17
  penstock tail orders --from first

The name server's address, where it is not given, is NAMESRV_ADDR or 127.0.0.1:9876.
"""


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="penstock",
        description="RocketMQ for Python and Spark people.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"penstock {version('penstock')}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve.register(commands)
    topics.register(commands)
    messages.register(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. An error of ours is one line, not a traceback; Ctrl-C ends quietly."""
    options = parser().parse_args(argv)
    try:
        return int(options.run(options))
    except (PenstockError, OSError) as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
