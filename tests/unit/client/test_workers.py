from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.workers import Job, WorkerPool


class Work:
    """A job that notes who ran it."""

    def __init__(self, action: Callable[[], Any] = lambda: None) -> None:
        self.action = action
        self.thread = ""

    def run(self) -> None:
        self.thread = threading.current_thread().name
        self.action()

    async def run_async(self) -> None:
        self.thread = threading.current_thread().name
        result = self.action()
        if asyncio.iscoroutine(result):
            await result


def make(size: int = 3, backlog: int = 10_000, name: str = "pool") -> tuple[WorkerPool, list[list[Job]]]:
    batches: list[list[Job]] = []
    return WorkerPool(name, size, backlog, batches.append, asyncio.get_running_loop()), batches


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"{name}-")]


@pytest.mark.parametrize("is_async", [False, True])
def test_every_job_is_reported_once_on_the_loop(is_async: bool) -> None:
    async def main() -> None:
        pool, batches = make()
        jobs = [Work() for _ in range(500)]
        for job in jobs:
            assert pool.submit([job], is_async=is_async)
        assert await pool.drain(5_000) == 0
        done = [job for batch in batches for job in batch]
        assert sorted(map(id, done)) == sorted(map(id, jobs))
        assert len(batches) < 500  # they come back in batches
        pool.stop()

    asyncio.run(main())


@pytest.mark.parametrize("is_async", [False, True])
def test_no_more_jobs_run_at_once_than_the_pool_has_workers(is_async: bool) -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    def enter() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])

    def leave() -> None:
        with lock:
            running[0] -= 1

    def plain() -> None:
        enter()
        time.sleep(0.005)
        leave()

    async def waiting() -> None:
        enter()
        await asyncio.sleep(0.005)
        leave()

    async def main() -> None:
        pool, _ = make(size=3)
        for _ in range(30):
            pool.submit([Work(waiting if is_async else plain)], is_async=is_async)
        assert await pool.drain(5_000) == 0
        pool.stop()

    asyncio.run(main())
    assert most[0] == 3


def test_jobs_that_take_their_time_get_every_worker() -> None:
    met = threading.Barrier(20)

    async def main() -> None:
        pool, _ = make(size=20)
        for _ in range(40):
            pool.submit([Work(lambda: met.wait(10))], is_async=False)
        assert await pool.drain(10_000) == 0
        pool.stop()

    asyncio.run(main())
    assert not met.broken


def test_quick_jobs_do_not_wake_every_worker() -> None:
    async def main() -> None:
        pool, _ = make(size=20, name="quick")
        for _ in range(50):
            pool.submit([Work()], is_async=False)
            assert await pool.drain(5_000) == 0
        assert len(threads_of("quick")) < 5
        pool.stop()

    asyncio.run(main())


def test_a_full_pool_refuses_and_a_stopped_one_too() -> None:
    async def main() -> None:
        pool, _ = make(size=1, backlog=2)
        release = threading.Event()
        assert pool.submit([Work(release.wait), Work(), Work()], is_async=False) == 2
        assert pool.submit([Work()], is_async=False) == 0
        assert pool.outstanding == 2
        release.set()
        assert await pool.drain(5_000) == 0
        assert pool.submit([Work()], is_async=False) == 1
        await pool.drain(5_000)
        pool.stop()
        assert pool.submit([Work()], is_async=False) == 0

    asyncio.run(main())


def test_drain_says_how_many_jobs_did_not_end_in_time() -> None:
    async def main() -> None:
        pool, _ = make(size=1)
        release = threading.Event()
        pool.submit([Work(release.wait)], is_async=False)
        assert await pool.drain(30) == 1
        release.set()
        assert await pool.drain(5_000) == 0
        pool.stop()

    asyncio.run(main())


def test_jobs_given_while_the_last_tasks_end_are_not_forgotten() -> None:
    """All tasks end in one turn of the loop; a job that comes in that turn needs a new one."""

    async def main() -> None:
        pool, batches = make(size=2)
        for _ in range(200):
            for _ in range(2):
                pool.submit([Work()], is_async=True)
            await asyncio.sleep(0)
        assert await pool.drain(1_000) == 0
        assert sum(map(len, batches)) == 400

    asyncio.run(main())


def test_a_coroutine_that_never_waits_does_not_starve_the_loop() -> None:
    async def main() -> None:
        pool, _ = make(size=1)
        turns = [0]

        async def tick() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        ticker = asyncio.ensure_future(tick())
        for _ in range(1_000):
            pool.submit([Work()], is_async=True)
        await pool.drain(5_000)
        ticker.cancel()
        assert turns[0] >= 10

    asyncio.run(main())


def test_an_error_in_handling_results_does_not_stop_the_pool(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        def broken(batch: list[Job]) -> None:
            raise RuntimeError("a bug")

        pool = WorkerPool("pool", 1, 10, broken, asyncio.get_running_loop())
        pool.submit([Work()], is_async=False)
        assert await pool.drain(5_000) == 0
        pool.submit([Work()], is_async=False)
        assert await pool.drain(5_000) == 0
        pool.stop()

    asyncio.run(main())
    assert "could not be handled" in caplog.text


def test_a_smaller_pool_lets_its_surplus_threads_go() -> None:
    async def main() -> list[threading.Thread]:
        pool, _ = make(size=4, name="shrinking")
        for _ in range(20):
            pool.submit([Work(lambda: time.sleep(0.002))], is_async=False)
        await pool.drain(5_000)
        threads = threads_of("shrinking")
        assert len(threads) == 4
        pool.resize(1)
        for _ in range(5):
            pool.submit([Work()], is_async=False)
        await pool.drain(5_000)
        for _ in range(500):
            alive = [thread for thread in threads if thread.is_alive()]
            if len(alive) == 1:
                break
            await asyncio.sleep(0.01)
        pool.stop()
        return alive

    assert len(asyncio.run(main())) == 1


def test_a_listener_that_outlives_its_loop_ends_quietly() -> None:
    begun, release = threading.Event(), threading.Event()

    async def main() -> list[threading.Thread]:
        pool, _ = make(size=1, name="outliving")
        pool.submit([Work(lambda: (begun.set(), release.wait()))], is_async=False)
        await asyncio.to_thread(begun.wait, 10)
        return threads_of("outliving")

    threads = asyncio.run(main())
    release.set()
    threads[0].join(5)
    assert not threads[0].is_alive()
