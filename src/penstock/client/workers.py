"""Where listeners run: plain functions on threads, coroutines as a bounded number of tasks.

Jobs wait in a deque. One worker is woken for the first of them and takes what it can get; only if some
still wait a moment later, because listeners take their time, more are woken, twice as many each time. So
quick listeners cost no wake-up for each message, and slow ones have all workers within a few milliseconds.

Results come back to the event loop in batches: the first of a batch wakes the loop, the others ride along.
There is no future, task or lock for a single message.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol, cast

from penstock.errors import WrongState

log = logging.getLogger("penstock.client")

ASYNC_RUN = 64
"""Jobs a task does before it lets the loop breathe: a coroutine that never waits must not starve pulls."""
SPREAD_S = 0.001
"""How long jobs wait for the workers that are awake before more are woken."""


class JobService(Protocol):
    def finished(self, jobs: list[Job]) -> None:
        """What its jobs found out, on the event loop."""


class Job(Protocol):
    def run(self) -> None:
        """Calls plain user code; never raises."""

    async def run_async(self) -> None:
        """Calls a coroutine; raises only when it is cancelled."""


class ServedJob(Job, Protocol):
    @property
    def service(self) -> JobService: ...


class WorkerPool:
    """Runs jobs and hands them, done, to `finished` in batches on the event loop."""

    def __init__(
        self,
        name: str,
        size: int,
        backlog: int,
        finished: Callable[[list[Job]], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._name = name
        self._size = size
        self._backlog = backlog
        self._finished = finished
        self._loop = loop
        self._outstanding = 0
        self._stopped = False
        self._idle: asyncio.Event | None = None
        self._done: deque[Job] = deque()
        self._drain_due = False
        self._spread_due = False
        self._wake_next = 1
        # threads
        self._wake_due = False
        self._jobs: deque[Job] = deque()
        self._threads = 0
        self._leave: deque[None] = deque()
        """As many entries as threads are to end."""
        self._asleep: deque[threading.Lock] = deque()
        self._waking = False
        """A thread was woken or started and has not come to take a job yet."""
        # tasks
        self._waiting: deque[Job] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def size(self) -> int:
        return self._size

    def resize(self, size: int) -> None:
        """More workers come with the next jobs; surplus threads leave when they are next free."""
        self._size = size
        self._dismiss(self._threads - size)

    @property
    def outstanding(self) -> int:
        """Jobs given and not yet reported as done."""
        return self._outstanding

    def submit(self, jobs: Sequence[Job], *, is_async: bool) -> int:
        """How many were taken: not all when the pool is full, none when it is stopped. The caller keeps the
        others."""
        room = 0 if self._stopped else self._backlog - self._outstanding
        if room < len(jobs):
            jobs = jobs[: max(0, room)]
        if not jobs:
            return 0
        self._outstanding += len(jobs)
        if is_async:
            self._waiting += jobs
            if not self._tasks:
                self._add_task()
        else:
            self._jobs += jobs
            if not self._wake_due:
                self._wake_due = True
                self._loop.call_soon(self._wake_first)
        if not self._spread_due:
            self._spread_due = True
            self._loop.call_later(SPREAD_S, self._spread)
        return len(jobs)

    def _spread(self) -> None:
        """Wakes more workers while jobs wait longer than those that are awake need for them."""
        if not (self._jobs or self._waiting):
            self._spread_due = False
            self._wake_next = 1
            return
        if not self._waking:
            for _ in range(min(self._wake_next, len(self._jobs))):
                self._wake()
        for _ in range(min(self._wake_next, len(self._waiting), self._size - len(self._tasks))):
            self._add_task()
        self._wake_next *= 2
        self._loop.call_later(SPREAD_S, self._spread)

    # ---- threads ------------------------------------------------------------------------------------

    def _wake_first(self) -> None:
        """Not before the loop has done what it has to do now: two threads that both want to run slow each
        other down, and a request that the loop is about to write keeps the broker busy meanwhile."""
        self._wake_due = False
        if self._jobs and not self._waking:
            self._wake()

    def _wake(self) -> None:
        if not self._rouse() and self._threads < self._size:
            self._waking = True
            self._threads += 1
            name = f"{self._name}-{self._threads}"
            threading.Thread(target=self._run_thread, name=name, daemon=True).start()

    def _rouse(self) -> bool:
        try:
            bed = self._asleep.pop()  # the one that fell asleep last is the warmest
        except IndexError:
            return False
        self._waking = True
        bed.release()
        return True

    def _dismiss(self, count: int) -> None:
        for _ in range(count):
            self._threads -= 1
            self._leave.append(None)
            self._rouse()

    def _run_thread(self) -> None:
        jobs, done, leave = self._jobs, self._done, self._leave
        bed = threading.Lock()
        bed.acquire()
        self._waking = False
        while not leave or not self._leaves():
            try:
                job = jobs.popleft()
            except IndexError:
                self._sleep(bed)
                continue
            job.run()
            done.append(job)
            if not self._drain_due:
                self._drain_due = True
                try:
                    self._loop.call_soon_threadsafe(self._drain)
                except RuntimeError:  # the loop was closed under a listener that outlived it
                    return

    def _leaves(self) -> bool:
        try:
            self._leave.pop()
        except IndexError:
            return False
        return True

    def _sleep(self, bed: threading.Lock) -> None:
        asleep = self._asleep
        asleep.append(bed)
        if self._jobs or self._leave:  # came before this thread could be seen asleep: nobody was woken
            try:
                asleep.remove(bed)
                return
            except ValueError:  # woken just now
                pass
        bed.acquire()
        self._waking = False

    def _drain(self) -> None:
        # Cleared before the results are taken: a worker that still saw it set appended before this line.
        self._drain_due = False
        done = self._done
        batch = [done.popleft() for _ in range(len(done))]
        self._report(batch)

    # ---- tasks --------------------------------------------------------------------------------------

    def _add_task(self) -> None:
        self._tasks.add(self._loop.create_task(self._run_tasks(), name=self._name))

    async def _run_tasks(self) -> None:
        waiting, done = self._waiting, self._done
        count = 0
        try:
            while waiting:
                job = waiting.popleft()
                try:
                    await job.run_async()
                except asyncio.CancelledError:
                    self._outstanding -= 1
                    raise
                done.append(job)
                if not self._drain_due:
                    self._drain_due = True
                    self._loop.call_soon(self._drain)
                count += 1
                if count % ASYNC_RUN == 0:
                    await asyncio.sleep(0)
        finally:
            # Here and not in a callback: until the callback ran, a new job would count on this task.
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    # ---- both ---------------------------------------------------------------------------------------

    def _report(self, batch: list[Job]) -> None:
        self._outstanding -= len(batch)
        try:
            self._finished(batch)
        except Exception:
            log.exception("%s: results of %d listener calls could not be handled", self._name, len(batch))
        if self._idle is not None and not self._outstanding:
            self._idle.set()

    def refuse_self_wait(self) -> None:
        """Raises if the caller is one of the jobs."""
        if asyncio.current_task() in self._tasks:
            raise WrongState(
                "stop() was awaited by a listener, so it would wait for itself; "
                "start it as a task of its own: asyncio.create_task(consumer.stop())"
            )

    async def drain(self, timeout_ms: int) -> int:
        """Waits for everything submitted; the number of jobs that were not done in time."""
        if self._outstanding:
            self._idle = asyncio.Event()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._idle.wait()
            except TimeoutError:
                pass
        return self._outstanding

    def stop(self) -> None:
        """No more jobs. Coroutines are cancelled; a plain function that hangs keeps its daemon thread."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        self._dismiss(self._threads)


def report_to_services(jobs: list[Job]) -> None:
    """For a pool that several services share: each learns of its own jobs."""
    for service, done in groupby(cast("list[ServedJob]", jobs), attrgetter("service")):
        service.finished(list(done))
