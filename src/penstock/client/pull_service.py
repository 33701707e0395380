"""The pull service: takes pull requests one after the other and survives whatever they do.

Each assigned queue has exactly one pull request. It is put back when its pull is answered, at once or after
a delay, so a queue never has two pulls under way.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.client.process_queue import ProcessQueue
from penstock.message.queue import MessageQueue

if TYPE_CHECKING:
    from penstock.client.instance import ClientInstance

log = logging.getLogger("penstock.client")


class PullRequest:
    __slots__ = ("group", "next_offset", "previously_locked", "process_queue", "queue")

    def __init__(
        self, group: str, queue: MessageQueue, process_queue: ProcessQueue, next_offset: int
    ) -> None:
        self.group = group
        self.queue = queue
        self.process_queue = process_queue
        self.next_offset = next_offset
        self.previously_locked = False

    def __repr__(self) -> str:
        return f"<PullRequest {self.group} {self.queue} at {self.next_offset}>"


class PullService:
    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._stopped = True

    def start(self) -> None:
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def put(self, request: PullRequest) -> None:
        if not self._stopped:
            self._instance.loop.call_soon(self.take, request)

    def put_later(self, request: PullRequest, delay_ms: int, *, or_room_at: int | None = None) -> None:
        """After the delay; with `or_room_at` already when no more than so many messages are cached: quick
        listeners need less time than a delay of flow control, and would have nothing to do for its rest."""
        if self._stopped:
            return
        if delay_ms <= 0:
            self.put(request)
            return
        process_queue = request.process_queue

        def again() -> None:
            timer.cancel()
            process_queue.on_room = None
            self.put(request)

        timer = self._instance.loop.call_later(delay_ms / 1000, again)
        if or_room_at is not None:
            process_queue.room_at = or_room_at
            process_queue.on_room = again

    def take(self, request: PullRequest) -> None:
        """Pulls now."""
        if self._stopped:
            return
        consumer = self._instance.consumers.get(request.group)
        if consumer is None:
            if not request.process_queue.dropped:  # else the consumer has left in order
                log.warning(
                    "no consumer for group %s here, its pull request is dropped: %s", request.group, request
                )
            return
        try:
            consumer.pull(request)
        except Exception:
            delay_ms = self._instance.settings.timings.pull_error_ms
            log.exception("pull of %s failed, trying again in %d ms", request.queue, delay_ms)
            self.put_later(request, delay_ms)
