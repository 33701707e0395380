"""What happened to messages in consumer groups, and whether it may have happened.

A test notes what was stored, every listener call, the offsets that a broker holds and the dead letters.
`problems` then tells what at-least-once consumption does not allow:

- a stored message that was neither consumed nor became a dead letter;
- an attempt that no failed attempt before it explains, that came too early, or that is one too many;
- a dead letter that did not fail in all of its attempts;
- a committed offset past a message that nobody is done with;
- in orderly groups, a message begun before those ahead of it in its queue were done with, or two listeners
  in one queue at a time.

Duplicates are allowed, and so is the loss of a message whose sender was not told that it is stored. Queues
must be consumed from offset 0 and without a filter.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from penstock.message.names import dlq_topic, is_retry_topic
from penstock.message.queue import MessageQueue

ROUTE_S = 60.0
"""How long clients may take to find a broker that is back."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What a group's consumers were told."""

    topic: str
    orderly: bool = False
    max_reconsume_times: int = 16
    consume_timeout_s: float = 15 * 60
    """A call that takes longer is taken for failed, whatever it says in the end."""
    retry_delays_s: tuple[float, ...] = ()
    """Shortest time between the end of attempt n and the begin of attempt n + 1; empty: any."""


@dataclass(slots=True)
class Call:
    """One message with one listener."""

    group: str
    consumer: str
    message_id: str
    queue: MessageQueue
    offset: int
    attempt: int
    began: float
    ended: float | None = None
    ok: bool = False
    died: float | None = None
    """When its consumer died, so that it never ends."""
    unlocked: bool = False
    """Its broker forgot the lock meanwhile, so it may overlap with another call in its queue."""


@dataclass(slots=True)
class _Queue:
    """Offsets of one queue that a group is done with."""

    below: int = 0
    """Everything before this offset."""
    others: set[int] = field(default_factory=set)

    def done(self, offset: int) -> None:
        if offset >= self.below:
            self.others.add(offset)
        while self.below in self.others:
            self.others.discard(self.below)
            self.below += 1


