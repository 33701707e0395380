"""Moving a consumer group to another place: on the broker, or, if told so, by telling its clients."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from penstock.broker.admin_clients import OLDEST_STATUS_VERSION
from penstock.broker.admin_common import queue_of, unknown_topic
from penstock.broker.replies import Refusal
from penstock.wire.bodies import QueueOffset, ResetOffsetBody, ResetOffsetBodyForC, TopicConfig
from penstock.wire.codes import Language, RequestCode, ResponseCode
from penstock.wire.command import ONEWAY_FLAG, Command, encode_command
from penstock.wire.headers import InvokeBrokerToResetOffsetHeader, ResetConsumerClientOffsetHeader
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler


class ResetAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._numbers = count(1)
        self.handlers: dict[int, Handler] = {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    def reset(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(InvokeBrokerToResetOffsetHeader)
        broker = self._broker
        if broker.settings.broker_role == "SLAVE":
            raise Refusal(ResponseCode.SYSTEM_ERROR, "a slave cannot reset offsets; ask its master")
        config = broker.topics.get(header.topic)
        if config is None:
            raise unknown_topic(f"Topic {header.topic} does not exist")
        if broker.settings.use_server_side_reset_offset:
            offsets = self._reset_here(header, config, now_ms)
        else:
            offsets = self._tell_clients(header, config, command.language)
        queues = {queue_of(broker.settings, header.topic, queue_id): at for queue_id, at in offsets.items()}
        broker.reply(peer, command, body=ResetOffsetBody(queues).encode(), position=broker.store.end)

    def _offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        store = self._broker.store
        if time_ms < 0:
            return store.max_offset(topic, queue_id)
        return max(0, store.offset_by_time(topic, queue_id, time_ms))

    # ---- on the broker --------------------------------------------------------------------------

    def _reset_here(
        self, header: InvokeBrokerToResetOffsetHeader, config: TopicConfig, now_ms: int
    ) -> dict[int, int]:
        """The group need not be online: its next pull of each queue is sent to the new place."""
        broker, topic = self._broker, header.topic
        if broker.groups.get(header.group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
        if header.queue_id < 0:
            offsets = {
                queue_id: self._offset_at(topic, queue_id, header.timestamp)
                for queue_id in range(config.read_queue_nums)
            }
        else:
            offsets = {header.queue_id: self._single_target(header, config)}
        broker.check_backlog()
        for queue_id, offset in offsets.items():
            if broker.offsets.reset(header.group, topic, queue_id, offset, now_ms) is None:
                raise Refusal(ResponseCode.SYSTEM_BUSY, "no room for another consumer offset")
            broker.pop.reset(header.group, topic, queue_id, now_ms)
        return offsets

    def _single_target(self, header: InvokeBrokerToResetOffsetHeader, config: TopicConfig) -> int:
        topic, queue_id, offset = header.topic, header.queue_id, header.offset
        if queue_id >= config.read_queue_nums:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] readQueueNums:[{config.read_queue_nums}]",
            )
        if offset is None or offset == -1:
            return self._offset_at(topic, queue_id, header.timestamp)
        store = self._broker.store
        oldest, newest = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if not oldest <= offset <= newest + 1:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {offset} not in consume queue range [{oldest}-{newest}]",
            )
        return offset

    # ---- by the clients -------------------------------------------------------------------------

    def _tell_clients(
        self, header: InvokeBrokerToResetOffsetHeader, config: TopicConfig, language: Language
    ) -> dict[int, int]:
        """Without force no queue moves forward. Nothing is changed here: the clients commit."""
        broker, topic = self._broker, header.topic
        offsets = {}
        for queue_id in range(config.write_queue_nums):
            current = broker.offsets.query(header.group, topic, queue_id)
            if current < 0:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"group {header.group} has no offset for queue {queue_id} of topic {topic}",
                )
            target = self._offset_at(topic, queue_id, header.timestamp)
            offsets[queue_id] = target if header.is_force or target < current else current
        group = broker.clients.consumer_group(header.group)
        if group is None:
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.group}] not online")
        body = self._client_body(topic, offsets, language)
        ext = ResetConsumerClientOffsetHeader(header.group, topic, header.timestamp, header.is_force)
        for client in group.members.values():
            if client.version >= OLDEST_STATUS_VERSION:
                frame = encode_command(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    next(self._numbers) & 0x7FFF_FFFF,
                    flag=ONEWAY_FLAG,
                    ext=ext,
                    body=body,
                )
                client.peer.send(frame)
        return offsets

    def _client_body(self, topic: str, offsets: dict[int, int], language: Language) -> bytes:
        settings = self._broker.settings
        if language is Language.CPP:
            rows = [
                QueueOffset(settings.broker_name, queue_id, topic, offset)
                for queue_id, offset in offsets.items()
            ]
            return ResetOffsetBodyForC(rows).encode()
        queues = {queue_of(settings, topic, queue_id): offset for queue_id, offset in offsets.items()}
        return ResetOffsetBody(queues).encode()
