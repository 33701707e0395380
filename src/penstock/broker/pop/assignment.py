"""Whether a group pulls or pops a topic, and which queues each of its consumers is told to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from penstock import limits
from penstock.broker.clients import BROADCASTING
from penstock.broker.persistence import Kind, Note, other_members
from penstock.broker.pop.held_pops import ALL_QUEUES
from penstock.broker.replies import Refusal
from penstock.broker.settings import BrokerSettings
from penstock.broker.topics import PERM_READ
from penstock.errors import InvalidArgument
from penstock.message.allocation import AllocationStrategy, Averagely, AveragelyByCircle
from penstock.message.names import is_retry_topic
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import (
    MessageQueueAssignment,
    MessageRequestModeSerializeWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

PULL: Final = "PULL"
POP: Final = "POP"
_STRATEGIES: Final[Mapping[str, AllocationStrategy]] = {
    strategy.name: strategy for strategy in (Averagely(), AveragelyByCircle())
}


class RequestModes:
    """topic → group → mode, as it was set."""

    file_name = "messageRequestMode.json"
    prompt = True

    def __init__(self, settings: BrokerSettings, note: Note) -> None:
        self.dirty = False
        self.table: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}
        self._settings = settings
        self._note = note
        self._other_members: dict[str, Any] = {}

    def find(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        """What was set, or the broker's default; retry topics are pulled."""
        found = self.table.get(topic, {}).get(group)
        if found is not None:
            return found
        mode = PULL if is_retry_topic(topic) else self._settings.default_message_request_mode
        return SetMessageRequestModeRequestBody(
            topic, group, mode, self._settings.default_pop_share_queue_num if mode == POP else 0
        )

    def set(self, mode: SetMessageRequestModeRequestBody) -> int:
        """Tells the journal position."""
        self.table.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self.dirty = True
        return self._note(Kind.REQUEST_MODE, msgspec.json.encode(mode))

    def count(self) -> int:
        return sum(map(len, self.table.values()))

    def load(self, saved: Mapping[str, Any]) -> None:
        wrapper = msgspec.convert(saved, MessageRequestModeSerializeWrapper, strict=False)
        self.table = wrapper.message_request_mode_map
        self._other_members = other_members(saved, "messageRequestModeMap")

    def snapshot(self) -> dict[str, Any]:
        return {**self._other_members, "messageRequestModeMap": self.table}

    def replay(self, kind: int, payload: bytes) -> bool:
        if kind != Kind.REQUEST_MODE:
            return False
        mode = msgspec.json.decode(payload, type=SetMessageRequestModeRequestBody)
        self.table.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self.dirty = True
        return True


class RouteSource(Protocol):
    """Who knows the queues of a topic on all brokers. Without one, this broker's are all there are."""

    def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """None while that is not known (yet)."""


class Assignments:
    def __init__(self, broker: Broker, modes: RequestModes) -> None:
        self._broker = broker
        self._modes = modes
        self.routes: RouteSource | None = None
        """Set by whoever can ask a name server."""
        self.handlers: dict[int, Handler] = {
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.all_modes,
            RequestCode.QUERY_ASSIGNMENT: self.query,
        }

    # ---- modes ----------------------------------------------------------------------------------

    def set_mode(self, peer: Peer, command: Command, now_ms: int) -> None:
        broker = self._broker
        wanted = SetMessageRequestModeRequestBody.decode(command.body)
        if is_retry_topic(wanted.topic):
            raise Refusal(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if broker.topics.get(wanted.topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{wanted.topic}] not exist")
        if broker.groups.find(wanted.consumer_group, now_ms) is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{wanted.consumer_group}] not exist",
            )
        if wanted.mode not in (PULL, POP):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"mode is PULL or POP, not {wanted.mode}")
        if self._modes.count() >= limits.REQUEST_MODES_PER_BROKER:
            raise Refusal(ResponseCode.SYSTEM_BUSY, "no room for the mode of another group")
        broker.check_backlog()
        broker.reply(peer, command, position=self._modes.set(wanted))
        group = broker.clients.consumer_group(wanted.consumer_group)
        if group is not None:
            broker.heartbeats.notify(group)  # they look what has changed now, not at their next rebalance

    def all_modes(self, peer: Peer, command: Command, now_ms: int) -> None:
        self._broker.reply(peer, command, body=MessageRequestModeSerializeWrapper(self._modes.table).encode())

    # ---- assignments ----------------------------------------------------------------------------

    def query(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Where there is no good answer the client is given none, and keeps what it has."""
        request = QueryAssignmentRequestBody.decode(command.body)
        if request.message_model is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "the request has no messageModel")
        mode = self._modes.find(request.topic, request.consumer_group)
        queues = self._assigned(request, mode)
        body = QueryAssignmentResponseBody()
        if queues is not None:
            body.message_queue_assignments = [
                MessageQueueAssignment(queue, mode.mode) for queue in dict.fromkeys(queues)
            ]
        self._broker.reply(peer, command, body=body.encode())

    def _assigned(
        self, request: QueryAssignmentRequestBody, mode: SetMessageRequestModeRequestBody
    ) -> Sequence[MessageQueue] | None:
        queues = self._queues(request.topic)
        if (
            queues is None
            or request.message_model == BROADCASTING
            or not self._broker.settings.server_load_balancer_enable
        ):
            return queues
        group = self._broker.clients.consumer_group(request.consumer_group)
        strategy = _STRATEGIES.get(request.strategy_name or "")
        if group is None or strategy is None or not request.client_id:
            return None
        clients = sorted(set(group.client_ids))
        share = mode.pop_share_queue_num if mode.mode == POP else None
        try:
            return allocate(
                strategy, request.consumer_group, request.client_id, sorted(queues), clients, share
            )
        except InvalidArgument:
            return None

    def _queues(self, topic: str) -> Sequence[MessageQueue] | None:
        if self.routes is not None:
            return self.routes.queues(topic)
        config = self._broker.topics.get(topic)
        if config is None or not config.perm & PERM_READ:
            return None
        name = self._broker.settings.broker_name
        return [MessageQueue(topic, name, queue_id) for queue_id in range(config.read_queue_nums)]


def allocate(
    strategy: AllocationStrategy,
    group: str,
    client_id: str,
    queues: Sequence[MessageQueue],
    clients: Sequence[str],
    share: int | None,
) -> list[MessageQueue]:
    """The client's queues of the sorted ones; with a share number (POP) also those of that many others.

    Raises InvalidArgument where nothing can be shared out.
    """
    if share is None:
        return strategy.allocate(group, client_id, queues, clients)
    if share <= 0 or share >= len(clients) - 1:
        return list(dict.fromkeys(queue._replace(queue_id=ALL_QUEUES) for queue in queues))
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    found: list[MessageQueue] = []
    for step in range(share + 1):
        found += strategy.allocate(group, clients[(index + step) % len(clients)], queues, clients)
    return list(dict.fromkeys(found))
