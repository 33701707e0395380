"""The two ways of sharing out queues that clients and brokers both know.

Every member of a group computes its share alone, from the same sorted lists, and a broker does it for those
that ask, so all must come to exactly what the reference comes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.errors import InvalidArgument
from penstock.message.queue import MessageQueue


class AllocationStrategy(Protocol):
    """`queues` and `client_ids` arrive sorted; the result keeps the order of `queues`."""

    @property
    def name(self) -> str: ...

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]: ...


def index_of(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> int | None:
    """Own place among the clients; None if the broker does not list this client (yet)."""
    if not client_id:
        raise InvalidArgument("client id is empty")
    if not queues:
        raise InvalidArgument("no queues to allocate")
    if not client_ids:
        raise InvalidArgument("no consumers to allocate to")
    try:
        return client_ids.index(client_id)
    except ValueError:
        return None


class Averagely:
    """Contiguous blocks of nearly equal size; the first clients get the remainder."""

    name = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        index = index_of(client_id, queues, client_ids)
        if index is None:
            return []
        share, rest = divmod(len(queues), len(client_ids))
        start = index * share + min(index, rest)
        return list(queues[start : start + share + (index < rest)])


class AveragelyByCircle:
    """Queue k goes to client k modulo the number of clients."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        index = index_of(client_id, queues, client_ids)
        if index is None:
            return []
        return list(queues[index :: len(client_ids)])
