"""One thread for work that may wait on a disk, with results handed back to the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger("penstock.runtime")

Work = Callable[[], None]
Done = Callable[[OSError | None], None]


class Worker:
    """Runs work in the order of submission. Make and use it on the loop's thread.

    A hand-over costs one queue put and one wake-up of the loop: an executor's futures cost several times
    more, and group commit does one hand-over for every write.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[Work, Done | None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work, done: Done | None = None) -> None:
        """Runs `work` in the thread, then `done(error)` on the loop."""
        self._queue.put((work, done))

    def close(self) -> None:
        """Finishes what was submitted; waits for it."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            error = None
            try:
                work()
            except OSError as problem:
                error = problem
            except Exception:
                log.exception("background work failed")
            if done is not None:
                try:
                    self._loop.call_soon_threadsafe(done, error)
                except RuntimeError:  # the loop was closed: the process ends, nobody waits for the result
                    return
