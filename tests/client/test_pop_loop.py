"""The pop loop against answers that a healthy broker seldom gives, and odd assignments."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from penstock import ConsumeFrom, ConsumeStatus, MessageQueue, PushConsumer
from penstock.client.allocation import ConsistentHash
from penstock.client.config import Timings
from penstock.message.ids import pack_host
from penstock.message.properties import encode_properties
from penstock.message.record import encode_record
from penstock.wire.bodies import (
    BatchAckMessageRequestBody,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.headers import ChangeMessageInvisibletimeResponseHeader, PopResponseHeader

POP = RequestCode.POP_MESSAGE
TOPIC = "T"


def assign(cluster: Any, *queue_ids: int, mode: str = "POP") -> None:
    def answer(request: Any) -> bytes:
        topic = QueryAssignmentRequestBody.decode(request.command.body).topic
        queues = [MessageQueueAssignment(MessageQueue(topic, "b1", number), mode) for number in queue_ids]
        return request.reply(body=QueryAssignmentResponseBody(queues).encode())

    cluster.on(RequestCode.QUERY_ASSIGNMENT, answer)


def popped(request: Any, *offsets: int, pop_ms: int = 1_700_000_000_000, **properties: str) -> bytes:
    """An answer to a pop, with messages of queue 0."""
    records = [
        encode_record(
            topic=request.ext["topic"].encode(),
            queue_id=0,
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
        for offset in offsets
    ]
    header = PopResponseHeader(
        pop_time=pop_ms,
        invisible_time=int(request.ext["invisibleTime"]),
        revive_qid=3,
        rest_num=0,
        start_offset_info=f"0 0 {offsets[0]}",
        msg_offset_info=f"0 0 {','.join(map(str, offsets))}",
    )
    return bytes(request.reply(header=header, body=b"".join(records), remark="FOUND"))


def nothing(request: Any, code: int = ResponseCode.POLLING_TIMEOUT) -> bytes:
    return bytes(request.reply(code, PopResponseHeader(0, 0, 0, 0)))


def once(cluster: Any, first: Any) -> None:
    """The first pop gets this answer; later ones wait."""
    cluster.on(POP, lambda request: first(request) if len(cluster.sent(POP)) == 1 else None)


def consumer(cluster: Any, timings: Timings, listener: Any = None, **options: Any) -> PushConsumer:
    return PushConsumer(
        cluster.name_server,
        group="g",
        listener=listener or (lambda messages, context: ConsumeStatus.SUCCESS),
        subscribe={TOPIC: "*"},
        timings=timings,
        **options,
    )


def pauses(cluster: Any) -> list[float]:
    """Milliseconds between the pops."""
    times = [request.at for request in cluster.sent(POP)]
    return [(later - earlier) * 1000 for earlier, later in itertools.pairwise(times)]


async def test_a_pop_asks_for_what_the_settings_say(cluster: Any, quick: Timings, eventually: Any) -> None:
    assign(cluster, -1)
    cluster.on(POP, lambda request: None)
    async with cluster.running("b1"):
        options = {"pop_invisible_ms": 45_000, "pop_batch": 7, "consume_from": ConsumeFrom.FIRST_OFFSET}
        async with consumer(cluster, quick, **options):
            await eventually(lambda: cluster.sent(POP))
    ext = cluster.sent(POP)[0].ext
    assert ext == ext | {
        "consumerGroup": "g",
        "topic": TOPIC,
        "queueId": "-1",
        "maxMsgNums": "7",
        "invisibleTime": "45000",
        "pollTime": "15000",
        "bornTime": "0",
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
        "bname": "b1",
    }
    assert "attemptId" not in ext


@pytest.mark.parametrize(
    ("code", "least_ms"),
    [
        (ResponseCode.POLLING_FULL, 300),
        (ResponseCode.SYSTEM_ERROR, 300),
        (ResponseCode.FLOW_CONTROL, 20),
        (ResponseCode.POLLING_TIMEOUT, 10),
        (ResponseCode.PULL_NOT_FOUND, 10),
    ],
)
async def test_after_an_answer_without_messages_the_next_pop_comes_when_it_should(
    cluster: Any, eventually: Any, code: int, least_ms: int
) -> None:
    """A long poll that is over at once was not held: it is not repeated in a tight loop either."""
    timings = Timings(rebalance_min_interval_ms=20, pull_error_ms=300, flow_control_ms=10, broker_busy_ms=20)
    assign(cluster, -1)
    cluster.on(POP, lambda request: nothing(request, code))
    async with cluster.running("b1"), consumer(cluster, timings):
        await eventually(lambda: len(cluster.sent(POP)) >= 4)
    assert min(pauses(cluster)) >= least_ms
    assert min(pauses(cluster)) < least_ms + 250


async def test_a_long_poll_that_was_held_is_repeated_at_once(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    assign(cluster, -1)

    def hold(request: Any) -> None:
        asyncio.get_running_loop().call_later(0.2, request.peer.send, nothing(request))

    cluster.on(POP, hold)
    async with cluster.running("b1"), consumer(cluster, quick, pop_poll_ms=200):
        await eventually(lambda: len(cluster.sent(POP)) >= 3)
    assert 190 <= min(pauses(cluster)) < 400


async def test_acks_carry_the_handle_of_the_batch_and_go_out_together(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    assign(cluster, -1)
    once(cluster, lambda request: popped(request, 5, 6, 8))
    cluster.on(RequestCode.BATCH_ACK_MESSAGE, lambda request: request.reply())
    cluster.on(RequestCode.ACK_MESSAGE, lambda request: request.reply())
    async with cluster.running("b1"), consumer(cluster, quick, consume_batch=3) as running:
        await eventually(lambda: cluster.sent(RequestCode.BATCH_ACK_MESSAGE))
        await eventually(lambda: all(q.unacked == 0 for q in running.pop_service.queues.values()))
    body = BatchAckMessageRequestBody.decode(cluster.sent(RequestCode.BATCH_ACK_MESSAGE)[0].command.body)
    (entry,) = body.acks
    assert body.broker_name == "b1"
    assert (entry.topic, entry.consumer_group, entry.retry, entry.queue_id) == (TOPIC, "g", "0", 0)
    assert (entry.start_offset, entry.pop_time, entry.invisible_time) == (5, 1_700_000_000_000, 60_000)
    assert entry.revive_queue_id == 3
    assert entry.bit_set == bytes([0b1011])


async def test_a_broker_without_batch_acks_gets_them_one_by_one(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    assign(cluster, -1)
    once(cluster, lambda request: popped(request, 5, 6))
    cluster.on(RequestCode.ACK_MESSAGE, lambda request: request.reply())
    async with cluster.running("b1"), consumer(cluster, quick, consume_batch=2):
        await eventually(lambda: len(cluster.sent(RequestCode.ACK_MESSAGE)) == 2)
    asked = [request.ext for request in cluster.sent(RequestCode.ACK_MESSAGE)]
    assert [ext["offset"] for ext in asked] == ["5", "6"]
    assert asked[1]["extraInfo"] == "5 1700000000000 60000 3 0 b1 0 6"
    assert (asked[1]["topic"], asked[1]["queueId"], asked[1]["bname"]) == (TOPIC, "0", "b1")


async def test_an_ack_that_fails_is_tried_again_as_long_as_the_lease_lasts(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    assign(cluster, -1)
    once(cluster, lambda request: popped(request, 5))
    acks: list[float] = []

    def ack(request: Any) -> Any:
        acks.append(time.monotonic())
        return request.reply(ResponseCode.SYSTEM_BUSY if len(acks) < 3 else ResponseCode.SUCCESS)

    cluster.on(RequestCode.ACK_MESSAGE, ack)
    async with cluster.running("b1"), consumer(cluster, quick) as running:
        await eventually(lambda: len(acks) == 3)
        await eventually(lambda: all(q.unacked == 0 for q in running.pop_service.queues.values()))


async def test_an_ack_never_carries_the_handle_that_an_extension_replaced(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    """The listener ends while the request that extends its lease is under way."""
    assign(cluster, -1)
    once(cluster, lambda request: popped(request, 5))
    waiting: list[Any] = []
    ended = asyncio.Event()

    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        await ended.wait()
        return ConsumeStatus.SUCCESS

    cluster.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, lambda request: waiting.append(request))
    cluster.on(RequestCode.ACK_MESSAGE, lambda request: request.reply())
    async with cluster.running("b1"), consumer(cluster, quick, listener, pop_invisible_ms=2_000) as running:
        await eventually(lambda: waiting)
        ended.set()
        await eventually(lambda: running.pool.outstanding == 0)
        await asyncio.sleep(0.05)
        assert not cluster.sent(RequestCode.ACK_MESSAGE)
        header = ChangeMessageInvisibletimeResponseHeader(1_700_000_000_999, 2_000, 4)
        waiting[0].peer.send(waiting[0].reply(header=header))
        await eventually(lambda: cluster.sent(RequestCode.ACK_MESSAGE))
    assert cluster.sent(RequestCode.ACK_MESSAGE)[0].ext["extraInfo"] == "5 1700000000999 2000 4 0 b1 0 5"


async def test_an_orderly_pop_repeats_its_attempt_only_when_the_answer_was_lost(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    assign(cluster, -1)

    def answer(request: Any) -> Any:
        match len(cluster.sent(POP)):
            case 1:
                request.peer.close()
                return None
            case 2 | 3:
                return nothing(request)
            case _:
                return None

    cluster.on(POP, answer)
    async with cluster.running("b1"), consumer(cluster, quick, orderly=True):
        await eventually(lambda: len(cluster.sent(POP)) == 4)
    first, second, third, fourth = (request.ext["attemptId"] for request in cluster.sent(POP)[:4])
    assert first == second
    assert len({second, third, fourth}) == 3
    assert {request.ext["order"] for request in cluster.sent(POP)} == {"true"}


async def test_without_a_good_answer_the_assignment_stays_and_an_empty_one_ends_it(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    assign(cluster, -1)
    cluster.on(POP, lambda request: None)
    asked = lambda: len(cluster.sent(RequestCode.QUERY_ASSIGNMENT))  # noqa: E731
    async with cluster.running("b1"), consumer(cluster, quick) as running:
        await eventually(lambda: running.pop_service.queues)
        cluster.on(RequestCode.QUERY_ASSIGNMENT, lambda request: request.reply(body=b"{}"))
        before = asked()
        await eventually(lambda: asked() >= before + 3)
        assert list(running.pop_service.queues) == [MessageQueue(TOPIC, "b1", -1)]
        cluster.on(RequestCode.QUERY_ASSIGNMENT, lambda request: request.reply(ResponseCode.SYSTEM_ERROR))
        before = asked()
        await eventually(lambda: asked() >= before + 3)
        assert list(running.pop_service.queues) == [MessageQueue(TOPIC, "b1", -1)]
        assign(cluster)
        await eventually(lambda: not running.pop_service.queues)
        assert not [queue for queue in running.rebalancer.queues if queue.topic == TOPIC]


async def test_a_group_with_its_own_way_of_sharing_out_keeps_it_where_it_pulls(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    """The broker does not know the strategy, so its empty answer says nothing about what to pull."""
    assign(cluster)
    async with cluster.running("b1"), consumer(cluster, quick, allocation=ConsistentHash()) as running:
        await eventually(lambda: MessageQueue(TOPIC, "b1", 0) in running.rebalancer.queues)
    body = QueryAssignmentRequestBody.decode(cluster.sent(RequestCode.QUERY_ASSIGNMENT)[0].command.body)
    assert body.strategy_name == "AVG"


async def test_the_broker_is_not_asked_where_the_client_is_to_share_out_the_queues(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    assign(cluster, -1)
    async with cluster.running("b1"), consumer(cluster, quick, client_rebalance=True) as running:
        await eventually(lambda: MessageQueue(TOPIC, "b1", 0) in running.rebalancer.queues)
    assert not cluster.sent(RequestCode.QUERY_ASSIGNMENT)


async def test_single_queues_are_popped_as_they_are_assigned(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    assign(cluster, 0, 2)
    cluster.on(POP, lambda request: None)
    async with cluster.running("b1"), consumer(cluster, quick) as running:
        await eventually(lambda: {request.ext["queueId"] for request in cluster.sent(POP)} == {"0", "2"})
        assign(cluster, 2, 3)
        await eventually(lambda: {queue.queue_id for queue in running.pop_service.queues} == {2, 3})


async def test_an_answer_that_makes_no_sense_is_an_error_and_not_the_end(
    cluster: Any, quick: Timings, eventually: Any
) -> None:
    got: list[bytes] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.extend(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    def answer(request: Any) -> Any:
        match len(cluster.sent(POP)):
            case 1:
                return request.reply(header=PopResponseHeader(1, 1, 0, 0, "nonsense", "0 0 1"), body=b"")
            case 2:
                return request.reply(header=PopResponseHeader(1, 1, 0, 0, "0 0 1", "0 0 1"), body=b"garbage")
            case 3:
                return popped(request, 5)
            case _:
                return None

    assign(cluster, -1)
    cluster.on(POP, answer)
    cluster.on(RequestCode.ACK_MESSAGE, lambda request: request.reply())
    async with cluster.running("b1"), consumer(cluster, quick, listener):
        await eventually(lambda: got == [b"5"])
