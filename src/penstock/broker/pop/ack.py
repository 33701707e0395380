"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: what becomes of messages in flight.

A handle that was honest once (acked before, too late, replaced by a change) is acked with success and without
effect, as the protocol has it: its consumer has nothing left to do. One that cannot be honest (of another
broker, or at odds with the request or with the lease it names) is refused. Neither changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from penstock import limits
from penstock.broker.pop.checks import bad_queue
from penstock.broker.pop.leases import CHANGED, SUSPENDED, Lease, LeaseQueue, Leases
from penstock.broker.pop.orderly import OrderInfos, Verdict
from penstock.broker.replies import Refusal
from penstock.errors import InvalidArgument
from penstock.message.handles import (
    NORMAL,
    ORDER_REVIVE_QUEUE,
    RETRY_V1,
    RETRY_V2,
    Handle,
    parse_handle,
    real_topic,
    retry_flag,
)
from penstock.wire.bodies import BatchAck, BatchAckMessageRequestBody
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command, Ext
from penstock.wire.headers import (
    AckMessageHeader,
    ChangeMessageInvisibletimeHeader,
    ChangeMessageInvisibletimeResponseHeader,
)
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.broker import Broker, Handler

NO_CHANGE: Final = ChangeMessageInvisibletimeResponseHeader(0, 0, 0)
"""The header of refusals."""
CHECKED_BATCHES: Final = 4_096
NOT_GIVEN_OUT: Final = "the handle is not one that was given out"
_FLAGS: Final = (NORMAL, RETRY_V1, RETRY_V2)


class _HandleRequest(Protocol):
    topic: str
    queue_id: int
    offset: int
    extra_info: str


