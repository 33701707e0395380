"""Where a pop looks: which queues in which order, and where it begins in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.message.names import is_retry_topic, pop_retry_topic_v1, pop_retry_topic_v2

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

FROM_MIN: Final = 0
FRESH_LOG_BYTES: Final = 1 << 30
"""A queue that begins this close to the end of the log is new: nobody who comes late misses anything."""


class Frontier:
    def __init__(self, broker: Broker) -> None:
        self._offsets = broker.offsets
        self._store = broker.store
        self._topics = broker.topics
        self._settings = broker.settings

    # ---- which queues ---------------------------------------------------------------------------

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """The group's retry topics that pops read, the one that is written first."""
        settings = self._settings
        if not settings.enable_retry_topic_v2:
            return [pop_retry_topic_v1(group, topic)]
        names = [pop_retry_topic_v2(group, topic)]
        if settings.retrieve_message_from_pop_retry_topic_v1:
            names.append(pop_retry_topic_v1(group, topic))
        return names

    def visit(self, topic: str, queue_id: int, turn: int) -> Sequence[int]:
        """The one queue, or all of a topic downwards from a place that changes with each request."""
        if queue_id >= 0:
            return (queue_id,)
        config = self._topics.get(topic)
        if config is None:
            return ()
        queues = config.read_queue_nums
        first = turn % queues if queues else 0
        return [*range(first - 1, -1, -1), *range(queues - 1, first - 1, -1)]

    # ---- where in a queue -----------------------------------------------------------------------

    def look(self, group: str, topic: str, queue_id: int) -> int:
        """Where a pop would begin, for those who only look: a group without an offset begins at the start."""
        offset = self._offsets.query(group, topic, queue_id)
        return offset if offset >= 0 else self._store.min_offset(topic, queue_id)

    def backlog(self, group: str, topic: str, queue_ids: Sequence[int]) -> int:
        """How much pops would find in these queues, whatever their filters."""
        begins = self._offsets.begins(group, topic)
        store, rest = self._store, 0
        for queue_id in queue_ids:
            offset = begins.get(queue_id, -1)
            if offset < 0:
                offset = store.min_offset(topic, queue_id)
            rest += max(0, store.max_offset(topic, queue_id) - offset)
        return rest

    def begin(self, group: str, topic: str, queue_id: int, init_mode: int, now_ms: int) -> int | None:
        """Where the group goes on, or begins: then that is stored. None if there is no room to store it."""
        offset = self._offsets.query(group, topic, queue_id)
        if offset < 0:
            offset = self._first_offset(topic, queue_id, init_mode)
            if self._offsets.commit(group, topic, queue_id, offset, now_ms) is None:
                return None
        return offset

    def _first_offset(self, topic: str, queue_id: int, init_mode: int) -> int:
        store = self._store
        oldest = store.min_offset(topic, queue_id)
        if init_mode == FROM_MIN or is_retry_topic(topic):
            return oldest
        if oldest <= 0 and self._settings.init_pop_offset_by_check_msg_in_mem:
            for physical_offset, _, _ in store.entries(topic, queue_id, 0, 1):
                if store.max_physical_offset - physical_offset <= FRESH_LOG_BYTES:
                    return 0
        return max(0, store.max_offset(topic, queue_id) - 1)
