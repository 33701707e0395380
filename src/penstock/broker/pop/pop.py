"""POP_MESSAGE: from the request to the messages, their leases and the reply that waits for the disk.

There is no lock on a queue: taking messages, leasing them and moving the group on is one step of a broker
that does one thing at a time. The next pop goes on behind, also while this one waits for the disk.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.broker import filters
from penstock.broker.filters import PullFilter
from penstock.broker.pop.checks import check_broker, check_filter, check_queue
from penstock.broker.pop.frontier import Frontier
from penstock.broker.pop.held_pops import ALL_QUEUES, HeldPop, HeldPops, Verdict
from penstock.broker.pop.leases import Lease, Leases
from penstock.broker.pop.orderly import OrderInfos
from penstock.broker.replies import Refusal
from penstock.errors import BadHeader
from penstock.message.handles import ORDER_REVIVE_QUEUE, Handle, retry_flag
from penstock.message.names import is_retry_topic
from penstock.message.properties import Key, add_property, find_property
from penstock.message.record import Buffer, RecordView, encode_record, split_records
from penstock.store.results import GetResult, GetStatus
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import ONEWAY_FLAG, Command, encode_response_head
from penstock.wire.headers import PopHeader, PopResponseHeader
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

TOO_LATE_MS: Final = 500
"""Protocol: a request that is this much older than the time it may take is not worth an answer."""
PASSING_READS: Final = 16
"""Further reads in a queue where the filter wants nothing of what was read: so a pop gets through a long
stretch soon, without keeping everybody else waiting."""
REMEMBER_EVERY_MS: Final = 5_000
NOTHING: Final = "NO_MESSAGE_IN_QUEUE"
REVIVE_QUEUE: Final = 0
NO_ANSWER: Final = PopResponseHeader(0, 0, 0, 0)
"""The header of refusals."""

_CORRECTED: Final = (
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_FOUND_NULL,
)
_PASSED_OVER: Final = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.OFFSET_FOUND_NULL,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
)
_unpack_place: Final = struct.Struct(">i16xq").unpack_from
"""Size and queue offset of a record."""


class _Batch:
    """What one pop has found so far."""

    __slots__ = (
        "count",
        "full",
        "header",
        "message_offsets",
        "order_counts",
        "parts",
        "peer",
        "pop_ms",
        "position",
        "progressed",
        "rest",
        "size",
        "start_offsets",
        "wanted",
    )

    def __init__(self, peer: Peer, header: PopHeader, wanted: PullFilter, pop_ms: int) -> None:
        self.peer = peer
        self.header = header
        self.wanted = wanted
        self.pop_ms = pop_ms
        self.count = 0
        self.full = False
        self.size = 0
        self.rest = 0
        self.position = 0
        """Everything up to here must be durable before the answer goes out."""
        self.progressed = False
        """Whether messages were passed over that the filter does not want."""
        self.parts: list[Buffer] = []
        self.start_offsets: list[str] = []
        self.message_offsets: list[str] = []
        self.order_counts: list[str] = []


class Popper:
    def __init__(self, broker: Broker, leases: Leases, orders: OrderInfos, frontier: Frontier) -> None:
        self._broker = broker
        self._store = broker.store
        self._settings = broker.settings
        self._leases = leases
        self._orders = orders
        self._frontier = frontier
        self._remembered: dict[tuple[str, str, str | None, str | None], int] = {}
        """Who asked for what, and when that was last noted."""
        self.held = HeldPops(broker.store, broker.offsets, broker.settings, self._resume)
        self.handlers: dict[int, Handler] = {RequestCode.POP_MESSAGE: self.pop}

    def pop(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(PopHeader)
        if not 0 < header.born_time <= now_ms:  # a client's fast clock must not make the wait longer
            header.born_time = now_ms
        self._pop(peer, command, header, now_ms)

    def _resume(self, held: HeldPop, now_ms: int) -> None:
        """A held pop again, from the start. Nothing may escape into the loop."""
        assert isinstance(held.header, PopHeader)
        if held.peer.closed:
            return
        try:
            self._pop(held.peer, held.command, held.header, now_ms)
        except Refusal as refusal:
            self._broker.reply(held.peer, held.command, refusal.code, refusal.remark, refusal.ext)
        except BadHeader as error:
            self._broker.reply(held.peer, held.command, ResponseCode.SYSTEM_ERROR, str(error))

    def left(self, peer: Peer, group: str) -> None:
        """A client that leaves its group is given no message any more: nobody would look at it."""
        for held in self.held.take_group(peer, group):
            self._broker.reply(peer, held.command, ResponseCode.POLLING_TIMEOUT, NOTHING, NO_ANSWER)

    def _pop(self, peer: Peer, command: Command, header: PopHeader, now_ms: int) -> None:
        wanted = self._check(peer, header, now_ms)
        # Not before the newest store time, by which the reviver knows a message again.
        batch = _Batch(peer, header, wanted, self._leases.pop_time(max(now_ms, self._store.visible_ms)))
        if header.max_msg_nums:
            self._collect(batch, now_ms)
        if batch.count:
            self._deliver(peer, command, batch)
            if batch.rest:
                self.held.wake(header.topic, header.consumer_group, header.queue_id, now_ms)
            return
        self._broker.statistics.count_get_miss()
        held = HeldPop(peer, command, header, wanted)
        verdict = Verdict.TIMEOUT
        if header.max_msg_nums:
            verdict = self.held.hold(held, now_ms, unfinished=batch.progressed and batch.rest > 0)
        if verdict is not Verdict.HELD:
            code = ResponseCode.POLLING_FULL if verdict is Verdict.FULL else ResponseCode.POLLING_TIMEOUT
            self._broker.reply(peer, command, code, NOTHING, self._answer(batch))

    # ---- checks, in the protocol's order --------------------------------------------------------

    def _check(self, peer: Peer, header: PopHeader, now_ms: int) -> PullFilter:
        broker = self._broker
        if now_ms - header.born_time - header.poll_time > TOO_LATE_MS:
            raise Refusal(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{self._settings.broker_ip1}] pop message is timeout too much",
                NO_ANSWER,
            )
        check_broker(broker, NO_ANSWER)
        if not 0 <= header.max_msg_nums <= limits.POP_MAX_MESSAGES:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._settings.broker_ip1}] pop message's num is "
                f"{'negative' if header.max_msg_nums < 0 else f'greater than {limits.POP_MAX_MESSAGES}'}",
                NO_ANSWER,
            )
        if not 0 < header.invisible_time <= limits.MAX_INVISIBLE_MS:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {header.invisible_time} is not between 1 and {limits.MAX_INVISIBLE_MS}",
                NO_ANSWER,
            )
        check_queue(broker, peer, header, NO_ANSWER, now_ms)
        wanted = check_filter(header.exp, header.exp_type, NO_ANSWER)
        self._remember(header, now_ms)
        broker.check_backlog()
        if self._leases.count >= limits.LEASES_PER_BROKER:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY, f"{self._leases.count} popped batches wait for acks", NO_ANSWER
            )
        return wanted

    def _remember(self, header: PopHeader, now_ms: int) -> None:
        """So that the tools see what groups without heartbeat subscribe."""
        clients, group, topic = self._broker.clients, header.consumer_group, header.topic
        what = (group, topic, header.exp, header.exp_type)
        if self._remembered.get(what, 0) > now_ms - REMEMBER_EVERY_MS:
            return
        if len(self._remembered) >= limits.REMEMBERED_SUBSCRIPTIONS:
            self._remembered.clear()
        self._remembered[what] = now_ms
        if clients.consumer_group(group) is None:
            subscription = filters.request_subscription(topic, header.exp or None, header.exp_type)
            clients.remember_subscription(group, subscription, now_ms)
            for name in self._frontier.retry_topics(topic, group)[:1]:
                clients.remember_subscription(
                    group, filters.request_subscription(name, None, filters.TAG), now_ms
                )

    # ---- finding --------------------------------------------------------------------------------

    def _collect(self, batch: _Batch, now_ms: int) -> None:
        header, frontier = batch.header, self._frontier
        turn = self._broker.random.randrange(100)
        retry_first = turn < self._settings.pop_from_retry_probability
        if retry_first and not header.order:
            self._collect_retries(batch, turn, now_ms)
        self._pop_queues(batch, header.topic, frontier.visit(header.topic, header.queue_id, turn), now_ms)
        if not retry_first and not header.order and not batch.full:
            self._collect_retries(batch, turn, now_ms)

    def _collect_retries(self, batch: _Batch, turn: int, now_ms: int) -> None:
        """Where there are two retry topics, each comes first half of the time, so both are emptied."""
        names = self._frontier.retry_topics(batch.header.topic, batch.header.consumer_group)
        for name in reversed(names) if turn % 2 == 0 else names:
            self._pop_queues(batch, name, self._frontier.visit(name, ALL_QUEUES, turn), now_ms)

    def _pop_queues(self, batch: _Batch, topic: str, queue_ids: Sequence[int], now_ms: int) -> None:
        for index, queue_id in enumerate(queue_ids):
            if batch.full:
                if not batch.header.order:
                    batch.rest += self._frontier.backlog(
                        batch.header.consumer_group, topic, queue_ids[index:]
                    )
                return
            self._pop_queue(batch, topic, queue_id, now_ms)

    def _pop_queue(self, batch: _Batch, topic: str, queue_id: int, now_ms: int) -> None:
        header, store = batch.header, self._store
        group = header.consumer_group
        if self._broker.offsets.take_reset(group, topic, queue_id) is not None:
            self._orders.drop_queue(topic, group, queue_id)
        begin = self._frontier.begin(group, topic, queue_id, header.init_mode, now_ms)
        if begin is None:
            return
        start = begin
        if header.order and self._orders.is_blocked(
            group, topic, queue_id, header.attempt_id, batch.pop_ms, header.invisible_time
        ):
            return
        newest = store.max_offset(topic, queue_id)
        if start == newest:
            return
        if self._settings.enable_pop_message_threshold and self._is_crowded(topic, group, queue_id):
            batch.rest += max(0, newest - start)
            return
        result = self._read(batch, topic, queue_id, start)
        if result.status in _CORRECTED:
            start = result.next_offset
            self._broker.offsets.commit(group, topic, queue_id, start, now_ms)
            result = self._read(batch, topic, queue_id, start)
        for _ in range(PASSING_READS):
            if result.status is not GetStatus.NO_MATCHED_MESSAGE or result.next_offset >= result.max_offset:
                break
            start = result.next_offset
            result = self._read(batch, topic, queue_id, start)
        if result.count:
            if not self._take(batch, topic, queue_id, start, result, now_ms):
                batch.rest += max(0, result.max_offset - start)
                return
        elif result.status in _PASSED_OVER and result.next_offset > begin:
            self._broker.offsets.commit(group, topic, queue_id, result.next_offset, now_ms)
            batch.progressed = True
        batch.rest += max(0, result.max_offset - result.next_offset)

    def _is_crowded(self, topic: str, group: str, queue_id: int) -> bool:
        queue = self._leases.find_queue(topic, group, queue_id)
        return queue is not None and queue.in_flight > self._settings.pop_inflight_message_threshold

    def _read(self, batch: _Batch, topic: str, queue_id: int, start: int) -> GetResult:
        return self._store.get(
            topic,
            queue_id,
            start,
            batch.header.max_msg_nums - batch.count,
            batch.wanted.by_code,
            batch.wanted.by_record,
            self._settings.max_transfer_bytes_on_message_in_memory,
        )

    def _take(
        self, batch: _Batch, topic: str, queue_id: int, start: int, result: GetResult, now_ms: int
    ) -> bool:
        """Leases what was read and adds it to the answer. False if that cannot be noted down."""
        header = batch.header
        group = header.consumer_group
        offsets = _offsets_of(result, start)
        flag = retry_flag(topic)
        if header.order:
            batch.order_counts += self._orders.delivered(
                (topic, group, queue_id), offsets, batch.pop_ms, header.invisible_time, header.attempt_id
            )
            batch.position = self._store.end
        else:
            queue = self._leases.queue(topic, group, queue_id)
            span = offsets[-1] - start + 1
            bits = (1 << span) - 1 if span == len(offsets) else sum(1 << offset - start for offset in offsets)
            lease = Lease(start, batch.pop_ms, header.invisible_time, 0, batch.peer.remote_host, span, bits)
            if self._leases.get(queue, start, batch.pop_ms) is not None:
                return False  # set back to where it was, all within a millisecond
            position = self._leases.add(queue, lease, result.next_offset, now_ms)
            if position is None:
                return False
            batch.position = position
        batch.start_offsets.append(f"{flag} {queue_id} {start}")
        batch.message_offsets.append(f"{flag} {queue_id} {','.join(map(str, offsets))}")
        if is_retry_topic(topic) and not self._settings.pop_response_return_actual_retry_topic:
            name = self._settings.broker_name
            handle = Handle(
                start, batch.pop_ms, header.invisible_time, REVIVE_QUEUE, flag, name, queue_id, offset=0
            )
            parts = _as_normal(result.parts, header.topic, handle)
        else:
            parts = result.parts
        batch.parts += parts
        batch.count += result.count
        batch.size += result.bytes if parts is result.parts else sum(map(len, parts))
        batch.full = batch.count >= header.max_msg_nums or batch.size >= limits.POP_MAX_BYTES
        self._broker.statistics.count_get(group, topic, queue_id, result.count, result.bytes)
        return True

    # ---- answering ------------------------------------------------------------------------------

    def _answer(self, batch: _Batch) -> PopResponseHeader:
        header = batch.header
        return PopResponseHeader(
            batch.pop_ms,
            header.invisible_time,
            ORDER_REVIVE_QUEUE if header.order else REVIVE_QUEUE,
            batch.rest,
            ";".join(batch.start_offsets),
            ";".join(batch.message_offsets),
            ";".join(batch.order_counts) if header.order else None,
        )

    def _deliver(self, peer: Peer, command: Command, batch: _Batch) -> None:
        if command.flag & ONEWAY_FLAG:
            return
        head = encode_response_head(command, ResponseCode.SUCCESS, "FOUND", self._answer(batch), batch.size)
        self._broker.reply_when_durable(peer, command, batch.position, head, *batch.parts)


def _offsets_of(result: GetResult, start: int) -> list[int]:
    """Queue offsets of the messages that were read."""
    if result.next_offset - start == result.count:
        return list(range(start, result.next_offset))
    offsets = []
    for part in result.parts:
        position, end = 0, len(part)
        while position < end:
            size, offset = _unpack_place(part, position)
            offsets.append(offset)
            position += size
    return offsets


def _as_normal(parts: list[Buffer], topic: str, handle: Handle) -> list[Buffer]:
    """Messages of a retry topic as clients want to see them: under the topic that they were sent to.

    Their handles go along, because nothing else in the record would lead back to the retry topic.
    """
    name = topic.encode()
    return [_encode_as(record, name, handle) for part in parts for record in split_records(part)]


def _encode_as(record: RecordView, topic: bytes, handle: Handle) -> Buffer:
    text = record.properties_text
    if find_property(text, Key.POP_CK) is None:
        text = add_property(text, Key.POP_CK, str(handle._replace(offset=record.queue_offset)))
    properties = text.encode()
    if len(properties) > limits.MAX_PROPERTIES_BYTES:
        return record.buffer[record.offset : record.offset + record.size]  # clients take this form, too
    return encode_record(
        topic=topic,
        queue_id=record.queue_id,
        flag=record.flag,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=record.born_host,
        store_ms=record.store_ms,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_offset=record.prepared_offset,
        body=record.body,
        properties=properties,
    )
