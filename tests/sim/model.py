"""What producers, consumers and an administrator do to a broker, and what they are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.sim.handles import entry, fields, handle_of, key, text
from tests.sim.world import GROUPS, LONGEST_MS, QUEUES, Asked, World

from penstock.message.handles import Handle, parse_order_counts
from penstock.message.record import split_records
from penstock.wire.command import Command

SEND, POP, ACK, BATCH_ACK, CHANGE, RESET = 310, 200050, 200051, 200151, 200053, 222
FULL, NOTHING, NOT_STORED = 209, 210, 14
RECENT = 12


class Model(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.held: list[tuple[str, Handle]] = []
        """(group, handle), also those that are over."""
        self.places: dict[tuple[int, int], str] = {}
        """(queue, offset) → message."""

    def recent(self) -> list[tuple[str, Handle]]:
        return self.held[-RECENT:]

    def send(self) -> None:
        message, queue_id = f"m{self.number}", self.rng.randrange(QUEUES)
        for history in self.histories.values():
            history.send_asked(message)

        def told(answer: Command) -> None:
            if answer.code == 0:
                self.places[queue_id, int(answer.ext["queueOffset"])] = message
                for history in self.histories.values():
                    history.sent(message, self.now_ms)

        ext = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0, "i": ""}
        self.ask(SEND, ext, message.encode(), Asked(told))

    # ---- popping --------------------------------------------------------------------------------

    def pop(self, group: str = "", *, everything: bool = False) -> None:
        rng = self.rng
        group = group or rng.choice(("G", "G", "O"))
        queue_id = -1 if everything else rng.choice((-1, -1, *range(QUEUES)))
        invisible_ms = rng.choice((200, 1_000, LONGEST_MS))
        ext = {
            "consumerGroup": group,
            "topic": "T",
            "queueId": queue_id,
            "maxMsgNums": 32 if everything else rng.choice((1, 2, 5, 32)),
            "invisibleTime": invisible_ms,
            "pollTime": 0 if everything else rng.choice((0, 0, 2_000)),
            "bornTime": self.now_ms,
            "initMode": 0,
            "order": str(group == "O").lower(),
        }
        if group == "O":
            ext["attemptId"] = rng.choice(("again", f"a{self.number}"))

        def told(answer: Command) -> None:
            if answer.code == 0:
                self.take(answer, group, ext.get("attemptId"))
            elif answer.code == NOTHING:
                if queue_id < 0 and group == "G" and not self.is_popping():
                    self.histories[group].emptied(self.now_ms)
            elif answer.code == NOT_STORED:
                self.histories[group].pop_lost(self.now_ms, invisible_ms)
            else:
                assert answer.code == FULL, answer

        self.ask(POP, ext, b"", Asked(told, group, invisible_ms, queue_id))

    def is_popping(self) -> bool:
        """Whether another pop may have taken something and waits for the disk to say so."""
        return any(asked.group == "G" for asked in self.consumer.asked.values())

    def take(self, answer: Command, group: str, attempt_id: Any) -> None:
        history, ext = self.histories[group], answer.ext
        records = list(split_records(answer.body or b""))
        if group == "O":
            for queue_id in {record.queue_id for record in records}:
                batch = [(r.queue_offset, text(r)) for r in records if r.queue_id == queue_id]
                history.ordered(queue_id, batch, self.now_ms)
        counts = parse_order_counts(ext.get("orderCountInfo"))
        ahead_ms = self.broker.pop.leases.clock(self.now_ms) - self.now_ms
        for record in records:
            handle = handle_of(record, ext)
            history.delivered(
                text(record),
                key(handle),
                self.now_ms,
                until_ms=handle.pop_ms + handle.invisible_ms - ahead_ms,
                attempt=counts.get(f"0@qo{record.queue_id}%{record.queue_offset}", record.reconsume_times),
                attempt_id=attempt_id,
            )
            self.held.append((group, handle))

    # ---- what becomes of it ---------------------------------------------------------------------

    def acking(self, chosen: list[tuple[str, Handle]]) -> Callable[[Command], None]:
        for group, handle in chosen:
            self.histories[group].ack_asked(key(handle), self.now_ms)

        def told(answer: Command) -> None:
            if answer.code == 0:
                for group, handle in chosen:
                    self.histories[group].acked(key(handle))

        return told

    def ack(self) -> None:
        for group, handle in self.rng.sample(self.recent(), min(1, len(self.held))):
            self.ask(ACK, fields(group, handle), b"", Asked(self.acking([(group, handle)])))

    def batch_ack(self) -> None:
        chosen = self.rng.sample(self.recent(), self.rng.randint(0, len(self.recent())))
        self.ack_together(chosen)

    def ack_together(self, chosen: list[tuple[str, Handle]]) -> None:
        body = {"brokerName": "b", "acks": [entry(group, handle) for group, handle in chosen]}
        if chosen:
            self.ask(BATCH_ACK, {}, json.dumps(body).encode(), Asked(self.acking(chosen)))

    def change(self) -> None:
        for group, handle in self.rng.sample(self.recent(), min(1, len(self.held))):
            self.change_one(group, handle, self.rng.choice((0, 500, LONGEST_MS)), self.rng.random() < 0.3)

    def change_one(self, group: str, handle: Handle, invisible_ms: int, suspend: bool) -> None:
        history, until_ms = self.histories[group], self.now_ms + invisible_ms
        history.change_asked(key(handle), until_ms)

        def told(answer: Command) -> None:
            if answer.code == 0 and answer.ext["popTime"] != "0":
                new = handle._replace(
                    start_offset=handle.start_offset if handle.is_orderly else handle.offset,
                    pop_ms=int(answer.ext["popTime"]),
                    invisible_ms=int(answer.ext["invisibleTime"]),
                )
                history.changed(key(handle), key(new), until_ms, suspend=suspend)
                self.held.append((group, new))

        ext = {**fields(group, handle), "invisibleTime": invisible_ms, "suspend": str(suspend).lower()}
        self.ask(CHANGE, ext, b"", Asked(told))

    def reset(self) -> None:
        """An administrator moves the first group to some place in a queue."""
        queue_id = self.rng.randrange(QUEUES)
        mine = {offset: message for (queue, offset), message in self.places.items() if queue == queue_id}
        if not mine:
            return
        target = self.rng.randint(0, max(mine))
        self.histories["G"].reset_asked(mine.values())

        def told(answer: Command) -> None:
            if answer.code == 0:
                again = [message for offset, message in mine.items() if offset >= target]
                skipped = [message for offset, message in mine.items() if offset < target]
                self.histories["G"].reset(again, skipped, self.now_ms)

        ext = {"group": "G", "topic": "T", "timestamp": 0, "isForce": "true"}
        self.ask(RESET, {**ext, "queueId": queue_id, "offset": target}, b"", Asked(told))

    def rebalance(self) -> None:
        """A consumer goes with all that it waits for, another comes."""
        self.lose_pops()
        self.broker.disconnected(self.consumer, self.now_ms)
        self.consumer = type(self.consumer)()

    def drain(self) -> None:
        """In the end every lease runs out, and everything is taken and acked."""
        for _ in range(3):
            self.pass_time(LONGEST_MS + 1_200)
            for _ in range(100):
                self.held.clear()
                for group in GROUPS:
                    self.pop(group, everything=True)
                self.settle()
                if not self.held:
                    break
                self.ack_together(self.held)
                self.settle()
        for history in self.histories.values():
            history.finished(self.now_ms)
