"""The one line of a Spark failure that says what went wrong.

Spark wraps an error of ours, or of a user's function, in tracebacks of two languages.
"""

from __future__ import annotations

import re
from typing import Final

_PYTHON_ERROR: Final = re.compile(r"^[A-Za-z_][\w.]*(?:: (?P<text>.+))?$")
_SPARK_NOISE: Final = (
    re.compile(r"^\s*\[STREAM_FAILED\] Query \[.*?\] terminated with exception:\s*"),
    re.compile(r"^An error occurred while calling \S+\n: (?:[\w.$]+: )?"),
    re.compile(r"\s*SQLSTATE: \w+"),
)


def reason(error: object) -> str:
    """Of a traceback its last error, else the first line of the text. Never empty."""
    text = str(error)
    _, found, traceback = text.rpartition("Traceback (most recent call last):")
    if found:
        # A traceback ends with the first line that is not indented: the error itself.
        for line in traceback.splitlines()[1:]:
            if line and not line[0].isspace():
                return _python_error(line)
    for noise in _SPARK_NOISE:
        text = noise.sub("", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(";") if lines else type(error).__name__


def _python_error(line: str) -> str:
    line = _SPARK_NOISE[-1].sub("", line).strip()
    match = _PYTHON_ERROR.match(line)
    if match is None or match["text"] is None:
        return line
    # Our own texts say it all; the class of another error is half of its message.
    return match["text"] if line.startswith("penstock.") else line
