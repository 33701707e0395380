"""The POP side of a broker, put together: tables, handlers, and what the disk and the clock do to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.persistence import Note
from penstock.broker.pop.ack import Acks
from penstock.broker.pop.assignment import Assignments, RequestModes
from penstock.broker.pop.frontier import Frontier
from penstock.broker.pop.lag import Lags
from penstock.broker.pop.leases import Leases
from penstock.broker.pop.notification import Notifications
from penstock.broker.pop.orderly import OrderInfos
from penstock.broker.pop.peek import Peeks
from penstock.broker.pop.pop import Popper
from penstock.broker.pop.revive import Reviver
from penstock.message.names import normal_topic
from penstock.store.results import Arrival
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

FORGET_MS: Final = 3_600_000


class PopService:
    def __init__(self, broker: Broker, note: Note, *, now_ms: int) -> None:
        """`note` repeats what a failed flush loses: leases in memory and in the journal must not differ."""
        self._broker = broker
        self.leases = Leases(note, broker.store.journal.grow, broker.offsets)
        self.orders = OrderInfos(note)
        self.modes = RequestModes(broker.settings, note)
        frontier = Frontier(broker)
        self._popper = Popper(broker, self.leases, self.orders, frontier)
        self._notifications = Notifications(broker, self.leases, self.orders, frontier, self._popper.held)
        self._reviver = Reviver(broker, self.leases)
        self.assignments = Assignments(broker, self.modes)
        lags = Lags(broker, self.leases, self.orders, self.modes, frontier)
        self._next_forget_ms = now_ms + FORGET_MS
        self.handlers: dict[int, Handler] = {
            **self._popper.handlers,
            **Acks(broker, self.leases, self.orders, self._wake).handlers,
            **self._notifications.handlers,
            **Peeks(broker, frontier).handlers,
            **self.assignments.handlers,
            **lags.handlers,
        }

    def start(self, now_ms: int) -> None:
        """After the tables were loaded."""
        self.leases.start(now_ms, self._broker.store.visible_ms)
        self.orders.start(self.leases.clock(now_ms))

    # ---- what the disk and the clock do ---------------------------------------------------------

    def durable(self, position: int, arrivals: list[Arrival], now_ms: int) -> None:
        self._reviver.durable(position)
        if arrivals:
            self._popper.held.arrived(arrivals, now_ms)
            self._notifications.held.arrived(arrivals, now_ms)

    def flush_failed(self) -> None:
        self._reviver.flush_failed()

    def tick(self, now_ms: int) -> None:
        self._reviver.tick(now_ms)
        for topic, group, queue_id in self.orders.take_unblocked(self.leases.clock(now_ms)):
            self._wake(topic, group, queue_id, now_ms)
        self._popper.held.tick(now_ms)
        self._notifications.held.tick(now_ms)
        if now_ms >= self._next_forget_ms:
            self._next_forget_ms = now_ms + FORGET_MS
            self.orders.forget_old(self.leases.clock(now_ms))

    def left(self, peer: Peer, group: str) -> None:
        self._popper.left(peer, group)

    def disconnected(self, peer: Peer) -> None:
        self._popper.held.drop_peer(peer)
        self._notifications.held.drop_peer(peer)

    def _wake(self, topic: str, group: str, queue_id: int, now_ms: int) -> None:
        """A queue may have something again for one of those who wait."""
        name = normal_topic(topic, group)
        for held in (self._popper.held, self._notifications.held):
            held.wake_any(name, group, queue_id, now_ms)

    # ---- what administrators do -----------------------------------------------------------------

    def reset(self, group: str, topic: str, queue_id: int, now_ms: int) -> None:
        """The group goes on somewhere else: what it holds of the queue counts no more."""
        queue = self.leases.find_queue(topic, group, queue_id)
        if queue is not None:
            self.leases.drop(queue)
        self.orders.drop_queue(topic, group, queue_id)
        self.leases.renew_handles()
        for held in (self._popper.held, self._notifications.held):
            held.wake_all(topic, group, now_ms)

    def drop_topic(self, topic: str) -> None:
        """Its messages are gone, so nothing of it can come back."""
        self._drop(lambda name, group: name == topic)

    def drop_group(self, group: str) -> None:
        """Its progress is forgotten, and with it what it holds."""
        self._drop(lambda topic, name: name == group)

    def _drop(self, concerns: Callable[[str, str], bool]) -> None:
        for queue in self.leases.queues():
            if concerns(queue.topic, queue.group):
                self.leases.drop(queue)
        for topic, group, queue_id in list(self.orders.table):
            if concerns(topic, group):
                self.orders.drop_queue(topic, group, queue_id)
        self.leases.renew_handles()
