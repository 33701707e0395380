"""SEND_MESSAGE in its three forms: from the request to the append and the reply that waits for the disk.

The plain message (known topic, no property that asks for something special) takes the straight way through
`_send`; everything that needs a second thought is in `send_rules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import limits
from penstock.broker.replies import Refusal
from penstock.broker.send_rules import AnySendHeader, Gate, SendRules
from penstock.errors import CorruptRecord, MessageTooLarge, StoreFull
from penstock.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_CHARS, PENDING_FLUSH_BYTES
from penstock.message.ids import pack_host, unique_id
from penstock.message.names import is_retry_topic
from penstock.message.properties import Key, find_property
from penstock.message.sysflag import INNER_BATCH_MASK, TRANSACTION_MASK
from penstock.message.tags import tag_code
from penstock.store.batches import read_batch
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import ONEWAY_FLAG, Command, encode_response
from penstock.wire.headers import SendHeader, SendHeaderV2, SendResponseHeader
from penstock.wire.peer import Peer
from penstock.wire.send_reply import SendReplyWriter

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

_SPECIAL_FLAGS = TRANSACTION_MASK | INNER_BATCH_MASK


_ASKS_FOR_MORE = (
    "DELAY",
    "TIMER_",
    "TRAN_MSG",
    "TRACE_ON",
    "MSG_REGION",
    "CLUSTER",
    "POP_CK",
    "INNER_NUM",
    "__CRC32#",
)


def _asks_for_more(text: str) -> bool:
    """Whether the rules must see the properties. Found anywhere: a false alarm costs time only."""
    return any(name in text for name in _ASKS_FOR_MORE)


class Sender:
    def __init__(self, broker: Broker) -> None:
        settings = broker.settings
        self._broker = broker
        self._store = broker.store
        self._settings = settings
        self._statistics = broker.statistics
        self._topics = broker.topics.table
        self.rules = SendRules(broker)
        self._gates: dict[str, Gate] = {}
        self._texts: dict[str, int] = {}
        self._id_prefix = pack_host(settings.broker_ip1, settings.listen_port).hex().upper()
        self._refresh()
        self.handlers: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE: self.send_v1,
            RequestCode.SEND_MESSAGE_V2: self.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_v2,
        }

    def _refresh(self) -> None:
        """Takes over what the settings say now."""
        settings = self._settings
        self._generation = settings.generation
        self._guarded = self.rules.guarded()
        self._max_body_bytes = settings.max_message_size
        self._reply_writer = SendReplyWriter(settings.region_id, settings.trace_on, self._id_prefix)
        self._write_reply = self._reply_writer.write
        self._suffix = (
            f"MSG_REGION\x01{settings.region_id}\x02"
            f"TRACE_ON\x01{'true' if settings.trace_on else 'false'}\x02"
            f"CLUSTER\x01{settings.broker_cluster_name}\x02"
        )

    def _open_gate(self, header: AnySendHeader, now_ms: int) -> Gate:
        gate = self.rules.open_gate(header, now_ms)
        if len(self._gates) >= limits.TOPICS_PER_BROKER:
            self._gates.clear()  # full of topics that were deleted since
        self._gates[header.topic] = gate
        return gate

    def send_v1(self, peer: Peer, command: Command, now_ms: int) -> None:
        self._send(peer, command, command.header(SendHeader), now_ms)

    def send_v2(self, peer: Peer, command: Command, now_ms: int) -> None:
        self._send(peer, command, command.header(SendHeaderV2), now_ms)

    def _send(self, peer: Peer, command: Command, header: AnySendHeader, now_ms: int) -> None:
        if self._settings.generation != self._generation:
            self._refresh()
        topic = header.topic
        if self._guarded:
            self.rules.check_broker(topic, now_ms)
        gate = self._gates.get(topic)
        if gate is None or gate.config is not self._topics.get(topic):
            gate = self._open_gate(header, now_ms)
        queue_id = header.queue_id
        if not 0 <= queue_id < gate.queue_limit:
            queue_id = self.rules.choose_queue(peer, queue_id, gate.config)
        body = command.body
        if body is None:
            raise self.rules.refusal(ResponseCode.MESSAGE_ILLEGAL, "the message has no body")
        if len(body) > self._max_body_bytes:
            raise self.rules.illegal_size()
        before = self._store.end
        if before - self._store.durable > PENDING_FLUSH_BYTES:
            self._broker.check_backlog()
        if header.batch:
            self._send_batch(peer, command, header, queue_id, body, before, now_ms)
            return
        text = header.properties or ""
        if text and text[-1] != "\x02":
            text += "\x02"
        sys_flag = header.sys_flag
        target_queue = queue_id
        known = self._known_text(text) if gate.plain and not sys_flag & _SPECIAL_FLAGS else None
        if known is not None:
            code, unique_key = known
            index_keys: tuple[str, ...] = (unique_key,)
        else:
            deliver_ms = 0
            if not gate.plain or sys_flag & _SPECIAL_FLAGS or _asks_for_more(text):
                topic, target_queue, queue_id, sys_flag, text, deliver_ms = self.rules.place(
                    header, command.version, gate.config, queue_id, text, now_ms
                )
            unique_key = find_property(text, "UNIQ_KEY") or ""
            if not unique_key:
                unique_key = unique_id()
                text = f"{text}UNIQ_KEY\x01{unique_key}\x02"
            index_keys = (unique_key, *filter(None, (find_property(text, "KEYS") or "").split(" ")))
            code = deliver_ms or tag_code(find_property(text, "TAGS"))
        properties = (text + self._suffix).encode()
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise self.rules.illegal_size()
        try:
            physical_offset, queue_offset = self._store.append(
                topic,
                target_queue,
                header.flag,
                sys_flag,
                header.born_timestamp,
                peer.remote_host,
                header.reconsume_times,
                0,
                body,
                properties,
                code,
                index_keys,
                now_ms,
            )
        except (StoreFull, MessageTooLarge) as error:
            raise self._refused(error) from None
        position = self._store.end
        self._statistics.count_put(topic, target_queue, 1, position - before)
        if command.flag & ONEWAY_FLAG:
            return
        if command.binary:
            offset_id = f"{self._id_prefix}{physical_offset:016X}"
            answer = self._answer(offset_id, queue_id, queue_offset, unique_key)
            frame = encode_response(command, ResponseCode.SUCCESS, None, answer)
        else:
            frame = self._write_reply(command.opaque, physical_offset, queue_id, queue_offset, unique_key)
        self._broker.reply_when_durable(peer, command, position, frame)

    def _known_text(self, text: str) -> tuple[int, str] | None:
        """Tag code and unique key of a text that differs from an earlier one only in the unique key.

        None if it has something to be looked at: a property that asks for more than storing, or keys. A
        producer's texts are nearly all alike, so they are remembered without the unique key.
        """
        at = text.rfind("UNIQ_KEY\x01") + 9
        end = text.find("\x02", at)
        if end <= at or at < 9:
            return None
        frame = text[:at] + text[end:]
        code = self._texts.get(frame)
        if code is None:
            unique_key = text[at:end]
            if (
                len(text) > limits.REMEMBERED_TEXT_CHARS
                or _asks_for_more(text)
                or "KEYS\x01" in text
                or find_property(text, "UNIQ_KEY") != unique_key
            ):
                return None
            if len(self._texts) >= limits.REMEMBERED_TEXTS:
                self._texts.clear()
            code = self._texts[frame] = tag_code(find_property(text, "TAGS"))
        return code, text[at:end]

    def _send_batch(
        self,
        peer: Peer,
        command: Command,
        header: AnySendHeader,
        queue_id: int,
        body: bytes,
        before: int,
        now_ms: int,
    ) -> None:
        """Many messages of one queue, stored one by one with their own properties as they came."""
        topic = header.topic
        refusal = self.rules.refusal
        if len(topic) > MAX_TOPIC_CHARS:
            raise refusal(ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(topic)}")
        if is_retry_topic(topic):
            raise refusal(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}")
        text = header.properties or ""
        if header.sys_flag & _SPECIAL_FLAGS or find_property(text, Key.DELAY):
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL, "a batch can neither be delayed nor be part of a transaction"
            )
        try:
            batch = read_batch(body)
        except CorruptRecord as error:
            raise refusal(ResponseCode.MESSAGE_ILLEGAL, f"the batch body is damaged: {error}") from None
        try:
            physical_offsets, first = self._store.append_batch(
                topic,
                queue_id,
                header.sys_flag,
                header.born_timestamp,
                peer.remote_host,
                header.reconsume_times,
                batch,
                now_ms,
            )
        except (StoreFull, MessageTooLarge) as error:
            raise self._refused(error) from None
        position = self._store.end
        self._statistics.count_put(topic, queue_id, batch.messages, position - before)
        if not command.flag & ONEWAY_FLAG:
            writer = self._reply_writer
            if command.binary:
                answer = self._answer(writer.batch_ids(physical_offsets), queue_id, first, None)
                frame = encode_response(command, ResponseCode.SUCCESS, None, answer)
            else:
                frame = writer.write_batch(command.opaque, physical_offsets, queue_id, first)
            self._broker.reply_when_durable(peer, command, position, frame)

    def _answer(
        self, ids: str, queue_id: int, queue_offset: int, unique_key: str | None
    ) -> SendResponseHeader:
        settings = self._settings
        return SendResponseHeader(
            ids, queue_id, queue_offset, unique_key, region=settings.region_id, trace_on=settings.trace_on
        )

    def _refused(self, error: StoreFull | MessageTooLarge) -> Refusal:
        self._statistics.count_put_failure()
        if isinstance(error, StoreFull):
            remark = f"service not available now: {error}"
            return self.rules.refusal(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        return self.rules.refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
