"""The runner: starts the jobs, again those that fail, says how they are doing, ends them in good order."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidArgument, PenstockError
from penstock.spark.failures import reason
from penstock.spark.pipeline.config import Archive, Pipeline, Replay, Report, Route
from penstock.spark.pipeline.progress import Listener
from penstock.spark.pipeline.status import Status, now, write_status
from penstock.spark.pipeline.worker import StreamWorker, Worker, make_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.pipeline")

TICK_S: Final = 0.5
STATUS_INTERVAL_S: Final = 1.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
ATTEMPTS_ONCE: Final = 4
"""With --once a job that fails as often has failed for good: somebody waits for the end."""

_PHASES_ONCE: Final = ((Archive, Route), (Replay,), (Report,))
"""With --once later jobs see what earlier ones have done: replays the archives, reports everything."""


@dataclass(slots=True)
class _Care:
    """What the runner knows of a job."""

    worker: Worker
    failures: int = 0
    """In a row, without a finished batch or report between them."""
    runs_seen: int = 0
    retry_at: float | None = None
    over: bool = False


class Runner:
    """`run` lasts until everything is done (`once`) or `stop` is called."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        *,
        once: bool = False,
        on_change: Callable[[Status], None] = lambda status: None,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._once = once
        self._on_change = on_change
        self._stopping = threading.Event()
        self._listener = Listener()
        cares = [
            _Care(make_worker(spark, pipeline, name, self._listener, once=once)) for name in pipeline.jobs
        ]
        self._cares = {care.worker.name: care for care in cares}
        began = now()
        self.status = Status(
            pipeline=pipeline.name,
            pid=os.getpid(),
            started_at=began,
            updated_at=began,
            jobs=[care.worker.status for care in cares],
        )
        self._written_at = 0.0

    def stop(self) -> None:
        """May be called from a signal handler or another thread."""
        self._stopping.set()

    def run(self) -> bool:
        """True unless a job has failed for good. Raises for a mistake in the file, before anything runs."""
        self._check_plans()
        self._spark.streams.addListener(self._listener)
        try:
            for phase in self._phases():
                self._run_phase(phase)
                if self._stopping.is_set():
                    break
        finally:
            self._end()
        return self.status.state != "failed"

    def _check_plans(self) -> None:
        for care in self._cares.values():
            if isinstance(care.worker, StreamWorker):
                try:
                    care.worker.plan()
                except PenstockError as error:
                    raise InvalidArgument(f"jobs.{care.worker.name}: {error}") from error

    def _phases(self) -> list[list[_Care]]:
        cares = list(self._cares.values())
        if not self._once:
            return [cares]
        jobs = self._pipeline.jobs
        phases = [
            [care for care in cares if isinstance(jobs[care.worker.name], kinds)] for kinds in _PHASES_ONCE
        ]
        return [phase for phase in phases if phase]

    def _run_phase(self, cares: list[_Care]) -> None:
        for care in cares:
            self._attempt(care, self._begin)
        while not self._stopping.is_set():
            for care in cares:
                if not care.over:
                    self._look_after(care)
            self._tell()
            if all(care.over for care in cares):
                return
            self._stopping.wait(TICK_S)

    def _look_after(self, care: _Care) -> None:
        if care.retry_at is None:
            self._attempt(care, self._poll)
        elif time.monotonic() >= care.retry_at:
            care.retry_at = None
            care.worker.status.restarts += 1
            self._attempt(care, self._begin)

    def _begin(self, care: _Care) -> None:
        care.worker.status.next_at = None
        care.worker.start()
        care.worker.status.state = "running"

    def _poll(self, care: _Care) -> None:
        status = care.worker.status
        if care.worker.poll():
            care.over = True
            status.state = "done"
        if status.runs > care.runs_seen:
            care.runs_seen, care.failures = status.runs, 0

    def _attempt(self, care: _Care, step: Callable[[_Care], None]) -> None:
        try:
            step(care)
        except Exception as error:  # Spark, the lake libraries and users' functions may raise anything
            log.debug("job %s", care.worker.name, exc_info=True)
            self._failed(care, reason(error))

    def _failed(self, care: _Care, text: str) -> None:
        if self._stopping.is_set():
            return  # what is being stopped may say so in many ways
        status = care.worker.status
        status.error = text
        care.failures += 1
        if self._once and care.failures >= ATTEMPTS_ONCE:
            care.over, status.state = True, "failed"
            log.error("job %s has failed %d times: %s", care.worker.name, care.failures, text)
            return
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (care.failures - 1))
        care.retry_at = time.monotonic() + pause_s
        status.state = "restarting"
        status.next_at = datetime.fromtimestamp(time.time() + pause_s, UTC)
        log.warning("job %s failed and is started again in %.0f s: %s", care.worker.name, pause_s, text)

    def _end(self) -> None:
        for care in self._cares.values():
            if not care.over:
                care.worker.stop()
                care.worker.status.state = "stopped"
        self._spark.streams.removeListener(self._listener)
        failed = any(care.worker.status.state == "failed" for care in self._cares.values())
        self.status.state = "failed" if failed else "stopped" if self._stopping.is_set() else "finished"
        self._tell(at_once=True)

    def _tell(self, *, at_once: bool = False) -> None:
        if not at_once and time.monotonic() < self._written_at + STATUS_INTERVAL_S:
            return
        for care in self._cares.values():
            care.worker.refresh()
        self._written_at = time.monotonic()
        self.status.updated_at = now()
        write_status(self.status, self._pipeline.status_file)
        self._on_change(self.status)