class Acks:
    def __init__(
        self,
        broker: Broker,
        leases: Leases,
        orders: OrderInfos,
        wake: Callable[[str, str, int, int], None],
    ) -> None:
        """`wake` tells those who wait that (real topic, group, queue, now) may have something for them."""
        self._broker = broker
        self._leases = leases
        self._orders = orders
        self._wake = wake
        self._checked: dict[tuple[str, str, str, int], tuple[LeaseQueue, int, int, int]] = {}
        """(handle without its message, group, topic, queue) → leases, start, pop time, invisible time: a
        batch is acked message by message, and its handles differ in the last number only."""
        self.handlers: dict[int, Handler] = {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change,
        }

    @property
    def _crowd(self) -> int:
        """More in flight than this, and a queue may be one that gives nothing until some of it is acked."""
        return self._broker.settings.pop_inflight_message_threshold

    # ---- acking ---------------------------------------------------------------------------------

    def ack(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(AckMessageHeader)
        broker = self._broker
        broker.check_backlog()
        batch, _, place = header.extra_info.rpartition(" ")
        group, topic, queue_id, offset = header.consumer_group, header.topic, header.queue_id, header.offset
        known = self._checked.get((batch, group, topic, queue_id))
        if known is None or place != str(offset) or not self._ack(known, offset, now_ms):
            self._ack_checked(peer, header, batch, now_ms)
        # Also where nothing changed: what made this ack pointless may itself not be durable yet.
        broker.reply(peer, command, position=broker.store.end)

    def _ack_checked(self, peer: Peer, header: AckMessageHeader, batch: str, now_ms: int) -> None:
        handle = self._check(peer, header, None, now_ms)
        start, pop_ms, invisible_ms, revive_queue_id = handle[:4]
        if revive_queue_id == ORDER_REVIVE_QUEUE:
            self._ack_orderly(
                header.topic, header.consumer_group, header.queue_id, header.offset, pop_ms, now_ms
            )
            return
        found = self._find(header.topic, header.consumer_group, handle, None)
        if found is not None:
            if len(self._checked) >= CHECKED_BATCHES:
                self._checked.clear()
            known = found[0], start, pop_ms, invisible_ms
            self._checked[batch, header.consumer_group, header.topic, header.queue_id] = known
            self._ack(known, header.offset, now_ms)

    def _ack(self, known: tuple[LeaseQueue, int, int, int], offset: int, now_ms: int) -> bool:
        """False if there is no such message in flight."""
        queue, start, pop_ms, invisible_ms = known
        if not self._leases.ack(queue, start, pop_ms, invisible_ms, offset):
            return False
        if queue.in_flight == self._crowd:
            self._wake(queue.topic, queue.group, queue.queue_id, now_ms)
        return True

    def _release(self, queue: LeaseQueue, lease: Lease, mask: int, now_ms: int) -> None:
        if not lease.unacked & mask:
            return
        was_crowded = queue.in_flight > self._crowd
        self._leases.release(queue, lease, mask)
        if was_crowded and queue.in_flight <= self._crowd:
            self._wake(queue.topic, queue.group, queue.queue_id, now_ms)

    def _ack_orderly(
        self, topic: str, group: str, queue_id: int, offset: int, pop_ms: int, now_ms: int
    ) -> None:
        offsets = self._broker.offsets
        if offset < offsets.query(group, topic, queue_id):
            return
        time_ms = self._leases.clock(now_ms)
        verdict, next_offset = self._orders.ack((topic, group, queue_id), offset, pop_ms, time_ms)
        if verdict is Verdict.ILLEGAL:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"offset {offset} was not given out, {topic} {queue_id}"
            )
        if verdict is Verdict.ACKED:
            offsets.commit(group, topic, queue_id, next_offset, now_ms)
            if not self._orders.is_blocked(group, topic, queue_id, None, time_ms):
                self._wake(topic, group, queue_id, now_ms)

    def batch_ack(self, peer: Peer, command: Command, now_ms: int) -> None:
        """All entries are looked at before the first one counts."""
        broker = self._broker
        if not command.body:
            raise Refusal(ResponseCode.NO_MESSAGE, "the request has no body")
        body = BatchAckMessageRequestBody.decode(command.body)
        if not body.acks:
            raise Refusal(ResponseCode.NO_MESSAGE, "the request acks nothing")
        if body.broker_name is not None and body.broker_name != broker.settings.broker_name:
            raise _forged(f"the messages are of broker {body.broker_name}", None)
        for entry in body.acks:
            if entry.retry not in _FLAGS:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"{entry.retry[:64]!r} is no retry flag")
            if len(entry.bit_set) > limits.ACK_BITS_BYTES:
                raise _forged(f"no batch has {8 * len(entry.bit_set)} messages", None)
        broker.check_backlog()
        refusal: Refusal | None = None
        for entry in body.acks:
            try:
                self._ack_entry(entry, now_ms)
            except Refusal as problem:
                refusal = problem
        if refusal is not None:
            raise refusal
        broker.reply(peer, command, position=broker.store.end)

    def _ack_entry(self, entry: BatchAck, now_ms: int) -> None:
        """What is not there any more is passed over, as in a single ack."""
        topic = real_topic(entry.topic, entry.consumer_group, entry.retry)
        group, queue_id = entry.consumer_group, entry.queue_id
        if self._broker.topics.get(topic) is None:
            return
        if entry.revive_queue_id == ORDER_REVIVE_QUEUE:
            newest = self._broker.store.max_offset(topic, queue_id)
            for offset in _bits(entry):
                if offset < newest:
                    self._ack_orderly(topic, group, queue_id, offset, entry.pop_time, now_ms)
            return
        if entry.pop_time > self._leases.latest_ms(now_ms):
            raise _forged("a handle is of a pop that is yet to come", None)
        queue = self._leases.find_queue(topic, group, queue_id)
        if queue is None or entry.start_offset < 0 or entry.pop_time < 0:
            return
        lease = self._leases.get(queue, entry.start_offset, entry.pop_time)
        if lease is None:
            return
        bits = int.from_bytes(entry.bit_set, "little")
        if lease.invisible_ms != entry.invisible_time or bits.bit_length() > lease.span:
            raise _forged(NOT_GIVEN_OUT, None)
        self._release(queue, lease, bits, now_ms)

    # ---- changing -------------------------------------------------------------------------------

    def change(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(ChangeMessageInvisibletimeHeader)
        broker = self._broker
        handle = self._check(peer, header, NO_CHANGE, now_ms)
        if not 0 <= header.invisible_time <= limits.MAX_INVISIBLE_MS:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {header.invisible_time} is not between 0 and {limits.MAX_INVISIBLE_MS}",
                NO_CHANGE,
            )
        broker.check_backlog()
        if handle.is_orderly:
            answer = self._change_orderly(header, handle, now_ms)
        else:
            answer = self._change(peer, header, handle, now_ms)
        broker.reply(peer, command, ext=answer, position=broker.store.end)

    def _change(
        self, peer: Peer, header: ChangeMessageInvisibletimeHeader, handle: Handle, now_ms: int
    ) -> ChangeMessageInvisibletimeResponseHeader:
        time_ms = self._leases.clock(now_ms)
        found = self._find(header.topic, header.consumer_group, handle, NO_CHANGE)
        if found is None:
            raise _gone(handle)
        queue, lease = found
        if not lease.unacked >> handle.offset - lease.start & 1 or lease.visible_ms <= time_ms:
            raise _gone(handle)
        flags = CHANGED | SUSPENDED if header.suspend else CHANGED
        wanted = Lease(handle.offset, time_ms, header.invisible_time, flags, peer.remote_host, 1, 1)
        new, _ = self._leases.change(queue, lease, wanted)
        return ChangeMessageInvisibletimeResponseHeader(new.pop_ms, new.invisible_ms, handle.revive_queue_id)

    def _change_orderly(
        self, header: ChangeMessageInvisibletimeHeader, handle: Handle, now_ms: int
    ) -> ChangeMessageInvisibletimeResponseHeader:
        topic, group, queue_id, offset = header.topic, header.consumer_group, header.queue_id, header.offset
        if offset < self._broker.offsets.query(group, topic, queue_id):
            return NO_CHANGE
        time_ms = self._leases.clock(now_ms)
        visible_ms = time_ms + header.invisible_time
        if not self._orders.change((topic, group, queue_id), offset, handle.pop_ms, visible_ms, time_ms):
            raise _gone(handle)
        return ChangeMessageInvisibletimeResponseHeader(
            handle.pop_ms, visible_ms - handle.pop_ms, ORDER_REVIVE_QUEUE
        )

    # ---- checks, in the protocol's order --------------------------------------------------------

    def _check(self, peer: Peer, header: _HandleRequest, no_answer: Ext | None, now_ms: int) -> Handle:
        """An ack may name the offset behind the last message, a change may not."""
        broker, topic, queue_id = self._broker, header.topic, header.queue_id
        config = broker.topics.get(topic)
        if config is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! ", no_answer
            )
        if not 0 <= queue_id < config.read_queue_nums:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, bad_queue(peer, topic, queue_id, config), no_answer)
        store = broker.store
        oldest, newest = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if not oldest <= header.offset <= (newest if no_answer is None else newest - 1):
            raise Refusal(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{header.offset}, store:{oldest}~{newest}",
                no_answer,
            )
        try:
            handle = parse_handle(header.extra_info)
        except InvalidArgument as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error), no_answer) from None
        start, pop_ms, _, revive_queue_id, flag, name, given_queue_id, offset = handle
        if name != broker.settings.broker_name:
            raise _forged(f"the handle is of broker {name}", no_answer)
        if (
            given_queue_id != queue_id
            or offset != header.offset
            or flag != retry_flag(topic)
            or start > offset
        ):
            raise _forged("the handle is of another message", no_answer)
        if (
            pop_ms > now_ms
            and revive_queue_id != ORDER_REVIVE_QUEUE
            and pop_ms > self._leases.latest_ms(now_ms)
        ):
            raise _forged("the handle is of a pop that is yet to come", no_answer)
        return handle

    def _find(
        self, topic: str, group: str, handle: Handle, no_answer: Ext | None
    ) -> tuple[LeaseQueue, Lease] | None:
        queue = self._leases.find_queue(topic, group, handle.queue_id)
        lease = self._leases.get(queue, handle.start_offset, handle.pop_ms) if queue is not None else None
        if queue is None or lease is None:
            return None
        if handle.invisible_ms != lease.invisible_ms or handle.offset - lease.start >= lease.span:
            raise _forged(NOT_GIVEN_OUT, no_answer)
        return queue, lease


def _bits(entry: BatchAck) -> list[int]:
    bits = int.from_bytes(entry.bit_set, "little")
    return [entry.start_offset + index for index in range(bits.bit_length()) if bits >> index & 1]


def _forged(remark: str, no_answer: Ext | None) -> Refusal:
    return Refusal(ResponseCode.INVALID_PARAMETER, remark, no_answer)


def _gone(handle: Handle) -> Refusal:
    return Refusal(
        ResponseCode.NO_MESSAGE, f"the lease of offset {handle.offset} has ended, {handle}", NO_CHANGE
    )
