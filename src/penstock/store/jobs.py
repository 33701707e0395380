"""Work that may run in a worker thread, and what its end changes back on the store's own thread."""

from __future__ import annotations

from collections.abc import Callable


class Job:
    """Calling it does the work; it never raises, because its error is the store's to handle."""

    def __init__(self, work: Callable[[], None], finish: Callable[[OSError | None], None]) -> None:
        self._work = work
        self._finish = finish
        self._error: OSError | None = None
        self.done = False

    def __call__(self) -> None:
        try:
            self._work()
        except OSError as error:
            self._error = error
        finally:
            self.done = True

    def finish(self) -> None:
        self._finish(self._error)
