"""Sending: results, choices of queue, retries, and what a failure says about the message."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from typing import Any

import pytest

from penstock import Message, MessageQueue, Producer, SendError, SendOutcomeUnknown, SendStatus
from penstock.client.config import Timings
from penstock.errors import (
    BrokerNotFound,
    InvalidArgument,
    MessageTooLarge,
    SendManyFailed,
    TooManyRequests,
    TopicNotFound,
    WrongState,
)
from penstock.message.ids import parse_offset_id
from penstock.message.record import RecordView
from penstock.testing import RunningBroker
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.headers import SendResponseHeader

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


async def stored(producer: Producer, offset_message_id: str) -> RecordView:
    """The record that the broker holds."""
    ip, port, physical_offset = parse_offset_id(offset_message_id)
    return await producer.instance.api.view_message(f"{ip}:{port}", physical_offset)


async def test_a_result_tells_queue_offset_and_both_ids(server: RunningBroker, topic: str) -> None:
    message = Message(topic, b"hello", tag="paid", keys=["17", "18"], properties={"colour": "red"}, flag=3)
    async with Producer(server.name_server) as producer:
        result = await producer.send(message)
        record = await stored(producer, result.offset_message_id)
    assert result.status is SendStatus.OK
    assert result.queue.topic == topic
    assert result.queue.broker_name == server.broker_name
    assert result.queue_offset == 0
    assert result.message_id == message.message_id
    assert bytes(record.body) == b"hello"
    assert record.flag == 3
    assert record.queue_id == result.queue.queue_id
    properties = record.properties
    assert (properties["TAGS"], properties["KEYS"], properties["colour"]) == ("paid", "17 18", "red")
    assert properties["UNIQ_KEY"] == result.message_id


async def test_messages_go_round_the_queues(server: RunningBroker, topic: str) -> None:
    async with Producer(server.name_server, default_topic_queues=4) as producer:
        results = [await producer.send(Message(topic, b"x")) for _ in range(8)]
    assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.scenario(68)
async def test_an_unknown_topic_borrows_queues_of_the_auto_create_topic(
    cluster: Any, topic: str, quick: Timings
) -> None:
    cluster.queues = 8
    cluster.known_topics = {"TBW102"}
    async with cluster.running("b1", "b2"), Producer(cluster.name_server, timings=quick) as producer:
        queues = await producer.queues(topic)
        assert [(queue.broker_name, queue.queue_id) for queue in queues] == [
            (broker, number) for broker in ("b1", "b2") for number in range(4)
        ]
        await producer.send(Message(topic, b"x"))
        ext = cluster.sent(SEND)[0].ext
        assert (ext["c"], ext["d"]) == ("TBW102", "4")


async def test_a_topic_that_nobody_can_create_is_an_error_that_says_so(
    cluster: Any, topic: str, quick: Timings
) -> None:
    cluster.known_topics = set()
    async with cluster.running("b1"), Producer(cluster.name_server, timings=quick) as producer:
        with pytest.raises(TopicNotFound, match=topic):
            await producer.send(Message(topic, b"x"))


@pytest.mark.scenario(69)
async def test_messages_of_one_key_go_to_one_queue_in_order(server: RunningBroker, topic: str) -> None:
    async with Producer(server.name_server, default_topic_queues=4) as producer:
        results = [await producer.send(Message(topic, b"%d" % n), queue_key="order-17") for n in range(5)]
        by_number = await producer.send(Message(topic, b"x"), queue_key=7)
    assert {result.queue.queue_id for result in results} == {1}
    assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
    assert by_number.queue.queue_id == 3


async def test_a_queue_can_be_chosen_directly_or_by_a_selector(server: RunningBroker, topic: str) -> None:
    async with Producer(server.name_server) as producer:
        queues = await producer.queues(topic)
        assert (await producer.send(Message(topic, b"x"), queue=queues[2])).queue == queues[2]
        result = await producer.send(Message(topic, b"x"), selector=lambda queues, message: queues[-1])
        assert result.queue == queues[-1]
        with pytest.raises(InvalidArgument, match="belongs to"):
            await producer.send(Message("other", b"x"), queue=queues[0])
        with pytest.raises(InvalidArgument, match="one of"):
            await producer.send(Message(topic, b"x"), queue=queues[0], queue_key="k")
        with pytest.raises(InvalidArgument, match="selector"):
            await producer.send(Message(topic, b"x"), selector=lambda queues, message: None)  # type: ignore[arg-type,return-value]


@pytest.mark.scenario(67)
async def test_bodies_from_4096_bytes_on_are_compressed_and_come_back_whole(
    server: RunningBroker, topic: str
) -> None:
    async with Producer(server.name_server) as producer:
        small = await producer.send(Message(topic, b"a" * 4095))
        large = await producer.send(Message(topic, b"a" * 4096))
        assert (await stored(producer, small.offset_message_id)).sys_flag == 0
        record = await stored(producer, large.offset_message_id)
    assert record.sys_flag == 0x301
    assert zlib.decompress(record.body) == b"a" * 4096


async def test_a_body_that_compression_would_make_larger_is_sent_as_it_is(
    server: RunningBroker, topic: str
) -> None:
    body = os.urandom(4 << 20)  # the longest there may be, so a byte more would be refused
    async with Producer(server.name_server) as producer:
        alone = await producer.send(Message(topic, body))
        (among_many,) = await producer.send_many([Message(topic, body)])
        for sent in (alone, among_many):
            record = await stored(producer, sent.offset_message_id)
            assert record.sys_flag & 1 == 0
            assert bytes(record.body) == body


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
async def test_other_compressions_can_be_chosen(server: RunningBroker, topic: str, kind: Any) -> None:
    async with Producer(server.name_server, compress_type=kind) as producer:
        result = await producer.send(Message(topic, b"b" * 10_000))
        record = await stored(producer, result.offset_message_id)
    assert record.sys_flag == {"lz4": 0x101, "zstd": 0x201}[kind]
    assert len(record.body) < 1_000


async def test_what_cannot_be_sent_is_refused_before_it_leaves(cluster: Any, topic: str) -> None:
    async with cluster.running("b1"), Producer(cluster.name_server, max_message_bytes=100) as producer:
        with pytest.raises(InvalidArgument, match="empty"):
            await producer.send(Message(topic, b""))
        with pytest.raises(MessageTooLarge, match="100"):
            await producer.send(Message(topic, b"x" * 101))
        with pytest.raises(InvalidArgument, match="system"):
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))
        with pytest.raises(MessageTooLarge, match="properties"):
            await producer.send(Message(topic, b"x", properties={"p": "ü" * 20_000}))
        assert not cluster.sent(SEND)


# ---- retries ------------------------------------------------------------------------------------------


@pytest.mark.scenario(64)
async def test_a_dead_broker_is_avoided_within_one_send(cluster: Any, topic: str, quick: Timings) -> None:
    async with cluster.running("b1", "b2"):
        cluster.broker_addrs["b1"] = {0: "127.0.0.1:1"}
        async with Producer(cluster.name_server, timings=quick) as producer:
            for _ in range(4):
                result = await producer.send(Message(topic, b"x"))
                assert result.queue.broker_name == "b2"


@pytest.mark.scenario(65)
async def test_some_error_codes_are_tried_again_on_another_broker_and_others_are_final(
    cluster: Any, topic: str, quick: Timings
) -> None:
    codes = [ResponseCode.NO_PERMISSION]
    async with cluster.running("b1", "b2"), Producer(cluster.name_server, timings=quick) as producer:
        cluster.on(SEND, lambda request: request.reply(codes.pop()) if codes else cluster.stored(request))
        await producer.send(Message(topic, b"x"))
        assert len({request.broker for request in cluster.sent(SEND)}) == 2
        cluster.on(SEND, lambda request: request.reply(ResponseCode.MESSAGE_ILLEGAL, remark="too odd"))
        before = len(cluster.sent(SEND))
        with pytest.raises(SendError, match="too odd") as caught:
            await producer.send(Message(topic, b"x"))
        assert len(cluster.sent(SEND)) == before + 1
        assert not caught.value.outcome_unknown


async def test_all_attempts_carry_one_message_id(cluster: Any, topic: str, quick: Timings) -> None:
    async with cluster.running("b1", "b2"), Producer(cluster.name_server, timings=quick) as producer:
        cluster.on(SEND, lambda request: request.reply(ResponseCode.SYSTEM_BUSY))
        message = Message(topic, b"x")
        with pytest.raises(SendError, match="3 attempt"):
            await producer.send(message)
        texts = [request.ext["i"] for request in cluster.sent(SEND)]
        assert len(texts) == 3
        assert all(f"UNIQ_KEY\x01{message.message_id}\x02" in text for text in texts)


@pytest.mark.scenario(66)
async def test_one_hanging_broker_takes_the_whole_time_unless_attempts_are_limited(
    cluster: Any, topic: str, quick: Timings
) -> None:
    async with cluster.running("b1", "b2"):
        cluster.on(SEND, lambda request: None, broker="b1")
        async with Producer(cluster.name_server, send_timeout_ms=200, timings=quick) as producer:
            unlucky = 0
            for _ in range(2):
                try:
                    await producer.send(Message(topic, b"x"))
                except SendOutcomeUnknown:
                    unlucky += 1
            assert unlucky == 1
            assert len(cluster.sent(SEND, "b1")) == 1
        async with Producer(
            cluster.name_server, send_timeout_ms=1_000, send_attempt_timeout_ms=100, timings=quick
        ) as producer:
            for _ in range(2):
                assert (await producer.send(Message(topic, b"x"))).queue.broker_name == "b2"


async def test_a_lost_connection_leaves_the_outcome_unknown(cluster: Any, topic: str, quick: Timings) -> None:
    async with cluster.running("b1"), Producer(cluster.name_server, retry_times=0, timings=quick) as producer:
        cluster.on(SEND, lambda request: request.peer.close())
        with pytest.raises(SendOutcomeUnknown, match="may or may not"):
            await producer.send(Message(topic, b"x"))


async def test_a_refused_connection_leaves_no_doubt(cluster: Any, topic: str, quick: Timings) -> None:
    async with cluster.running("b1"):
        cluster.broker_addrs["b1"] = {0: "127.0.0.1:1"}
        async with Producer(cluster.name_server, timings=quick) as producer:
            with pytest.raises(SendError, match="was not stored") as caught:
                await producer.send(Message(topic, b"x"))
            assert not isinstance(caught.value, SendOutcomeUnknown)


async def test_a_chosen_queue_gets_one_attempt(cluster: Any, topic: str, quick: Timings) -> None:
    async with cluster.running("b1", "b2"), Producer(cluster.name_server, timings=quick) as producer:
        cluster.on(SEND, lambda request: request.reply(ResponseCode.SYSTEM_BUSY))
        with pytest.raises(SendError):
            await producer.send(Message(topic, b"x"), queue_key="k")
        assert len(cluster.sent(SEND)) == 1


async def test_a_broker_without_a_master_cannot_be_sent_to(cluster: Any, topic: str, quick: Timings) -> None:
    async with cluster.running("b1"):
        queue = MessageQueue(topic, "b9", 0)
        async with Producer(cluster.name_server, timings=quick) as producer:
            with pytest.raises(SendError, match="b9") as caught:
                await producer.send(Message(topic, b"x"), queue=queue)
            assert isinstance(caught.value.__cause__, BrokerNotFound)


@pytest.mark.parametrize("why", ["its master is gone", "it is read-only"])
async def test_a_topic_that_is_there_but_takes_no_messages_is_not_called_unknown(
    cluster: Any, topic: str, quick: Timings, why: str
) -> None:
    async with cluster.running("b1", replicas={"b1": [1]}):
        if why == "it is read-only":
            cluster.perm = 4
        else:
            del cluster.broker_addrs["b1"][0]
        async with Producer(cluster.name_server, timings=quick) as producer:
            with pytest.raises(SendError, match=f"topic {topic} takes no messages now.*master"):
                await producer.send(Message(topic, b"x"))
        assert not cluster.sent(SEND)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_stored_without_confirmation_is_a_result_not_an_error(
    cluster: Any, topic: str, quick: Timings, code: int, status: SendStatus
) -> None:
    def unconfirmed(request: Any) -> Any:
        header = SendResponseHeader(msg_id="7F0000010000A7E50000000000000000", queue_id=0, queue_offset=1)
        return request.reply(code, header)

    async with cluster.running("b1", "b2"):
        cluster.on(SEND, unconfirmed)
        async with Producer(cluster.name_server, timings=quick) as producer:
            assert (await producer.send(Message(topic, b"x"))).status is status
            assert len(cluster.sent(SEND)) == 1
        async with Producer(
            cluster.name_server, retry_another_broker_when_not_stored_ok=True, timings=quick
        ) as producer:
            assert (await producer.send(Message(topic, b"x"))).status is status
            assert len(cluster.sent(SEND)) == 4


@pytest.mark.scenario(76)
async def test_a_slow_broker_is_avoided_for_a_while_with_latency_fault_tolerance(
    cluster: Any, topic: str, quick: Timings
) -> None:
    async with cluster.running("b1", "b2"):

        def slow(request: Any) -> Any:
            asyncio.get_running_loop().call_later(0.6, request.peer.send, cluster.stored(request))
            return None

        cluster.on(SEND, slow, broker="b1")
        async with Producer(cluster.name_server, latency_fault_tolerance=True, timings=quick) as producer:
            used = []
            while "b1" not in used:
                used.append((await producer.send(Message(topic, b"x"))).queue.broker_name)
            for _ in range(6):
                assert (await producer.send(Message(topic, b"x"))).queue.broker_name == "b2"
            assert not producer._sender.faults.available("b1", time.monotonic() * 1000)
            assert producer._sender.faults.available("b1", (time.monotonic() + 2) * 1000)


@pytest.mark.scenario(75)
async def test_back_pressure_refuses_a_send_that_finds_no_place_in_time(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"):
        producer = Producer(cluster.name_server, max_pending_messages=10, retry_times=0, timings=quick)
        async with producer:
            await producer.queues(topic)
            cluster.on(SEND, lambda request: None)
            stuck = [
                asyncio.ensure_future(producer.send(Message(topic, b"x"), timeout_ms=2_000))
                for _ in range(10)
            ]
            await eventually(lambda: len(cluster.sent(SEND)) == 10)
            with pytest.raises(TooManyRequests):
                await producer.send(Message(topic, b"x"), timeout_ms=50)
            assert len(cluster.sent(SEND)) == 10
            for request in cluster.sent(SEND):
                request.peer.send(cluster.stored(request))
            await asyncio.gather(*stuck)
            cluster.on(SEND, cluster.stored)
            await producer.send(Message(topic, b"x"))


# ---- many at once -------------------------------------------------------------------------------------


async def test_send_many_gives_a_result_for_each_message_in_order(server: RunningBroker, topic: str) -> None:
    messages = [Message(topic, b"%d" % number) for number in range(1_500)]
    messages[7] = Message(topic, b"late", delay_level=1)  # cannot be part of a batch
    messages[8] = Message(topic, b"big" * 5_000)
    messages[9] = Message(f"{topic}-other", b"elsewhere")
    async with Producer(server.name_server, batch_messages=100) as producer:
        results = await producer.send_many(messages)
        assert [result.message_id for result in results] == [message.message_id for message in messages]
        for place in (0, 1, 8, 9, 1_499):
            record = await stored(producer, results[place].offset_message_id)
            assert record.find("UNIQ_KEY") == messages[place].message_id
            assert record.queue_offset == results[place].queue_offset
            assert record.queue_id == results[place].queue.queue_id
        assert (await stored(producer, results[8].offset_message_id)).sys_flag == 0x301
    del results[7]  # its offset is one of the delay level's queue
    assert len({(result.queue, result.queue_offset) for result in results}) == 1_499


async def test_send_many_keeps_the_order_of_each_key(server: RunningBroker, topic: str) -> None:
    messages = [Message(topic, b"%d" % number) for number in range(600)]
    async with Producer(server.name_server, batch_messages=20, default_topic_queues=4) as producer:
        results = await producer.send_many(messages, queue_key=lambda message: int(message.body) % 3)
    for remainder in range(3):
        own = [result for number, result in enumerate(results) if number % 3 == remainder]
        assert len({result.queue for result in own}) == 1
        assert [result.queue_offset for result in own] == sorted(result.queue_offset for result in own)


async def test_send_many_tells_for_each_message_how_it_went(cluster: Any, topic: str, quick: Timings) -> None:
    async with cluster.running("b1"), Producer(cluster.name_server, retry_times=0, timings=quick) as producer:
        cluster.on(BATCH, lambda request: request.reply(ResponseCode.SYSTEM_BUSY))
        large = Message(topic, b"x", properties={"p": "x" * 40_000})
        messages = [Message(topic, b"x"), Message(topic, b""), Message(topic, b"y" * 5_000), large]
        with pytest.raises(SendManyFailed, match="3 of 4") as caught:
            await producer.send_many(messages)
        first, second, third, fourth = caught.value.results
        assert isinstance(fourth, MessageTooLarge)
        assert isinstance(first, SendError)
        assert isinstance(second, InvalidArgument)
        assert getattr(third, "status", None) is SendStatus.OK
        assert not caught.value.outcome_unknown


async def test_send_many_of_messages_that_differ_in_bodies_only(server: RunningBroker, topic: str) -> None:
    def message(number: int) -> Message:
        body = b"%d" % number + b"." * (number % 7)
        return Message(topic, body, tag="paid", properties={"line": "a\nb"}, flag=number % 3)

    messages = [message(number) for number in range(250)]
    messages[60] = messages[10]  # in another batch
    messages[15] = messages[10]  # in the same one
    sizes: list[int] = []

    class Hook:
        def before(self, group: str, queue: MessageQueue, outgoing: Any) -> None:
            sizes.append(len(outgoing.body))

        def after(self, *_: object) -> None: ...

    settings = {"batch_messages": 50, "batch_bytes": 2_000, "default_topic_queues": 1}
    async with Producer(server.name_server, **settings) as producer:
        producer.send_hooks.append(Hook())
        results = await producer.send_many(messages)
        records = [await stored(producer, result.offset_message_id) for result in results]
    assert max(sizes) < 2_200  # looked at one by one, the last message of a batch may lie across the limit
    assert [result.message_id for result in results] == [message.message_id for message in messages]
    assert len({result.message_id for result in results}) == 248
    for sent, record in zip(messages, records, strict=True):
        assert (bytes(record.body), record.flag) == (sent.body, sent.flag)
        own = {name: record.properties[name] for name in sent.properties}
        assert own == sent.properties
    assert sorted(result.queue_offset for result in results) == list(range(250))


@pytest.mark.parametrize("odd", [b"", b"x" * 1_001], ids=["an empty body", "a body over the limit"])
async def test_one_message_that_cannot_be_sent_does_not_hold_up_those_alike(
    server: RunningBroker, topic: str, odd: bytes
) -> None:
    messages = [Message(topic, b"%d" % number) for number in range(30)]
    messages[17] = Message(topic, odd)
    async with Producer(server.name_server, batch_messages=10, max_message_bytes=1_000) as producer:
        with pytest.raises(SendManyFailed, match="1 of 30") as caught:
            await producer.send_many(messages)
    assert isinstance(caught.value.results[17], InvalidArgument | MessageTooLarge)
    assert messages[17].message_id is None


async def test_send_many_of_nothing_is_nothing(server: RunningBroker) -> None:
    async with Producer(server.name_server) as producer:
        assert await producer.send_many([]) == []


async def test_a_batch_lies_together_in_one_queue(server: RunningBroker, topic: str) -> None:
    async with Producer(server.name_server) as producer:
        result = await producer.send_batch([Message(topic, b"%d" % number) for number in range(3)])
        ids = result.offset_message_id.split(",")
        records = [await stored(producer, offset_id) for offset_id in ids]
    assert [bytes(record.body) for record in records] == [b"0", b"1", b"2"]
    assert [record.queue_offset for record in records] == [0, 1, 2]
    assert len(result.message_id.split(",")) == 3


@pytest.mark.scenario(70)
async def test_a_batch_of_two_topics_or_with_a_delay_is_refused_before_sending(
    cluster: Any, topic: str
) -> None:
    async with cluster.running("b1"), Producer(cluster.name_server) as producer:
        with pytest.raises(InvalidArgument, match="one topic"):
            await producer.send_batch([Message(topic, b"x"), Message("other", b"x")])
        with pytest.raises(InvalidArgument, match="delayed"):
            await producer.send_batch([Message(topic, b"x", delay_level=3)])
        with pytest.raises(InvalidArgument, match="wait_stored"):
            await producer.send_batch([Message(topic, b"x"), Message(topic, b"x", wait_stored=False)])
        with pytest.raises(InvalidArgument, match="at least one"):
            await producer.send_batch([])
        assert not cluster.sent(BATCH)


# ---- hooks and life -----------------------------------------------------------------------------------


async def test_send_hooks_see_every_attempt_and_may_veto(cluster: Any, topic: str, quick: Timings) -> None:
    seen: list[tuple[Any, Any]] = []

    class Hook:
        def before(self, group: str, queue: Any, message: Any) -> None:
            if message.body == b"forbidden":
                raise InvalidArgument("not this one")

        def after(self, group: str, queue: Any, message: Any, result: Any, error: Any) -> None:
            seen.append((result, error))
            raise RuntimeError("hooks must not disturb sends")

    async with cluster.running("b1"):
        producer = Producer(cluster.name_server, timings=quick)
        producer.send_hooks.append(Hook())
        async with producer:
            result = await producer.send(Message(topic, b"x"))
            assert seen == [(result, None)]
            with pytest.raises(InvalidArgument, match="not this one"):
                await producer.send(Message(topic, b"forbidden"))
            assert len(cluster.sent(SEND)) == 1


async def test_a_producer_that_does_not_run_says_so(server: RunningBroker, topic: str) -> None:
    producer = Producer(server.name_server)
    with pytest.raises(WrongState, match="not running"):
        await producer.send(Message(topic, b"x"))
    await producer.start()
    await producer.close()
    await producer.close()
    with pytest.raises(WrongState, match="closed"):
        await producer.send(Message(topic, b"x"))
