"""The broker: which part serves which request, how answers go out, what time does.

Everything runs on one thread and nothing blocks. A reply that must wait (for the disk, for a message, for
another client) is an entry in a table, answered by `durable`, `tick` or another request.
"""

from __future__ import annotations

import logging
import random as random_module
from collections.abc import Callable

from penstock import limits
from penstock.broker.admin import Admin
from penstock.broker.admin_config import load_changed_settings
from penstock.broker.clients import Clients
from penstock.broker.delay import DelayLevels
from penstock.broker.groups import Groups
from penstock.broker.heartbeats import Heartbeats
from penstock.broker.locks import LockRequests, QueueLocks
from penstock.broker.offset_requests import OffsetRequests
from penstock.broker.offsets import Offsets
from penstock.broker.persistence import Notes, Persistence, read_object
from penstock.broker.pop.assignment import RequestModes
from penstock.broker.pop.orderly import OrderInfos
from penstock.broker.pop.service import PopService
from penstock.broker.pull import Puller
from penstock.broker.queries import Queries
from penstock.broker.relays import Relays
from penstock.broker.replies import Refusal, WaitingReplies
from penstock.broker.send import Sender
from penstock.broker.send_back import SendBack
from penstock.broker.settings import BrokerSettings
from penstock.broker.stats import Statistics
from penstock.broker.topics import Topics
from penstock.errors import BadHeader, MessageTooLarge, StoreFull
from penstock.store.config_files import ConfigFiles
from penstock.store.results import Arrival
from penstock.store.store import Store
from penstock.wire.bodies import RegisterBrokerBody, TopicConfig
from penstock.wire.codes import ResponseCode
from penstock.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, Command, Ext, encode_response
from penstock.wire.dialect import DialectError
from penstock.wire.peer import Peer

log = logging.getLogger("penstock.broker")

Handler = Callable[[Peer, Command, int], None]
"""(peer, request, now in ms). Answers by `Broker.reply`, now or later, or raises Refusal."""

Job = Callable[[], None]


def check_tables(files: ConfigFiles) -> None:
    """For `Store.open`: a directory whose tables cannot be read is refused before anything in it changes."""
    for table in (Topics, Groups, DelayLevels, OrderInfos, RequestModes, Offsets):
        files.check(table.file_name, read_object)


def _run_now(job: Job) -> None:
    job()


