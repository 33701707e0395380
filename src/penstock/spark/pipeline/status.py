"""What the jobs of a pipeline are doing, for people and for programs."""

from __future__ import annotations

import os
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from penstock.errors import InvalidArgument

JobState = Literal["starting", "running", "waiting", "restarting", "done", "failed", "stopped"]
RATE_WINDOW_S: Final = 60.0


class JobStatus(Struct, kw_only=True):
    name: str
    job: str
    """archive, route, replay or report"""
    state: JobState = "starting"
    messages: int = 0
    """Since the runner was started."""
    per_second: float = 0.0
    """Over the last minute."""
    lag: int | None = None
    """Messages in the topics that the job has not done yet; None where that means nothing."""
    runs: int = 0
    """Batches, or reports."""
    restarts: int = 0
    error: str | None = None
    """The last one; stays after a successful restart."""
    next_at: datetime | None = None
    """When a job that waits goes on."""


class Status(Struct, kw_only=True):
    """The content of the status file."""

    pipeline: str
    pid: int
    state: Literal["running", "finished", "failed", "stopped"] = "running"
    started_at: datetime
    updated_at: datetime
    jobs: list[JobStatus]


class Rate:
    """Messages a second over the last minute, or since the start of a younger job."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, messages: int) -> None:
        self._counts.append((time.monotonic(), messages))

    def per_second(self) -> float:
        now = time.monotonic()
        while self._counts and self._counts[0][0] < now - RATE_WINDOW_S:
            self._counts.popleft()
        seconds = max(1.0, min(RATE_WINDOW_S, now - self._began))
        return round(sum(count for _, count in self._counts) / seconds, 1)


def now() -> datetime:
    return datetime.now(UTC)


def write_status(status: Status, file: Path) -> None:
    """Readers find the last status or this one, never half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(status), indent=2) + b"\n")
    os.replace(fresh, file)


def read_status(file: Path) -> Status:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Status)
    except FileNotFoundError:
        raise InvalidArgument(f"{file} does not exist: the pipeline has not been run yet") from None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{file} is not the status of a pipeline: {error}") from None
