"""A running pipeline on a terminal: a table that stays in its place, or lines where there is no terminal."""

from __future__ import annotations

import shutil
import time
from datetime import datetime
from typing import TYPE_CHECKING, Final, TextIO

from penstock.cli.output import table_lines

if TYPE_CHECKING:
    from penstock.spark.pipeline.config import Pipeline
    from penstock.spark.pipeline.status import JobStatus, Status

LINE_INTERVAL_S: Final = 10.0
"""Without a terminal: how often a job that goes on as before is worth a line."""
_UP: Final = "\x1b[{}A"
_CLEAR_BELOW: Final = "\x1b[J"
_HEADERS: Final = ("job", "kind", "state", "messages", "per s", "lag", "runs", "restarts")


class Display:
    def __init__(self, pipeline: Pipeline, out: TextIO) -> None:
        self._pipeline = pipeline
        self._out = out
        self._live = out.isatty()
        self._shown_lines = 0
        self._shown: dict[str, tuple[object, ...]] = {}
        self._shown_at: dict[str, float] = {}
        jobs = len(pipeline.jobs)
        self._print(
            f"{pipeline.name}: {jobs} job{'s' * (jobs != 1)} on {pipeline.name_server}, "
            f"status in {pipeline.status_file}; starting Spark"
        )

    def show(self, status: Status) -> None:
        if self._live:
            self._redraw(status)
        else:
            self._print_news(status)

    def end(self, status: Status) -> None:
        if self._live:
            self._redraw(status)
        else:
            print_status(status, self._out)
        self._print(f"{status.pipeline}: {status.state}")

    def _redraw(self, status: Status) -> None:
        width = shutil.get_terminal_size().columns
        lines = [line[: width - 1] for line in status_lines(status)]
        up = _UP.format(self._shown_lines) if self._shown_lines else ""
        self._out.write(up + _CLEAR_BELOW + "\n".join(lines) + "\n")
        self._out.flush()
        self._shown_lines = len(lines)

    def _print_news(self, status: Status) -> None:
        now = time.monotonic()
        for job in status.jobs:
            changed = (job.state, job.restarts, job.error)
            before = self._shown.get(job.name)
            due = now >= self._shown_at.get(job.name, 0.0) + LINE_INTERVAL_S
            if before is not None and (before[:-1] == changed and not (due and before[-1] != job.messages)):
                continue
            self._shown[job.name], self._shown_at[job.name] = (*changed, job.messages), now
            lag = "" if job.lag is None else f", lag {job.lag:,}"
            note = _note(job)
            self._print(
                f"{job.name}: {job.state}, {job.messages:,} messages{lag}{f' ({note})' if note else ''}"
            )

    def _print(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()


def print_status(status: Status, out: TextIO) -> None:
    out.write("\n".join(status_lines(status)) + "\n")
    out.flush()


def status_lines(status: Status) -> list[str]:
    seconds = int((status.updated_at - status.started_at).total_seconds())
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    rows = [
        (job.name, job.job, job.state, job.messages, job.per_second, job.lag, job.runs, job.restarts)
        for job in status.jobs
    ]
    notes = [f"  {job.name}: {note}" for job in status.jobs if (note := _note(job))]
    return [f"{status.pipeline}  {status.state} {clock}", *table_lines(_HEADERS, rows), *notes]


def _note(job: JobStatus) -> str:
    goes_on = f"next at {_time(job.next_at)}" if job.next_at is not None else ""
    error = f"last error: {job.error}" if job.error is not None else ""
    return "; ".join(filter(None, (error, goes_on)))


def _time(moment: datetime) -> str:
    return moment.astimezone().strftime("%H:%M:%S")
