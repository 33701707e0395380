from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.process_queue import NOTHING, ProcessQueue
from penstock.message.queue import MessageQueue

QUEUE = MessageQueue("T", "b", 0)


@pytest.fixture
def process_queue() -> ProcessQueue:
    return ProcessQueue(QUEUE, 0.0)


@pytest.mark.scenario(29)
@pytest.mark.behaviour("CON-8")
def test_the_lowest_unconsumed_message_pins_the_committable_offset(
    process_queue: ProcessQueue, make_message: Any
) -> None:
    messages = [make_message(offset) for offset in range(1, 6)]
    process_queue.put(messages)
    assert process_queue.remove(messages[1:], 1.0) == 1
    assert process_queue.remove(messages[:1], 2.0) == 6


@pytest.mark.scenario(30)
def test_removal_from_an_empty_queue_gives_no_offset(process_queue: ProcessQueue, make_message: Any) -> None:
    assert process_queue.remove([make_message(3)], 1.0) == NOTHING


def test_count_bytes_and_span_follow_what_is_cached(process_queue: ProcessQueue, make_message: Any) -> None:
    messages = [make_message(offset) for offset in (10, 11, 2011)]
    process_queue.put(messages, broker_max_offset=2020)
    assert process_queue.count == 3
    assert process_queue.cached_bytes == sum(message.store_size for message in messages)
    assert process_queue.span == 2001
    assert process_queue.backlog == 9
    process_queue.remove(messages, 1.0)
    assert (process_queue.count, process_queue.cached_bytes, process_queue.span) == (0, 0, 0)


def test_a_message_pulled_twice_is_counted_once(process_queue: ProcessQueue, make_message: Any) -> None:
    process_queue.put([make_message(1), make_message(2)])
    size = process_queue.cached_bytes
    process_queue.put([make_message(1)])
    assert (process_queue.count, process_queue.cached_bytes) == (2, size)


def test_put_asks_for_an_orderly_task_only_while_there_is_none(
    process_queue: ProcessQueue, make_message: Any
) -> None:
    assert process_queue.put([make_message(1)])
    assert not process_queue.put([make_message(2)])
    assert len(process_queue.take(5, 1.0)) == 2
    assert process_queue.take(5, 1.0) == []
    assert process_queue.put([make_message(3)])


def test_taken_messages_count_until_they_are_committed(
    process_queue: ProcessQueue, make_message: Any
) -> None:
    process_queue.put([make_message(offset) for offset in range(4)])
    process_queue.take(3, 1.0)
    assert process_queue.count == 4
    assert process_queue.commit() == 3
    assert process_queue.count == 1
    assert process_queue.commit() == NOTHING


def test_a_rollback_brings_messages_back_in_order(process_queue: ProcessQueue, make_message: Any) -> None:
    process_queue.put([make_message(offset) for offset in range(6)])
    process_queue.take(2, 1.0)
    process_queue.take(2, 1.0)
    process_queue.rollback()
    assert [message.queue_offset for message in process_queue.take(6, 1.0)] == list(range(6))


def test_messages_given_again_come_before_the_rest(process_queue: ProcessQueue, make_message: Any) -> None:
    process_queue.put([make_message(offset) for offset in range(4)])
    batch = process_queue.take(2, 1.0)
    process_queue.again(batch)
    assert [message.queue_offset for message in process_queue.take(2, 1.0)] == [0, 1]


def test_offsets_that_go_backwards_are_kept_in_order(process_queue: ProcessQueue, make_message: Any) -> None:
    process_queue.put([make_message(10), make_message(11)])
    process_queue.put([make_message(5), make_message(12)])
    assert process_queue.first_offset == 5
    assert process_queue.last_offset == 12


def test_holds_tells_a_message_from_its_redelivery(process_queue: ProcessQueue, make_message: Any) -> None:
    first = make_message(1)
    process_queue.put([first])
    assert process_queue.holds(first)
    assert not process_queue.holds(make_message(1))


def test_clear_forgets_everything(process_queue: ProcessQueue, make_message: Any) -> None:
    process_queue.put([make_message(1), make_message(2)])
    process_queue.take(1, 1.0)
    process_queue.clear()
    assert (process_queue.count, process_queue.cached_bytes, process_queue.first_offset) == (0, 0, None)


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 60))
def test_the_committable_offset_is_never_past_an_unconsumed_message(seed: int, count: int) -> None:
    """Against the plain definition: the lowest offset still held, or one past the highest ever held."""

    class Stub:
        def __init__(self, offset: int) -> None:
            self.record = type("R", (), {"queue_offset": offset, "size": 1})()

    chance = random.Random(seed)
    process_queue = ProcessQueue(QUEUE, 0.0)
    held: dict[int, Any] = {}
    following = highest = chance.randrange(100)
    for _ in range(count):
        if chance.random() < 0.5 or not held:
            new = [Stub(following + step) for step in range(chance.randrange(1, 8))]
            following += len(new)
            highest = following - 1
            process_queue.put(new)  # type: ignore[arg-type]
            held.update({item.record.queue_offset: item for item in new})
        else:
            done = chance.sample(sorted(held), chance.randrange(1, len(held) + 1))
            offset = process_queue.remove([held.pop(number) for number in done], 0.0)
            assert offset == (min(held) if held else highest + 1)
            assert process_queue.cached_bytes == len(held)
