"""Leases: which messages are in flight, with whom, and until when.

A popped batch is one record with a bit for each message that is not acked yet; a message whose time was
changed has a record of its own. Records stay packed, 80 bytes or so, so that a million of them fit in
memory and a snapshot is a matter of joining them.

Every change is journaled. A pop's entry also holds the offset behind the batch: the lease and the group's
progress are one step, so no crash can keep one without the other. Pops are answered when their entry is
durable, because a lease that a crash forgets would be handed out a second time before it ends, and acks
too, because an acked message must not come back after a restart. Replaying an entry twice changes nothing.

A batch is mostly acked message by message, one request after the other: such a run is one entry, which grows
until something else is to be noted or the group goes to the disk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from penstock.broker.offsets import Offsets, offset_key
from penstock.broker.persistence import Kind, Note
from penstock.broker.pop.due import DueTimes

_HEAD: Final = struct.Struct(">HqqqB")
"""Size of the record, start offset, pop time, invisible time, flags; the holder and the bits follow."""
_TERMS: Final = struct.Struct(">qB")
_TERMS_AT: Final = 18
"""Where the invisible time and the flags stand in a record."""
_PREFIX: Final = struct.Struct(">iH")
"""Queue id, length of `topic@group`, which follows."""
_OFFSET: Final = struct.Struct(">q")
_KEY: Final = struct.Struct(">qq")
_MESSAGE: Final = struct.Struct(">qqq")
_COUNT: Final = struct.Struct(">I")
_MAGIC: Final = b"PNSTKL01"
_TIME_BITS: Final = 44
_V4_BYTES: Final = 8
_V6_BYTES: Final = 20
PORTION: Final = 4_096
"""Records of a snapshot that are copied in one go, in a millisecond or two."""
MAX_TIME_MS: Final = (1 << _TIME_BITS) - 1

CHANGED: Final = 1
"""The lease came from a change of its invisible time: the consumer wants the message later, or longer."""
SUSPENDED: Final = 2
"""Its end is not a failed attempt."""
_V6: Final = 4


Grow = Callable[[Callable[[], None]], int]


class Lease(NamedTuple):
    start: int
    pop_ms: int
    invisible_ms: int
    flags: int
    holder: bytes
    """Packed address of the connection that it was given to."""
    span: int
    """The messages lie at `start` and up to this many offsets behind it."""
    unacked: int
    """Bit i stands for the message at `start + i`."""

    @property
    def visible_ms(self) -> int:
        return self.pop_ms + self.invisible_ms

    def offsets(self) -> Iterator[int]:
        bits, offset = self.unacked, self.start
        while bits:
            if bits & 1:
                yield offset
            bits >>= 1
            offset += 1


def _pack(lease: Lease) -> bytes:
    flags = lease.flags if len(lease.holder) == _V4_BYTES else lease.flags | _V6
    size = _HEAD.size + len(lease.holder) + (lease.span + 7) // 8
    head = _HEAD.pack(size, lease.start, lease.pop_ms, lease.invisible_ms, flags)
    return b"".join((head, lease.holder, lease.unacked.to_bytes((lease.span + 7) // 8, "little")))


def _unpack(record: bytes) -> Lease:
    _, start, pop_ms, invisible_ms, flags = _HEAD.unpack_from(record)
    bits_at = _HEAD.size + (_V6_BYTES if flags & _V6 else _V4_BYTES)
    return Lease(
        start,
        pop_ms,
        invisible_ms,
        flags & ~_V6,
        record[_HEAD.size : bits_at],
        (len(record) - bits_at) * 8,
        int.from_bytes(record[bits_at:], "little"),
    )


def _key(start: int, pop_ms: int) -> int:
    """What a handle tells of a lease; unique in its queue."""
    return start << _TIME_BITS | pop_ms


class LeaseQueue:
    """The leases of one group on one queue of a topic (the real one, so possibly a retry topic)."""

    __slots__ = ("delayed", "group", "in_flight", "leases", "offset_key", "prefix", "queue_id", "topic")

    def __init__(self, topic: str, group: str, queue_id: int) -> None:
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.offset_key = offset_key(topic, group)
        name = self.offset_key.encode()
        self.prefix = _PREFIX.pack(queue_id, len(name)) + name
        self.leases: dict[int, bytes] = {}
        self.in_flight = 0
        """Messages leased and not acked."""
        self.delayed = 0
        """Those of them whose invisible time was changed."""

    def count(self, flags: int, messages: int) -> None:
        self.in_flight += messages
        if flags & CHANGED:
            self.delayed += messages


class Leases:
    file_name = "leases"
    prompt = False

    def __init__(self, note: Note, grow: Grow, offsets: Offsets) -> None:
        """`grow` promises an entry: the function given to it is called to note it, before the disk is."""
        self.dirty = False
        self.count = 0
        """Records, not messages."""
        self.due = DueTimes()
        self._note_now = note
        self._grow = grow
        self._run: LeaseQueue | None = None
        """Whose messages the acks of a run were of, and of which lease."""
        self._run_key = 0
        self._run_bits = 0
        self._offsets = offsets
        self._queues: dict[tuple[str, str, int], LeaseQueue] = {}
        self._by_prefix: dict[bytes, LeaseQueue] = {}
        self._clock_ms = 0
        self._skew_ms = 0
        self._latest_pop_ms = 0

    # ---- time -----------------------------------------------------------------------------------

    def clock(self, now_ms: int) -> int:
        """The time that leases are measured by: as the wall clock, but it never turns back.

        So a clock that is set back neither makes handles ambiguous nor keeps messages away for longer.
        """
        time_ms = now_ms + self._skew_ms
        if time_ms < self._clock_ms:
            self._skew_ms += self._clock_ms - time_ms
            return self._clock_ms
        self._clock_ms = time_ms
        return time_ms

    def pop_time(self, now_ms: int) -> int:
        """The time that a pop happens at, for its handles."""
        self._latest_pop_ms = max(self._latest_pop_ms, self.clock(now_ms))
        return self._clock_ms

    def renew_handles(self) -> None:
        """What is popped from now on has handles that were never given out, even within this millisecond:
        a queue goes on where it was before, and old handles must not fit what is popped then."""
        if self._clock_ms <= self._latest_pop_ms:
            self._skew_ms += self._latest_pop_ms + 1 - self._clock_ms
            self._clock_ms = self._latest_pop_ms + 1

    def latest_ms(self, now_ms: int) -> int:
        """No handle that was ever given out has a later pop time."""
        return max(self.clock(now_ms), self._latest_pop_ms)

    def start(self, now_ms: int, newest_record_ms: int) -> None:
        """After loading and replaying: every lease gets its place in time.

        A clock that was set back while the broker was down must not keep a message for longer than its
        invisible time, and a pop's time is never before its messages' store times: see the reviver.
        """
        self._clock_ms = max(now_ms, newest_record_ms)
        self._skew_ms = self._clock_ms - now_ms
        for queue in self._queues.values():
            for key, record in queue.leases.items():
                lease = _unpack(record)
                queue.count(lease.flags, lease.unacked.bit_count())
                self.due.add(queue, key, min(lease.visible_ms, self._clock_ms + lease.invisible_ms))
                self._latest_pop_ms = max(self._latest_pop_ms, lease.pop_ms)
            self.count += len(queue.leases)

    # ---- asking ---------------------------------------------------------------------------------

    def find_queue(self, topic: str, group: str, queue_id: int) -> LeaseQueue | None:
        return self._queues.get((topic, group, queue_id))

    def queue(self, topic: str, group: str, queue_id: int) -> LeaseQueue:
        queue = self._queues.get((topic, group, queue_id))
        if queue is None:
            queue = self._queues[topic, group, queue_id] = LeaseQueue(topic, group, queue_id)
            self._by_prefix[queue.prefix] = queue
        return queue

    def queues(self) -> list[LeaseQueue]:
        return list(self._queues.values())

    def get(self, queue: LeaseQueue, start: int, pop_ms: int) -> Lease | None:
        record = queue.leases.get(_key(start, pop_ms)) if pop_ms <= MAX_TIME_MS else None
        return _unpack(record) if record is not None else None

    def at(self, queue: LeaseQueue, key: int) -> Lease | None:
        """By a key from the due times."""
        record = queue.leases.get(key)
        return _unpack(record) if record is not None else None

    def in_order(self, concerns: Callable[[LeaseQueue], bool]) -> Iterator[tuple[LeaseQueue, Lease]]:
        """Leases of some queues, those that end first in front, to the width of a slot."""
        for queue, key in self.due.walk(concerns):
            record = queue.leases.get(key)
            if record is not None:
                yield queue, _unpack(record)

    def lowest_offset(self, queue: LeaseQueue) -> int:
        """Of the messages in flight, of which there must be some.

        The lease that begins first may have its lower messages acked, so others may reach lower.
        """
        lowest = next(_unpack(queue.leases[min(queue.leases)]).offsets())
        ahead = [record for key, record in queue.leases.items() if key < lowest << _TIME_BITS]
        return min((next(_unpack(record).offsets()) for record in ahead), default=lowest)

    # ---- changing -------------------------------------------------------------------------------

    def add(self, queue: LeaseQueue, lease: Lease, next_offset: int, now_ms: int) -> int | None:
        """A popped batch; the group goes on at `next_offset`. The journal position, None without room."""
        if not self._offsets.place(queue.offset_key, queue.queue_id, next_offset, now_ms):
            return None
        record = self._put(queue, lease)
        return self._note(Kind.LEASED, queue.prefix + _OFFSET.pack(next_offset) + record)

    def ack(self, queue: LeaseQueue, start: int, pop_ms: int, invisible_ms: int, offset: int) -> bool:
        """One message is acked by its handle; False if it is not in flight. As `release`, but the busiest of
        all requests, so without unpacking."""
        key = start << _TIME_BITS | pop_ms
        record = queue.leases.get(key)
        if record is None:
            return False
        given_ms, flags = _TERMS.unpack_from(record, _TERMS_AT)
        bits_at = _HEAD.size + (_V6_BYTES if flags & _V6 else _V4_BYTES)
        unacked = int.from_bytes(record[bits_at:], "little")
        index = offset - start
        if given_ms != invisible_ms or index < 0 or not unacked >> index & 1:
            return False
        bit = 1 << index
        if unacked == bit:
            del queue.leases[key]
            self.count -= 1
            self.due.ended(queue, pop_ms + given_ms)
        else:
            left = (unacked ^ bit).to_bytes(len(record) - bits_at, "little")
            queue.leases[key] = record[:bits_at] + left
        queue.in_flight -= 1
        if flags & CHANGED:
            queue.delayed -= 1
        self.dirty = True
        if queue is self._run and key == self._run_key:
            self._run_bits |= bit
        else:
            self._end_run()
            self._run, self._run_key, self._run_bits = queue, key, bit
            self._grow(self._end_run)
        return True

    def _end_run(self) -> None:
        queue, self._run = self._run, None
        if queue is not None:
            place = _KEY.pack(self._run_key >> _TIME_BITS, self._run_key & MAX_TIME_MS)
            bits = self._run_bits.to_bytes((self._run_bits.bit_length() + 7) // 8, "little")
            self._note_now(Kind.LEASE_RELEASED, queue.prefix + place + bits)

    def _note(self, kind: int, payload: bytes) -> int:
        """Entries keep the order of what happened."""
        self._end_run()
        return self._note_now(kind, payload)

    def release(self, queue: LeaseQueue, lease: Lease, mask: int) -> int:
        """Messages of a lease are acked, or have gone elsewhere; the journal position."""
        self._clear(queue, lease, mask)
        bits = (mask & lease.unacked).to_bytes((lease.span + 7) // 8, "little")
        return self._note(Kind.LEASE_RELEASED, queue.prefix + _KEY.pack(lease.start, lease.pop_ms) + bits)

    def change(self, queue: LeaseQueue, lease: Lease, new: Lease) -> tuple[Lease, int]:
        """One message moves to a lease of its own, whose handle is new even within a millisecond."""
        pop_ms = max(new.pop_ms, lease.pop_ms + 1)
        while _key(new.start, pop_ms) in queue.leases:
            pop_ms += 1
        new = new._replace(pop_ms=pop_ms)
        self._latest_pop_ms = max(self._latest_pop_ms, pop_ms)
        record = self._put(queue, new)
        self._clear(queue, lease, 1 << new.start - lease.start)
        old = _MESSAGE.pack(lease.start, lease.pop_ms, new.start)
        return new, self._note(Kind.LEASE_CHANGED, queue.prefix + old + record)

    def drop(self, queue: LeaseQueue) -> int:
        """All leases of a queue end, and their messages do not come back; the journal position."""
        self.count -= len(queue.leases)
        self._forget(queue)
        self.due.drop_queue(queue)
        return self._note(Kind.LEASES_DROPPED, queue.prefix)

    def _put(self, queue: LeaseQueue, lease: Lease) -> bytes:
        key = _key(lease.start, lease.pop_ms)
        record = queue.leases[key] = _pack(lease)
        queue.count(lease.flags, lease.unacked.bit_count())
        self.count += 1
        self.due.add(queue, key, lease.visible_ms)
        self.dirty = True
        return record

    def _clear(self, queue: LeaseQueue, lease: Lease, mask: int) -> None:
        key = _key(lease.start, lease.pop_ms)
        queue.count(lease.flags, -(lease.unacked & mask).bit_count())
        left = lease.unacked & ~mask
        if left:
            size = (lease.span + 7) // 8
            queue.leases[key] = queue.leases[key][:-size] + left.to_bytes(size, "little")
        else:
            del queue.leases[key]
            self.count -= 1
            self.due.ended(queue, lease.visible_ms)
        self.dirty = True

    def _forget(self, queue: LeaseQueue) -> None:
        queue.leases.clear()
        queue.in_flight = queue.delayed = 0
        self._queues.pop((queue.topic, queue.group, queue.queue_id), None)
        self._by_prefix.pop(queue.prefix, None)
        self.dirty = True

    # ---- surviving ------------------------------------------------------------------------------

    def snapshot(self) -> Iterator[bytes]:
        """In portions: copying a million records at once would keep everybody waiting."""
        queues = [queue for queue in self._queues.values() if queue.leases]
        portion = [_MAGIC, _COUNT.pack(len(queues))]
        for queue in queues:
            records = list(queue.leases.values())
            portion += (queue.prefix, _COUNT.pack(len(records)))
            for first in range(0, len(records), PORTION):
                portion += records[first : first + PORTION]
                if len(portion) >= PORTION:
                    yield b"".join(portion)
                    portion = []
        yield b"".join(portion)

    def load(self, saved: bytes) -> None:
        """Raises ValueError for bytes that are no snapshot."""
        try:
            if saved[: len(_MAGIC)] != _MAGIC:
                raise ValueError("not a snapshot of leases")
            self._load(saved)
        except (struct.error, ValueError) as error:
            self._queues.clear()
            self._by_prefix.clear()
            raise ValueError(str(error)) from None

    def _load(self, saved: bytes) -> None:
        position = len(_MAGIC)
        (queues,) = _COUNT.unpack_from(saved, position)
        position += _COUNT.size
        for _ in range(queues):
            queue, position = self._read_queue(saved, position)
            (leases,) = _COUNT.unpack_from(saved, position)
            position += _COUNT.size
            for _ in range(leases):
                size, start, pop_ms, _, _ = _HEAD.unpack_from(saved, position)
                queue.leases[_key(start, pop_ms)] = saved[position : position + size]
                position += size
        if position != len(saved):
            raise ValueError("the snapshot has the wrong length")

    def _read_queue(self, data: bytes, position: int) -> tuple[LeaseQueue, int]:
        queue_id, size = _PREFIX.unpack_from(data, position)
        end = position + _PREFIX.size + size
        queue = self._by_prefix.get(data[position:end])
        if queue is None:
            topic, _, group = data[position + _PREFIX.size : end].decode().partition("@")
            queue = self.queue(topic, group, queue_id)
        return queue, end

    def replay(self, kind: int, payload: bytes) -> bool:
        if kind == Kind.LEASED:
            queue, position = self._read_queue(payload, 0)
            (next_offset,) = _OFFSET.unpack_from(payload, position)
            self._offsets.restore(queue.offset_key, queue.queue_id, next_offset)
            self._restore(queue, payload[position + _OFFSET.size :])
        elif kind == Kind.LEASE_RELEASED:
            queue, position = self._read_queue(payload, 0)
            start, pop_ms = _KEY.unpack_from(payload, position)
            self._restore_release(
                queue, start, pop_ms, int.from_bytes(payload[position + _KEY.size :], "little")
            )
        elif kind == Kind.LEASE_CHANGED:
            queue, position = self._read_queue(payload, 0)
            start, pop_ms, offset = _MESSAGE.unpack_from(payload, position)
            self._restore_release(queue, start, pop_ms, 1 << offset - start)
            self._restore(queue, payload[position + _MESSAGE.size :])
        elif kind == Kind.LEASES_DROPPED:
            self._forget(self._read_queue(payload, 0)[0])
        else:
            return False
        self.dirty = True
        return True

    @staticmethod
    def _restore(queue: LeaseQueue, record: bytes) -> None:
        _, start, pop_ms, _, _ = _HEAD.unpack_from(record)
        queue.leases[_key(start, pop_ms)] = record

    @staticmethod
    def _restore_release(queue: LeaseQueue, start: int, pop_ms: int, mask: int) -> None:
        key = _key(start, pop_ms)
        record = queue.leases.get(key)
        if record is not None:
            lease = _unpack(record)
            left = lease.unacked & ~mask
            if left:
                queue.leases[key] = _pack(lease._replace(unacked=left))
            else:
                del queue.leases[key]
