"""One job while it runs: a streaming query, or a batch job in a thread. The runner looks after both alike."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.option_parsing import duration_ms
from penstock.spark.pipeline.config import Archive, Pipeline, Replay, Report, Route
from penstock.spark.pipeline.progress import Batch, Listener
from penstock.spark.pipeline.status import JobStatus, Rate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LAST_EVENTS_S: Final = 10.0
"""How long the events of a query that has ended may take to arrive."""


SOURCE_START_S: Final = 15.0


class Worker(ABC):
    """A job that can be started again after it has failed."""

    def __init__(self, pipeline: Pipeline, name: str, kind: str) -> None:
        self.name = name
        self.status = JobStatus(name=name, job=kind)
        self._pipeline = pipeline
        self._rate = Rate()

    @abstractmethod
    def start(self) -> None:
        """Begins to run; raises what is wrong with the job."""

    @abstractmethod
    def poll(self) -> bool:
        """True when the job has done all it had to do; raises its failure."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it where it is: what it has not finished is done again by the next run."""

    def count(self, messages: int) -> None:
        self.status.runs += 1
        self.status.messages += messages
        self._rate.add(messages)

    def refresh(self) -> None:
        self.status.per_second = self._rate.per_second()


class StreamWorker(Worker):
    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        name: str,
        job: Archive | Route,
        listener: Listener,
        *,
        once: bool,
    ) -> None:
        super().__init__(pipeline, name, "archive" if isinstance(job, Archive) else "route")
        self._spark = spark
        self._job = job
        self._once = once
        self._query: StreamingQuery | None = None
        self._run_id: str | None = None
        self._ended_at: float | None = None
        self._all_told = threading.Event()
        listener.watch(self._query_name, self._on_event)

    @property
    def _query_name(self) -> str:
        return f"{self._pipeline.name}.{self.name}"

    def plan(self) -> DataStreamWriter:
        from penstock.spark.pipeline.jobs import archive, route

        if isinstance(self._job, Archive):
            return archive.start(self._spark, self._pipeline, self.name, self._job)
        return route.start(self._spark, self._pipeline, self.name, self._job)

    def start(self) -> None:
        self.stop()
        writer = self.plan().queryName(self._query_name)
        writer = writer.option("checkpointLocation", f"{self._pipeline.state_path}/{self.name}/checkpoint")
        if self._once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{duration_ms(self._job.every)} milliseconds")
        self._all_told.clear()
        self._ended_at = None
        self._query = writer.start()
        self._run_id = str(self._query.runId)
        self._wait_for_source(self._query)

    def _wait_for_source(self, query: StreamingQuery) -> None:
        """Spark starts a Python process for the source and gives it ten seconds: one after the other, then,
        since several at once need longer on a machine that has other work."""
        deadline = time.monotonic() + SOURCE_START_S
        while time.monotonic() < deadline and query.isActive:
            if query.status["message"] != "Initializing sources":
                return
            time.sleep(0.05)

    def poll(self) -> bool:
        assert self._query is not None
        if self._query.isActive:
            return False
        failure = self._query.exception()
        if failure is not None:
            raise failure
        self._ended_at = self._ended_at or time.monotonic()
        return self._all_told.is_set() or time.monotonic() > self._ended_at + LAST_EVENTS_S

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def _on_event(self, run_id: str, batch: Batch | None) -> None:
        if batch is not None:
            if batch.done:
                self.count(batch.rows)
            if batch.lag is not None:
                self.status.lag = batch.lag
        elif self._run_id in (None, run_id):
            self._all_told.set()


class BatchWorker(Worker):
    """Runs a function once, or again and again."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        name: str,
        kind: str,
        work: Callable[[], int],
        *,
        every_ms: int | None,
    ) -> None:
        super().__init__(pipeline, name, kind)
        self._spark = spark
        self._work = work
        self._every_ms = every_ms
        self._began_at = 0.0
        self._running: Future[int] | None = None

    def start(self) -> None:
        self._began_at = time.time()
        self.status.state, self.status.next_at = "running", None
        running: Future[int] = Future()
        self._running = running

        def work() -> None:
            try:
                _activate(self._spark)
                running.set_result(self._work())
            except BaseException as error:
                running.set_exception(error)

        threading.Thread(target=work, name=f"penstock-{self.name}", daemon=True).start()

    def poll(self) -> bool:
        if self._running is not None:
            if not self._running.done():
                return False
            finished, self._running = self._running, None
            self.count(finished.result())
        if self._every_ms is None:
            return True
        next_at = self._began_at + self._every_ms / 1000
        if time.time() >= next_at:
            self.start()
        else:
            self.status.state = "waiting"
            self.status.next_at = datetime.fromtimestamp(next_at, UTC)
        return False

    def stop(self) -> None:
        """The session ends the Spark jobs of the thread, and with them the thread."""


def _activate(spark: SparkSession) -> None:
    """Spark looks for formats written in Python in the active session, and a new thread has none."""
    jvm: Any = spark._jvm
    spark._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)


def make_worker(
    spark: SparkSession, pipeline: Pipeline, name: str, listener: Listener, *, once: bool
) -> Worker:
    job = pipeline.jobs[name]
    if isinstance(job, Archive | Route):
        return StreamWorker(spark, pipeline, name, job, listener, once=once)
    if isinstance(job, Replay):
        from penstock.spark.pipeline.jobs import replay

        return BatchWorker(
            spark, pipeline, name, "replay", partial(replay.run, spark, pipeline, name, job), every_ms=None
        )
    return _report_worker(spark, pipeline, name, job, once=once)


def _report_worker(
    spark: SparkSession, pipeline: Pipeline, name: str, job: Report, *, once: bool
) -> BatchWorker:
    from penstock.spark.pipeline.jobs import report

    every_ms = None if once else duration_ms(job.every)
    work = partial(report.run, spark, pipeline, job)
    return BatchWorker(spark, pipeline, name, "report", work, every_ms=every_ms)
