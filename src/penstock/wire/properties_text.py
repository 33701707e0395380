"""Settings as text: the `key=value` lines that Java's tools read and write (java.util.Properties)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

_LINE: Final = re.compile(r"((?:\\.|[^\s=:\\])*)\s*(?:[=:]\s*)?(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Comments, continued lines and escapes as Java reads them; a later line for a key wins."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        if match is not None:
            properties[_unescape(match[1])] = _unescape(match[2])
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """One line for each key, sorted, unescaped: the form in which servers show their settings."""
    return "".join(f"{key}={properties[key]}\n" for key in sorted(properties))


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for line in re.split(r"\r\n|\n|\r", text):
        line = line.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        pending += line
        backslashes = len(pending) - len(pending.rstrip("\\"))
        if backslashes % 2:
            pending = pending[:-1]
        else:
            yield pending
            pending = ""
    if pending:
        yield pending


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    code, letter = match.groups()
    return chr(int(code, 16)) if code else _LETTERS.get(letter, letter)
