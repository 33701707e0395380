"""Which consumer of a group takes which queues: the six strategies of the protocol.

All members of a group compute this alone, from the same sorted lists, so every strategy must give
exactly what the reference gives, or two consumers would take one queue and none another.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import InvalidArgument
from penstock.message.allocation import AllocationStrategy, Averagely, AveragelyByCircle, index_of
from penstock.message.queue import MessageQueue

__all__ = [
    "AllocationStrategy",
    "Averagely",
    "AveragelyByCircle",
    "ByConfig",
    "ConsistentHash",
    "HashRing",
    "MachineRoom",
    "MachineRoomNearby",
    "RoomResolver",
    "md5_head",
]


def md5_head(text: str) -> int:
    """First four bytes of the MD5 digest, unsigned: the ring position of the reference."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


class HashRing:
    """Consistent hashing with virtual nodes."""

    def __init__(self, nodes: Sequence[str], virtual_nodes: int, position: Callable[[str], int]) -> None:
        self._position = position
        # On a collision the node put later owns the point.
        owners = {position(f"{node}-{k}"): node for node in nodes for k in range(virtual_nodes)}
        self._points = sorted(owners)
        self._owners = [owners[point] for point in self._points]

    def owner(self, key: str) -> str | None:
        if not self._points:
            return None
        index = bisect.bisect_left(self._points, self._position(key))
        return self._owners[index % len(self._owners)]


class ConsistentHash:
    """Few queues move when a client comes or goes; shares may be uneven."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = 10, position: Callable[[str], int] = md5_head) -> None:
        if virtual_nodes < 0:
            raise InvalidArgument(f"virtual_nodes must not be negative, not {virtual_nodes}")
        self._virtual_nodes = virtual_nodes
        self._position = position

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if index_of(client_id, queues, client_ids) is None:
            return []
        ring = HashRing(client_ids, self._virtual_nodes, self._position)
        return [queue for queue in queues if ring.owner(_ring_key(queue)) == client_id]


def _ring_key(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


class ByConfig:
    """A fixed list, whoever else is in the group."""

    name = "CONFIG"

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self._queues = list(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return list(self._queues)


class MachineRoom:
    """Only queues of brokers named `room@broker` in the given rooms."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Sequence[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        index = index_of(client_id, queues, client_ids)
        if index is None:
            return []
        kept = [queue for queue in queues if self._serves(queue.broker_name)]
        share, rest = divmod(len(kept), len(client_ids))
        result = kept[index * share : (index + 1) * share]
        if index < rest:
            result.append(kept[len(client_ids) * share + index])
        return result

    def _serves(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        return len(parts) == 2 and parts[0] in self._rooms


class RoomResolver(Protocol):
    """Says in which machine room a queue's broker and a client stand."""

    def broker_room(self, queue: MessageQueue) -> str: ...

    def client_room(self, client_id: str) -> str: ...


class MachineRoomNearby:
    """Queues of the own room, and a share of those in rooms without any client."""

    def __init__(self, inner: AllocationStrategy, resolver: RoomResolver) -> None:
        self._inner = inner
        self._resolver = resolver

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if index_of(client_id, queues, client_ids) is None:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(self._room(self._resolver.broker_room(queue), queue), []).append(queue)
        clients_of: dict[str, list[str]] = {}
        for client in client_ids:
            clients_of.setdefault(self._room(self._resolver.client_room(client), client), []).append(client)

        own_room = self._resolver.client_room(client_id)
        result: list[MessageQueue] = []
        own_queues = queues_of.pop(own_room, None)
        if own_queues:
            result += self._inner.allocate(group, client_id, own_queues, clients_of[own_room])
        for room in sorted(queues_of):
            if room not in clients_of:
                result += self._inner.allocate(group, client_id, queues_of[room], client_ids)
        return result

    @staticmethod
    def _room(room: str, what: object) -> str:
        if not room.strip():
            raise InvalidArgument(f"no machine room known for {what}")
        return room