class ConsumeHistory:
    """Times are seconds of any one clock; notes come in the order of time."""

    def __init__(self, groups: dict[str, GroupRules]) -> None:
        self._groups = groups
        self._stored: dict[str, set[str]] = defaultdict(set)
        self._consumed: dict[str, set[str]] = defaultdict(set)
        self._dead: dict[str, set[str]] = defaultdict(set)
        self._calls: dict[tuple[str, str], list[Call]] = defaultdict(list)
        self._open: dict[tuple[str, MessageQueue], list[Call]] = defaultdict(list)
        self._queues: dict[tuple[str, MessageQueue], _Queue] = defaultdict(_Queue)
        self._away: dict[str, float] = {}
        self._outages: list[tuple[float, float]] = []
        self._problems: list[str] = []
        self.count = 0
        """Listener calls so far."""

    # ---- notes --------------------------------------------------------------------------------------

    def stored(self, topic: str, message_id: str) -> None:
        """The sender was told that the message is stored."""
        self._stored[topic].add(message_id)

    def began(
        self,
        group: str,
        consumer: str,
        message_id: str,
        queue: MessageQueue,
        offset: int,
        attempt: int,
        now: float,
    ) -> Call:
        call = Call(group, consumer, message_id, queue, offset, attempt, now)
        rules = self._groups[group]
        self.count += 1
        self._check_attempt(call, rules)
        if rules.orderly and not is_retry_topic(queue.topic):
            self._check_order(call)
        self._calls[group, message_id].append(call)
        self._open[group, queue].append(call)
        return call

    def ended(self, call: Call, ok: bool, now: float) -> None:
        call.ended, call.ok = now, ok
        self._open[call.group, call.queue].remove(call)
        rules = self._groups[call.group]
        if ok:
            self._consumed[call.group].add(call.message_id)
        if ok or not rules.orderly or call.attempt >= rules.max_reconsume_times:
            self._queues[call.group, call.queue].done(call.offset)

    def died(self, consumer: str, now: float) -> None:
        """Its calls never end."""
        for calls in self._open.values():
            for call in calls:
                if call.consumer == consumer and call.died is None:
                    call.died = now

    def broker_away(self, broker_name: str, now: float) -> None:
        """The broker has ended, and has forgotten who held which queue."""
        self._away[broker_name] = now
        for (_, queue), calls in self._open.items():
            if queue.broker_name == broker_name:
                for call in calls:
                    call.unlocked = True

    def broker_back(self, broker_name: str, now: float) -> None:
        self._outages.append((self._away.pop(broker_name), now))

    def committed(self, group: str, queue: MessageQueue, offset: int, now: float) -> None:
        """The broker holds this offset."""
        state = self._queues[group, queue]
        if offset <= state.below:
            return
        for call in self._open[group, queue]:
            if self._failed(call, now):  # it takes too long, so it may have been sent back
                state.done(call.offset)
        if offset > state.below:
            self._problem(
                f"group {group} committed offset {offset} of {queue} at {now:.3f}, "
                f"but is not done with offset {state.below}"
            )

    def dead(self, group: str, message_id: str, now: float) -> None:
        """The message is in the group's dead-letter topic."""
        if message_id in self._dead[group]:
            return
        self._dead[group].add(message_id)
        most = self._groups[group].max_reconsume_times
        failed = {call.attempt for call in self._calls[group, message_id] if self._failed(call, now)}
        missing = sorted(set(range(most + 1)) - failed)
        if missing:
            self._problem(
                f"message {message_id} is in {dlq_topic(group)}, but did not fail in attempt(s) {missing}"
            )

    # ---- checks -------------------------------------------------------------------------------------

    def _failed(self, call: Call, now: float) -> bool:
        """As the protocol sees it: an end that is not ok, or none in the time that its consumer gave it."""
        if call.ended is not None and not call.ok:
            return True
        until = next(time for time in (call.ended, call.died, now) if time is not None)
        return until - call.began > self._groups[call.group].consume_timeout_s

    def _check_attempt(self, call: Call, rules: GroupRules) -> None:
        what = (
            f"attempt {call.attempt} of message {call.message_id} in group {call.group} at {call.began:.3f}"
        )
        if call.attempt == 0:
            return
        before = [
            earlier
            for earlier in self._calls[call.group, call.message_id]
            if earlier.attempt == call.attempt - 1 and self._failed(earlier, call.began)
        ]
        if not before:
            self._problem(f"{what}: no attempt {call.attempt - 1} failed before it")
            return
        # One that took too long failed when its time was over.
        last = min(
            min(earlier.ended or call.began, earlier.began + rules.consume_timeout_s) for earlier in before
        )
        # A message that cannot be handed back, because its broker is away, is tried once more here.
        if call.attempt > rules.max_reconsume_times and not self._outage_since(last):
            self._problem(f"{what}: at most {rules.max_reconsume_times} were allowed")
        if len(rules.retry_delays_s) >= call.attempt:
            wait = rules.retry_delays_s[call.attempt - 1]
            if call.began - last < wait:
                self._problem(f"{what}: {call.began - last:.3f} s after the last one, not {wait} s")

    def _outage_since(self, time: float) -> bool:
        return bool(self._away) or any(time < end + ROUTE_S for _, end in self._outages)

    def _check_order(self, call: Call) -> None:
        what = f"message {call.message_id} at offset {call.offset} of {call.queue} in group {call.group}"
        below = self._queues[call.group, call.queue].below
        if call.offset > below:
            self._problem(f"{what} was begun at {call.began:.3f} before offset {below} was done with")
        for other in self._open[call.group, call.queue]:
            if other.died is None and not other.unlocked:
                self._problem(f"{what} was begun while {other.consumer} had offset {other.offset}")

    def _problem(self, text: str) -> None:
        self._problems.append(text)

    # ---- the end ------------------------------------------------------------------------------------

    def unfinished(self) -> dict[str, set[str]]:
        """By group: stored messages that were neither consumed nor became dead letters."""
        left = {
            group: self._stored[rules.topic] - self._consumed[group] - self._dead[group]
            for group, rules in self._groups.items()
        }
        return {group: ids for group, ids in left.items() if ids}

    def problems(self) -> list[str]:
        """Everything that must not have happened, lost messages included."""
        lost = [
            f"group {group} lost {len(ids)} message(s), one is {min(ids)}"
            for group, ids in self.unfinished().items()
        ]
        return [*self._problems, *lost]
