"""A history of what consumers asked a broker and were told, checked against what POP promises.

Tell a `History` everything that happens, in order and in the broker's time, and look at `violations` at the
end: no message lost, none with two consumers at once, none back before its time nor later than it may be,
attempts that only grow, and the order of orderly queues. What cannot be known is not held against the broker:
a request that was never answered may have been done or not.

    history = History()
    history.sent("m1", now_ms)
    history.delivered("m1", handle, now_ms, until_ms=now_ms + 30_000, attempt=0)
    history.ack_asked(handle, now_ms)
    history.acked(handle)
    history.finished(now_ms)
    assert not history.violations
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

LATE_MS = 200
"""A message must be there again this soon after its time, for a consumer that asks for it."""
LATE_AFTER_START_MS = 1_000
"""The same for messages whose time ended while the broker was down."""


class _Lease:
    __slots__ = ("ack_in_time", "attempt_id", "ends_ms", "over_ms")

    def __init__(self, until_ms: int, attempt_id: str | None) -> None:
        self.ends_ms = until_ms
        """Not before this may the message be given to somebody else."""
        self.over_ms = until_ms
        """After this it must be; later than `ends_ms` where it is not known which of two times counts."""
        self.attempt_id = attempt_id
        self.ack_in_time = False


class _Message:
    __slots__ = (
        "attempt",
        "deliveries",
        "done",
        "doubtful",
        "excused",
        "expected",
        "leases",
        "place",
        "sent_ms",
        "unsure",
    )

    def __init__(self) -> None:
        self.sent_ms: int | None = None
        self.leases: dict[Hashable, _Lease] = {}
        self.deliveries = 0
        self.attempt = 0
        self.expected: int | None = None
        """The attempt of the next delivery, where that is known."""
        self.done = False
        """Acked in time, and told so."""
        self.unsure = False
        """Perhaps done: an ack came too late or was not answered."""
        self.doubtful = False
        """There may be two copies of it: the broker crashed while it was on its way back."""
        self.excused = False
        """Somebody reset its group: it may come again at any time."""
        self.place: tuple[Hashable, int] | None = None


class _Queue:
    """An orderly queue."""

    __slots__ = ("asked", "confirmed")

    def __init__(self) -> None:
        self.asked: set[int] = set()
        """Offsets that somebody wanted to ack in time, whatever came of it."""
        self.confirmed: set[int] = set()

    def first_open(self, acked: set[int]) -> int:
        offset = 0
        while offset in acked:
            offset += 1
        return offset


class History:
    def __init__(self, *, late_ms: int = LATE_MS, late_after_start_ms: int = LATE_AFTER_START_MS) -> None:
        self.violations: list[str] = []
        self._late_ms = late_ms
        self._late_after_start_ms = late_after_start_ms
        self._messages: dict[str, _Message] = {}
        self._by_handle: dict[Hashable, str] = {}
        self._queues: dict[Hashable, _Queue] = {}
        self._up_ms = 0
        """Since the last start the broker had to be ready from here on."""
        self._blind_ms = 0
        """Up to here some message may be with a consumer that was never told so."""
        self._lost_until_ms: list[int] = []

    def _wrong(self, now_ms: int, message: str, problem: str) -> None:
        self.violations.append(f"at {now_ms}: {message} {problem}")

    # ---- producers ------------------------------------------------------------------------------

    def send_asked(self, message: str) -> None:
        self._messages.setdefault(message, _Message())

    def sent(self, message: str, now_ms: int) -> None:
        """From now on it must not be lost."""
        self.send_asked(message)
        self._messages[message].sent_ms = now_ms

    # ---- consumers ------------------------------------------------------------------------------

    def delivered(
        self,
        message: str,
        handle: Hashable,
        now_ms: int,
        *,
        until_ms: int,
        attempt: int,
        attempt_id: str | None = None,
    ) -> None:
        """A consumer has it, until then. `attempt` counts from 0; `attempt_id` is that of an orderly pop."""
        found = self._messages.get(message)
        if found is None:
            self._wrong(now_ms, message, "was delivered, but nobody sent it")
            return
        if not found.excused:
            self._check_delivery(found, message, now_ms, attempt, attempt_id)
        found.leases = {handle: _Lease(until_ms, attempt_id)}
        found.deliveries += 1
        found.attempt = max(found.attempt, attempt)
        found.expected = attempt + 1 if found.place is None else None
        found.unsure = False
        self._by_handle[handle] = message

    def _check_delivery(
        self, found: _Message, message: str, now_ms: int, attempt: int, attempt_id: str | None
    ) -> None:
        same_attempt = attempt_id is not None and any(
            lease.attempt_id == attempt_id for lease in found.leases.values()
        )
        if found.doubtful:
            return
        early_ms = max((lease.ends_ms - now_ms for lease in found.leases.values()), default=0)
        if early_ms > 0 and not same_attempt:
            self._wrong(now_ms, message, f"is with two consumers, {early_ms} ms early")
        if found.done and found.place is None:
            self._wrong(now_ms, message, "came back after its ack")
        if attempt < found.attempt:
            self._wrong(now_ms, message, f"came as attempt {attempt} after attempt {found.attempt}")
        elif found.expected is not None and not found.done:
            fits = attempt >= found.expected if self._blind_ms else attempt == found.expected
            if not fits:
                self._wrong(now_ms, message, f"came as attempt {attempt} instead of {found.expected}")

    def ordered(self, queue: Hashable, batch: Sequence[tuple[int, str]], now_ms: int) -> None:
        """An orderly pop gave these (offset, message); to be told before their deliveries."""
        state = self._queues.setdefault(queue, _Queue())
        first = batch[0][0]
        for place, (offset, message) in enumerate(batch):
            if offset != first + place:
                self._wrong(now_ms, message, f"is at offset {offset} of its batch instead of {first + place}")
            self.send_asked(message)
            self._messages[message].place = (queue, offset)
        given = {message for _, message in batch}
        for message, found in self._messages.items():
            if found.place is not None and found.place[0] == queue and message not in given and found.leases:
                found.leases.clear()  # a batch takes the place of the one before
                found.unsure = True
        if first < state.first_open(state.confirmed):
            self._wrong(now_ms, batch[0][1], "came again after it and all in front of it were acked")
        state.confirmed = {offset for offset in state.confirmed if offset < first}  # those behind come again
        if first > state.first_open(state.asked):
            self._wrong(now_ms, batch[0][1], "came before messages in front of it were acked")

    def ack_asked(self, handle: Hashable, now_ms: int) -> None:
        found, lease = self._find(handle)
        if found is not None and found.place is not None:
            queue, offset = found.place
            self._queues[queue].asked.add(offset)
        if found is None or lease is None:
            return
        lease.ack_in_time = now_ms < lease.ends_ms
        found.unsure = True

    def acked(self, handle: Hashable) -> None:
        """The ack was answered with success."""
        found, lease = self._find(handle)
        if found is None or lease is None or not lease.ack_in_time:
            return
        found.done = True
        del found.leases[handle]
        if found.place is not None:
            queue, offset = found.place
            self._queues[queue].confirmed.add(offset)

    def change_asked(self, handle: Hashable, until_ms: int) -> None:
        found, lease = self._find(handle)
        if found is not None and lease is not None:
            found.expected = None
            lease.ends_ms = min(lease.ends_ms, until_ms)
            lease.over_ms = max(lease.over_ms, until_ms)

    def changed(self, old: Hashable, new: Hashable, until_ms: int, *, suspend: bool = False) -> None:
        """The change was answered with success: the new handle counts, the old one does not."""
        found, lease = self._find(old)
        if found is None or lease is None:
            return
        del found.leases[old]
        found.leases[new] = _Lease(until_ms, lease.attempt_id)
        self._by_handle[new] = self._by_handle[old]
        if found.place is None and not found.excused:
            found.expected = found.attempt + (not suspend)

    def _find(self, handle: Hashable) -> tuple[_Message | None, _Lease | None]:
        message = self._by_handle.get(handle)
        if message is None:
            return None, None
        found = self._messages[message]
        return found, found.leases.get(handle)

    def pop_lost(self, now_ms: int, invisible_ms: int) -> None:
        """A pop was never answered: some messages may be away for that long, and handles of an orderly batch
        may be replaced by others that nobody knows."""
        self._blind_ms = max(self._blind_ms, now_ms + invisible_ms)
        self._lost_until_ms.append(now_ms + invisible_ms)
        for found in self._messages.values():
            if found.place is not None and found.leases:
                found.leases.clear()
                found.unsure = True

    def emptied(self, now_ms: int, messages: Iterable[str] | None = None) -> None:
        """A consumer could have had more, and there was nothing: of these messages, or of all.

        What orderly consumers have is not looked at: their queues are blocked for good reasons.
        """
        for message in self._messages if messages is None else messages:
            found = self._messages[message]
            if found.sent_ms is None or found.done or found.unsure or found.place is not None:
                continue
            due_ms = max(found.sent_ms, self._up_ms)
            for lease in found.leases.values():
                due_ms = max(due_ms, lease.over_ms + self._late_ms)
            if self._blind_ms:
                due_ms = max(due_ms, self._blind_ms + self._late_ms)
            if now_ms > due_ms:
                self._wrong(now_ms, message, f"is not given out, {now_ms - due_ms} ms after it had to be")
                found.unsure = True

    # ---- everything else ------------------------------------------------------------------------

    def reset_asked(self, messages: Iterable[str]) -> None:
        """Somebody moves the group: these may come again, and older handles may count no more."""
        for message in messages:
            found = self._messages[message]
            found.excused = found.unsure = True
            found.expected = None
            found.leases.clear()

    def reset(self, again: Iterable[str], skipped: Iterable[str], now_ms: int) -> None:
        """The group was moved: some must come again, some need not come any more."""
        for message in again:
            found = self._messages[message]
            if found.leases:
                continue  # it has come again already
            found.done = found.unsure = False
            found.sent_ms = max(found.sent_ms, now_ms) if found.sent_ms is not None else None
        for message in skipped:
            self._messages[message].done = True

    def crashed(self, now_ms: int) -> None:
        """Leases outlive a crash; but what was on its way back may have been copied twice."""
        unknown = any(until_ms <= now_ms for until_ms in self._lost_until_ms)
        for found in self._messages.values():
            if unknown or any(lease.ends_ms <= now_ms for lease in found.leases.values()):
                found.doubtful = True

    def started(self, now_ms: int) -> None:
        self._up_ms = now_ms + self._late_after_start_ms

    def finished(self, now_ms: int) -> None:
        """Consumers have taken and acked everything that there was."""
        for message, found in self._messages.items():
            if found.sent_ms is None or found.done:
                continue
            if found.unsure and (found.deliveries or found.excused):
                continue
            problem = "was never acked" if found.deliveries else "was lost"
            self._wrong(now_ms, message, problem)
