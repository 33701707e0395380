"""What a POP client does with the broker of the bench: pop, build handles, ack, change."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.message.handles import (
    Handle,
    parse_handle,
    parse_message_offsets,
    parse_order_counts,
    parse_start_offsets,
    retry_flag,
)
from penstock.message.record import RecordView, split_records
from penstock.wire.bodies import GroupLag, GroupLags, LeaseList, TopicConfig
from penstock.wire.command import Command

POP, ACK, PEEK, CHANGE, NOTIFY, POLLING, BATCH_ACK = 200050, 200051, 200052, 200053, 200054, 200055, 200151


@dataclass
class Popped:
    """One message as a consumer has it."""

    record: RecordView
    handle: Handle
    group: str
    topic: str
    times: int

    @property
    def body(self) -> bytes:
        return bytes(self.record.body)

    @property
    def offset(self) -> int:
        return self.handle.offset

    @property
    def real_topic(self) -> str:
        return self.handle.real_topic(self.topic, self.group)


@dataclass
class Answer:
    command: Command
    messages: list[Popped] = field(default_factory=list)

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def ext(self) -> dict[str, str]:
        return self.command.ext

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def rest(self) -> int:
        return int(self.ext["restNum"])


class Pops:
    def __init__(self, bench: Any) -> None:
        self.bench = bench

    def topic(self, name: str = "T", queues: int = 1, **fields: Any) -> None:
        config = TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, **fields)
        self.bench.broker.topics.put(config, self.bench.now_ms)

    def send(
        self, count: int = 1, topic: str = "T", queue_id: int = 0, tag: str = "", first: int = 0
    ) -> None:
        properties = f"TAGS\x01{tag}\x02" if tag else ""
        for number in range(first, first + count):
            answer = self.bench.send(topic, b"m%d" % number, queue_id=queue_id, properties=properties)
            assert answer.code == 0

    def fields(
        self,
        *,
        topic: str = "T",
        group: str = "G",
        queue_id: int = 0,
        most: int = 32,
        invisible_ms: int = 60_000,
        poll_ms: int = 0,
        born_ms: int | None = None,
        init: int = 0,
        exp: str = "*",
        exp_type: str = "TAG",
        order: bool = False,
        attempt: str | None = None,
    ) -> dict[str, Any]:
        found = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "maxMsgNums": most,
            "invisibleTime": invisible_ms,
            "pollTime": poll_ms,
            "bornTime": self.bench.now_ms if born_ms is None else born_ms,
            "initMode": init,
            "exp": exp,
            "expType": exp_type,
            "order": order,
        }
        return found if attempt is None else {**found, "attemptId": attempt}

    def pop(self, *, peer: Any = None, **fields: Any) -> Answer:
        """The answer to a pop that does not wait."""
        asked = self.fields(**fields)
        return self.read(self.bench.ask(POP, asked, peer=peer), asked)

    def park(self, *, peer: Any = None, **fields: Any) -> Callable[[], Answer | None]:
        """A pop that may wait; what comes tells its answer, if there is one yet."""
        asked = self.fields(**{"poll_ms": 15_000, **fields})
        opaque = self.bench.request(POP, asked, peer=peer)
        self.bench.flush()

        def answered() -> Answer | None:
            self.bench.flush()  # who was woken by one flush has its lease in the next
            command = self.bench.answered(opaque, peer)
            return self.read(command, asked) if command is not None else None

        return answered

    def read(self, command: Command, asked: dict[str, Any]) -> Answer:
        """What the client makes of an answer: every message with its handle."""
        answer = Answer(command)
        if command.code != 0:
            return answer
        ext = command.ext
        starts = parse_start_offsets(ext["startOffsetInfo"])
        offsets = parse_message_offsets(ext["msgOffsetInfo"])
        counts = parse_order_counts(ext.get("orderCountInfo"))
        seen: dict[str, int] = {}
        for record in split_records(command.body or b""):
            given = record.find("POP_CK")
            times = record.reconsume_times
            if given is not None:
                handle = parse_handle(given)
            else:
                key = f"{retry_flag(record.topic)}@{record.queue_id}"
                index = seen[key] = seen.get(key, -1) + 1
                offset = offsets[key][index]
                assert offset == record.queue_offset
                handle = Handle(
                    starts[key],
                    int(ext["popTime"]),
                    int(ext["invisibleTime"]),
                    int(ext["reviveQid"]),
                    retry_flag(record.topic),
                    self.bench.settings.broker_name,
                    record.queue_id,
                    offset,
                )
                each = counts.get(f"0@qo{record.queue_id}%{offset}", counts.get(key, 0))
                times = max(times, each)
            answer.messages.append(Popped(record, handle, asked["consumerGroup"], asked["topic"], times))
        return answer

    def ack_fields(self, message: Popped, **others: Any) -> dict[str, Any]:
        return {
            "consumerGroup": message.group,
            "topic": message.real_topic,
            "queueId": message.handle.queue_id,
            "offset": message.handle.offset,
            "extraInfo": str(message.handle),
            **others,
        }

    def ack(self, message: Popped, **others: Any) -> Command:
        answer: Command = self.bench.ask(ACK, self.ack_fields(message, **others))
        return answer

    def ack_all(self, answer: Answer) -> None:
        for message in answer.messages:
            assert self.ack(message).code == 0

    def change(self, message: Popped, invisible_ms: int, **others: Any) -> Command:
        """On success the message has its new handle."""
        fields = {"invisibleTime": invisible_ms, **others}
        answer: Command = self.bench.ask(CHANGE, self.ack_fields(message, **fields))
        if answer.code == 0:
            old = message.handle
            message.handle = Handle(
                old.start_offset if old.is_orderly else old.offset,
                int(answer.ext["popTime"]),
                int(answer.ext["invisibleTime"]),
                int(answer.ext["reviveQid"]),
                *old[4:],
            )
        return answer

    def batch_ack(self, messages: list[Popped], **others: Any) -> Command:
        body = {"acks": batch_entries(messages), "brokerName": self.bench.settings.broker_name, **others}
        answer: Command = self.bench.ask(BATCH_ACK, None, json.dumps(body).encode())
        return answer

    def offset(self, topic: str = "T", group: str = "G", queue_id: int = 0) -> int:
        found: int = self.bench.broker.offsets.query(group, topic, queue_id)
        return found

    def lag(self, topic: str = "T", group: str = "G") -> GroupLag:
        answer = self.bench.ask(700001, {"consumerGroup": group, "topic": topic})
        assert answer.code == 0, answer.remark
        (lag,) = GroupLags.decode(answer.body).lags
        return lag

    def leases(self, group: str = "G", **others: Any) -> LeaseList:
        answer = self.bench.ask(700002, {"consumerGroup": group, **others})
        assert answer.code == 0, answer.remark
        return LeaseList.decode(answer.body)

    def in_flight(self, topic: str = "T", group: str = "G", queue_id: int = 0) -> int:
        queue = self.bench.broker.pop.leases.find_queue(topic, group, queue_id)
        return queue.in_flight if queue is not None else 0

    def kill(self) -> None:
        """The process dies and starts again on the same directory."""
        self.bench.store.disk.unlock()
        self.bench.open()

    def restart(self) -> None:
        self.bench.close()
        self.bench.open()


def batch_entries(messages: list[Popped]) -> list[dict[str, Any]]:
    """Handles of one lease become one entry with a bit for each."""
    entries: dict[tuple[Any, ...], int] = {}
    for message in messages:
        handle = message.handle
        key = (message.group, message.topic, handle[:5], handle.queue_id)
        entries[key] = entries.get(key, 0) | 1 << handle.offset - handle.start_offset
    return [
        {
            "c": group,
            "t": topic,
            "r": flag,
            "so": start,
            "q": queue_id,
            "rq": revive,
            "pt": pop_ms,
            "it": invisible_ms,
            "b": base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode(),
        }
        for (group, topic, (start, pop_ms, invisible_ms, revive, flag), queue_id), bits in entries.items()
    ]


@pytest.fixture
def pops(bench: Any) -> Pops:
    made = Pops(bench)
    made.topic()
    return made


@pytest.fixture
def new_pops(new_bench: Callable[..., Any]) -> Callable[..., Pops]:
    def make(*, queues: int = 1, **properties: str) -> Pops:
        made = Pops(new_bench(**properties))
        made.topic(queues=queues)
        return made

    return make