class Broker:
    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        *,
        now_ms: int,
        random: random_module.Random,
        run_job: Callable[[Job], None] = _run_now,
    ) -> None:
        """`run_job` runs file writes: by default at once; a runtime hands them, in order, to a thread."""
        load_changed_settings(settings, store)
        self.settings = settings
        self.store = store
        self.random = random
        self.started_ms = now_ms
        self._notes = Notes(store.journal)
        delays_ms = settings.delay_levels_ms()

        self.topics = Topics(settings, self._notes.add, delay_levels=len(delays_ms), now_ms=now_ms)
        self.groups = Groups(settings, self._notes.add, now_ms=now_ms)
        self.offsets = Offsets(store.journal.append, self._notes.add, now_ms=now_ms)
        self.clients = Clients()
        self.locks = QueueLocks()
        self.statistics = Statistics(settings.broker_cluster_name, now_ms=now_ms)
        self.delay = DelayLevels(self, store.journal.append, delays_ms, now_ms=now_ms)
        self.pop = PopService(self, self._notes.add, now_ms=now_ms)
        self.persistence = Persistence(
            store,
            (self.topics, self.groups, self.delay, self.pop.orders, self.pop.modes, self.offsets),
            settings,
            run_job,
            own_tables=(self.pop.leases,),
            now_ms=now_ms,
        )
        self.pop.start(now_ms)

        self._waiting = WaitingReplies()
        self.reply_when_durable = self._waiting.add
        """(peer, request, position, frame parts): the position is the store's end after an append, or what
        the journal told for an entry."""
        self.sender = Sender(self)
        self.puller = Puller(self)
        self.heartbeats = Heartbeats(self, now_ms=now_ms)
        self.relays = Relays(self)
        self.handlers: dict[int, Handler] = {
            **self.sender.handlers,
            **self.puller.handlers,
            **self.heartbeats.handlers,
            **self.relays.handlers,
            **self.pop.handlers,
            **OffsetRequests(self).handlers,
            **LockRequests(self).handlers,
            **SendBack(self).handlers,
            **Queries(self).handlers,
        }
        self.handlers.update(Admin(self).handlers)

    # ---- what comes in --------------------------------------------------------------------------

    def handle(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Serves one request, or takes a client's answer to a relayed one. Never raises."""
        try:
            if command.flag & RESPONSE_FLAG:
                self.relays.answered(peer, command)
                return
            handler = self.handlers.get(command.code)
            if handler is None:
                raise Refusal(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
                )
            handler(peer, command, now_ms)
        except Refusal as refusal:
            self.reply(peer, command, refusal.code, refusal.remark, refusal.ext)
        except BadHeader as error:
            self.reply(peer, command, ResponseCode.SYSTEM_ERROR, str(error))
        except DialectError as error:
            self.reply(peer, command, ResponseCode.SYSTEM_ERROR, str(error))
        except MessageTooLarge as error:
            self.reply(peer, command, ResponseCode.MESSAGE_ILLEGAL, str(error))
        except StoreFull as error:
            self.reply(peer, command, ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        except Exception as error:
            log.exception("request %d from %s:%d failed", command.code, *peer.remote)
            if not command.is_response:
                self.reply(peer, command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def connected(self, peer: Peer, now_ms: int) -> None:
        """Nothing is known of a client before its first heartbeat."""

    def disconnected(self, peer: Peer, now_ms: int) -> None:
        self.puller.held.drop_peer(peer)
        self.pop.disconnected(peer)
        self.relays.disconnected(peer)
        self.heartbeats.disconnected(peer)

    # ---- what goes out --------------------------------------------------------------------------

    def reply(
        self,
        peer: Peer,
        command: Command,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        ext: Ext | None = None,
        body: bytes = b"",
        *,
        position: int = 0,
    ) -> None:
        """Answers a request, once everything up to `position` is durable; a oneway request gets nothing."""
        if command.flag & ONEWAY_FLAG:
            return
        frame = encode_response(command, code, remark, ext, body)
        if position > self.store.durable:
            self.reply_when_durable(peer, command, position, frame)
        else:
            peer.send(frame)

    def check_backlog(self) -> None:
        """Requests that add to what waits for the disk are refused while too much of it waits."""
        store = self.store
        if store.end - store.durable > limits.PENDING_FLUSH_BYTES or self._waiting.full:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]too much is waiting for the disk, start flow control for a while",
            )

    # ---- what the disk and the clock do ---------------------------------------------------------

    def durable(self, arrivals: list[Arrival], now_ms: int) -> None:
        """After a flush: what it made durable is confirmed, what it made visible is delivered."""
        self._waiting.release(self.store.durable)
        self._notes.durable(self.store.durable)
        self.delay.durable(self.store.durable, now_ms)
        if arrivals:
            messages = sum([arrival.shown for arrival in arrivals])
            self.statistics.count_put_time(messages, now_ms - arrivals[0].store_ms)
            self.puller.held.arrived(arrivals, now_ms)
        self.pop.durable(self.store.durable, arrivals, now_ms)

    def flush_failed(self, error: OSError, now_ms: int) -> None:
        """After a failed flush: nothing of it, nor of what came meanwhile, was stored."""
        self._waiting.fail(f"the disk refused a write: {error}")
        self._notes.lost()
        self.delay.flush_failed()
        self.pop.flush_failed()
        self.persistence.journal_lost()

    def tick(self, now_ms: int) -> None:
        """Everything that is due; to be called every few milliseconds to tens of milliseconds."""
        self.puller.held.tick(now_ms)
        self.offsets.tick()
        self.delay.tick(now_ms)
        self.pop.tick(now_ms)
        self.relays.tick(now_ms)
        self.heartbeats.tick(now_ms)
        self.statistics.tick(now_ms)
        self.persistence.tick(now_ms)

    def close(self, now_ms: int) -> None:
        """Saves every table; afterwards an Apache broker may open the directory."""
        self.persistence.close(now_ms)

    # ---- name servers ---------------------------------------------------------------------------

    def registration(self, now_ms: int, only: list[TopicConfig] | None = None) -> RegisterBrokerBody:
        """Body of REGISTER_BROKER: everything, or just the topics that `take_registration_changes` gave."""
        return self.topics.registration(only)

    def take_registration_changes(self) -> list[TopicConfig] | None:
        """Topics that the name servers must be told of at once; None if there are none."""
        return self.topics.take_changes()
