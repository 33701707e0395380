"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import os
import sys
import unicodedata
from collections.abc import Sequence

import msgspec

DEFAULT_NAME_SERVER = "127.0.0.1:9876"


def add_name_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--name-server",
        metavar="HOST:PORT",
        default=os.environ.get("NAMESRV_ADDR") or DEFAULT_NAME_SERVER,
        help="name servers, separated by ';' (default: NAMESRV_ADDR, else %(default)s)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def count(text: str) -> int:
    """Type of an argument that counts something."""
    if not text.isdecimal() or not (value := int(text)):
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is needed, not {text!r}")
    return value


def print_json(value: object) -> None:
    sys.stdout.write(
        msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2).decode() + "\n"
    )


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    for line in table_lines(headers, rows):
        print(line)


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns as wide as their content; numbers to the right."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(headers, *texts, strict=True)]
    right = [
        bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        for index in range(len(headers))
    ]
    lines = []
    for line in [list(headers), *texts]:
        cells = [
            " " * (width - _width(text)) + text if to_right else text + " " * (width - _width(text))
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _cell(value: object) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else "" if value is None else str(value)
    return "".join(character if character.isprintable() else "?" for character in text)


def _width(text: str) -> int:
    """Columns on a terminal: wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
