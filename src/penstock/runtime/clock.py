"""The wall clock, which only the runtime reads."""

from __future__ import annotations

import time
from collections.abc import Callable

source: Callable[[], int] = time.time_ns
"""Nanoseconds since 1970; a simulation puts its own clock here."""


def now_ms() -> int:
    return source() // 1_000_000
