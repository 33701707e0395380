"""From a pop's answer to messages with their handles, and from handles to a batch ack."""

from __future__ import annotations

import msgspec
import pytest

from penstock.client.pop_api import NOTHING_POPPED, PopResult, PopStatus, batch_of
from penstock.client.popped import popped_messages
from penstock.errors import CorruptRecord
from penstock.message.handles import Handle, parse_handle
from penstock.message.ids import pack_host
from penstock.message.properties import encode_properties
from penstock.message.queue import MessageQueue
from penstock.message.record import encode_record

POP_MS = 1_700_000_000_000


def record(topic: str, queue_id: int, offset: int, **properties: str) -> bytes:
    return encode_record(
        topic=topic.encode(),
        queue_id=queue_id,
        flag=0,
        queue_offset=offset,
        physical_offset=offset * 1000,
        sys_flag=0,
        born_ms=1,
        born_host=pack_host("127.0.0.1", 1),
        store_ms=2,
        store_host=pack_host("127.0.0.1", 10911),
        reconsume_times=0,
        prepared_offset=0,
        body=b"%d" % offset,
        properties=encode_properties({"UNIQ_KEY": f"id-{offset}", **properties}).encode(),
    )


def result(
    *records: bytes, starts: dict[str, int], offsets: dict[str, list[int]], **more: object
) -> PopResult:
    found = NOTHING_POPPED._replace(
        status=PopStatus.FOUND,
        pop_ms=POP_MS,
        invisible_ms=60_000,
        revive_queue_id=3,
        start_offsets=starts,
        message_offsets=offsets,
        body=b"".join(records),
    )
    return found._replace(**more)  # type: ignore[arg-type]


def handles(popped: PopResult, topic: str = "T") -> list[str]:
    messages = popped_messages(popped, MessageQueue(topic, "broker-a", -1), "g", 100.0)
    assert {message.topic for message in messages} == {topic}
    assert {message.deadline for message in messages} == {160.0}
    return [message.receipt_handle for message in messages]


def test_messages_of_several_queues_get_the_handle_of_their_batch() -> None:
    popped = result(
        record("T", 2, 100),
        record("T", 2, 101),
        record("T", 2, 104),
        record("T", 0, 7),
        starts={"0@2": 100, "0@0": 7},
        offsets={"0@2": [100, 101, 104], "0@0": [7]},
    )
    assert handles(popped) == [
        f"100 {POP_MS} 60000 3 0 broker-a 2 100",
        f"100 {POP_MS} 60000 3 0 broker-a 2 101",
        f"100 {POP_MS} 60000 3 0 broker-a 2 104",
        f"7 {POP_MS} 60000 3 0 broker-a 0 7",
    ]


def test_the_offset_told_in_the_header_counts_not_the_one_in_the_record() -> None:
    popped = result(record("T", 0, 0), record("T", 0, 1), starts={"0@0": 40}, offsets={"0@0": [41, 44]})
    assert [parse_handle(text).offset for text in handles(popped)] == [41, 44]


def test_a_retry_comes_with_its_handle_or_under_its_own_name() -> None:
    given = f"7 {POP_MS} 60000 3 1 broker-a 0 9"
    popped = result(
        record("T", 0, 9, POP_CK=given),
        record("%RETRY%g+T", 0, 3),
        starts={"1@0": 7, "2@0": 3},
        offsets={"1@0": [9], "2@0": [3]},
    )
    assert handles(popped) == [given, f"3 {POP_MS} 60000 3 2 broker-a 0 3"]
    first, second = popped_messages(popped, MessageQueue("T", "broker-a", -1), "g", 0.0)
    assert (first.queue.topic, second.queue.topic) == ("%RETRY%g_T", "%RETRY%g+T")


def test_a_handle_that_a_sender_made_up_is_not_believed() -> None:
    popped = result(
        record("T", 0, 5, POP_CK="0 1 1 0 0 elsewhere 0 0"), starts={"0@0": 5}, offsets={"0@0": [5]}
    )
    assert handles(popped) == [f"5 {POP_MS} 60000 3 0 broker-a 0 5"]


def test_an_old_broker_that_tells_no_offsets_is_understood() -> None:
    popped = result(record("T", 1, 20), record("T", 1, 21), starts={}, offsets={})
    assert [parse_handle(text).start_offset for text in handles(popped)] == [20, 20]
    assert [parse_handle(text).offset for text in handles(popped)] == [20, 21]


def test_a_light_queue_is_queue_0_whatever_its_records_say() -> None:
    popped = result(record("%LMQ%x", 6, 500), starts={"0@0": 2}, offsets={"0@0": [2]})
    assert handles(popped, "%LMQ%x") == [f"2 {POP_MS} 60000 3 0 broker-a 0 2"]


@pytest.mark.scenario("pop-51")
def test_messages_dispatched_to_a_light_queue_are_acked_there_by_their_offsets_in_it() -> None:
    """As an Apache broker with light queues stores them: once, under the topic they were sent to."""
    stored = [
        record("T", 6, 500, INNER_MULTI_DISPATCH="%LMQ%y,%LMQ%x", INNER_MULTI_QUEUE_OFFSET="9,2"),
        record("T", 1, 40, INNER_MULTI_DISPATCH="%LMQ%x", INNER_MULTI_QUEUE_OFFSET="3"),
    ]
    popped = result(*stored, starts={"0@0": 2}, offsets={"0@0": [2, 3]})
    assert handles(popped, "%LMQ%x") == [
        f"2 {POP_MS} 60000 3 0 broker-a 0 2",
        f"2 {POP_MS} 60000 3 0 broker-a 0 3",
    ]
    messages = popped_messages(popped, MessageQueue("%LMQ%x", "broker-a", -1), "g", 0.0)
    assert {message.queue for message in messages} == {MessageQueue("%LMQ%x", "broker-a", 0)}


def test_orderly_attempts_are_those_of_the_message_else_of_its_queue() -> None:
    popped = result(
        record("T", 0, 5),
        record("T", 0, 6),
        starts={"0@0": 5},
        offsets={"0@0": [5, 6]},
        order_counts={"0@0": 2, "0@qo0%6": 4},
        revive_queue_id=999,
    )
    messages = popped_messages(popped, MessageQueue("T", "broker-a", 0), "g", 0.0)
    assert [message.reconsume_times for message in messages] == [2, 4]
    assert all(message.handle.is_orderly for message in messages)


def test_a_bad_handle_in_a_retry_is_a_corrupt_record() -> None:
    popped = result(record("T", 0, 9, POP_CK="1 2 3"), starts={"1@0": 7}, offsets={"1@0": [9]})
    with pytest.raises(CorruptRecord, match="a handle has 8 fields"):
        handles(popped)


def test_a_batch_ack_has_one_entry_for_each_batch() -> None:
    one = Handle(100, POP_MS, 60_000, 3, "0", "broker-a", 2, 0)
    other = Handle(7, POP_MS, 60_000, 3, "1", "broker-a", 0, 7)
    acks = [("T", one._replace(offset=offset)) for offset in (101, 103, 105)] + [("T", other)]
    body = msgspec.json.decode(batch_of("g", acks).encode())
    assert body["brokerName"] == "broker-a"
    assert [(entry["so"], entry["q"], entry["r"], entry["b"]) for entry in body["acks"]] == [
        (100, 2, "0", "Kg=="),
        (7, 0, "1", "AQ=="),
    ]
    assert {(entry["c"], entry["t"], entry["rq"], entry["pt"], entry["it"]) for entry in body["acks"]} == {
        ("g", "T", 3, POP_MS, 60_000)
    }
