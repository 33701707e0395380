"""What administrators and applications can ask of a running push consumer."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from typing import Any

import pytest

from penstock import ConsumeFrom, ConsumeStatus, Message, MessageQueue, OrderlyStatus, Producer, PushConsumer
from penstock.client.config import Timings
from penstock.client.served import read_reset_table
from penstock.errors import InvalidArgument
from penstock.message.ids import pack_host
from penstock.message.record import encode_record
from penstock.testing import RunningBroker
from penstock.wire.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    QueueOffset,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.headers import InvokeBrokerToResetOffsetHeader

FIRST = ConsumeFrom.FIRST_OFFSET


def success(messages: Any, context: Any) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


def push(name_server: str, group: str, topic: str, quick: Timings, **options: Any) -> PushConsumer:
    options.setdefault("listener", success)
    options.setdefault("consume_from", FIRST)
    return PushConsumer(name_server, group=group, subscribe={topic: "*"}, timings=quick, **options)


@pytest.mark.scenario(57)
@pytest.mark.behaviour("PULL-5")
async def test_a_suspended_consumer_pulls_nothing_and_goes_on_after_resume(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    got: list[bytes] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.append(messages[0].body)
        return ConsumeStatus.SUCCESS

    async with Producer(server.name_server) as producer:
        await producer.send(Message(topic, b"1"))
        async with push(server.name_server, group, topic, quick, listener=listener) as consumer:
            await eventually(lambda: got == [b"1"])
            consumer.suspend()
            # The pull that the broker holds is answered; none follows it.
            await producer.send(Message(topic, b"2"), queue=(await producer.queues(topic))[0])
            await producer.send(Message(topic, b"3"), queue=(await producer.queues(topic))[0])
            await asyncio.sleep(0.2)
            await producer.send(Message(topic, b"4"), queue=(await producer.queues(topic))[0])
            await asyncio.sleep(0.2)
            assert b"4" not in got
            await consumer.resume()
            await eventually(lambda: len(got) == 4, 1.5)


@pytest.mark.scenario(15)
def test_both_forms_of_a_reset_name_the_same_queues() -> None:
    queue = MessageQueue("t", "b", 3)
    as_map = ResetOffsetBody({queue: 5}).encode()
    as_list = ResetOffsetBodyForC([QueueOffset("b", 3, "t", 5)]).encode()
    assert as_map != as_list
    assert read_reset_table(as_map) == read_reset_table(as_list) == {queue: 5}


@pytest.mark.scenario(15)
async def test_a_reset_starts_the_queues_anew_at_the_given_offsets(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    queue = MessageQueue(topic, "b1", 0)
    async with cluster.running("b1"):
        cluster.offsets[queue] = 50
        async with push(cluster.name_server, "g", topic, quick) as consumer:
            await eventually(
                lambda: [r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic]
            )
            first = consumer.rebalancer.queues[queue]
            body = ResetOffsetBodyForC(
                [QueueOffset("b1", 0, topic, 7), QueueOffset("b1", 9, topic, 1)]
            ).encode()
            ext = {"group": "g", "topic": topic, "timestamp": "0", "isForce": "true"}
            cluster.servers["b1"].ask(220, ext, body, oneway=True)
            await eventually(lambda: first.dropped)
            assert consumer.paused
            await eventually(lambda: consumer.rebalancer.queues.get(queue) not in (None, first))
            assert not consumer.paused
            assert cluster.offsets[queue] == 7
            assert MessageQueue(topic, "b1", 9) not in cluster.offsets

            def last() -> str:
                return [r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic][-1].ext[
                    "queueOffset"
                ]

            await eventually(lambda: last() == "7")


async def test_an_administrators_reset_through_the_broker_delivers_everything_again(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    got: list[bytes] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.append(messages[0].body)
        return ConsumeStatus.SUCCESS

    async with Producer(server.name_server) as producer:
        for number in range(20):
            await producer.send(Message(topic, b"%d" % number))
        async with push(server.name_server, group, topic, quick, listener=listener) as consumer:
            await eventually(lambda: len(got) == 20)
            await consumer.persist_offsets()
            header = InvokeBrokerToResetOffsetHeader(topic=topic, group=group, timestamp=0, is_force=True)
            response = await producer.instance.remoting.request(
                server.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, timeout_ms=5_000
            )
            assert response.code == ResponseCode.SUCCESS
            await eventually(lambda: len(got) == 40)
    assert sorted(got[:20]) == sorted(got[20:])


async def test_a_consumer_can_go_back_in_time_by_itself(
    server: RunningBroker, topic: str, group: str, quick: Timings, eventually: Any
) -> None:
    got: list[bytes] = []

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        got.append(messages[0].body)
        return ConsumeStatus.SUCCESS

    async with Producer(server.name_server) as producer:
        await producer.send(Message(topic, b"old"))
        await asyncio.sleep(0.05)
        between = int(time.time() * 1000)
        await asyncio.sleep(0.05)
        await producer.send(Message(topic, b"new"))
        async with push(server.name_server, group, topic, quick, listener=listener) as consumer:
            await eventually(lambda: sorted(got) == [b"new", b"old"])
            await consumer.reset_offset_by_timestamp(between)
            await eventually(lambda: sorted(got) == [b"new", b"new", b"old"])


async def test_the_status_request_shows_offsets_in_memory(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    queue = MessageQueue(topic, "b1", 0)
    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1]})
        async with push(cluster.name_server, "g", topic, quick) as consumer:
            await eventually(lambda: consumer.offset_store.memory(queue) == 2)
            broker = cluster.servers["b1"]
            broker.ask(221, {"topic": topic, "group": "g"})
            await eventually(lambda: broker.responses)
            assert GetConsumerStatusBody.decode(broker.responses[0].body).message_queue_table == {queue: 2}


@pytest.mark.scenario(59)
async def test_running_info_shows_settings_queues_rates_and_stacks_but_no_secrets(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    queue = MessageQueue(topic, "b1", 0)
    async with cluster.running("b1"):
        cluster.feed(topic, {0: [0, 1, 2]})
        consumer = push(
            cluster.name_server, "g", topic, quick, access_key="ak", secret_key="hidden", consume_threads=7
        )
        async with consumer:
            await eventually(lambda: consumer.offset_store.memory(queue) == 3)
            broker = cluster.servers["b1"]
            broker.ask(307, {"consumerGroup": "g", "clientId": consumer.client_id, "jstackEnable": "true"})
            await eventually(lambda: broker.responses)
            body = broker.responses[0].body or b""
    assert b'"droped":false' in body
    assert b"hidden" not in body
    info = ConsumerRunningInfo.decode(body)
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "7"
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert info.properties["PROP_NAMESERVER_ADDR"] == f"{cluster.name_server};"
    assert info.properties["consume_batch"] == "1"
    assert info.mq_table[queue].commit_offset == 3
    assert abs(info.mq_table[queue].last_pull_timestamp - time.time() * 1000) < 10_000
    assert {item.topic for item in info.subscription_set} == {topic, "%RETRY%g"}
    assert topic in info.status_table
    assert info.jstack is not None
    assert "MainThread" in info.jstack


async def test_running_info_of_an_unknown_group_is_an_error(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async with cluster.running("b1"), push(cluster.name_server, "g", topic, quick):
        broker = cluster.servers["b1"]
        broker.ask(307, {"consumerGroup": "stranger", "clientId": "x"})
        await eventually(lambda: broker.responses)
        assert broker.responses[0].code == ResponseCode.SYSTEM_ERROR


def direct_body(topic: str) -> bytes:
    return encode_record(
        topic=topic.encode(),
        queue_id=2,
        flag=0,
        queue_offset=5,
        physical_offset=55,
        sys_flag=0,
        born_ms=1,
        born_host=pack_host("127.0.0.1", 1),
        store_ms=2,
        store_host=pack_host("127.0.0.1", 2),
        reconsume_times=0,
        prepared_offset=0,
        body=b"direct",
        properties=b"",
    )


@pytest.mark.scenario(58)
@pytest.mark.parametrize(
    ("orderly", "answer", "expected"),
    [
        (False, ConsumeStatus.SUCCESS, "CR_SUCCESS"),
        (False, ConsumeStatus.RECONSUME_LATER, "CR_LATER"),
        (False, None, "CR_RETURN_NULL"),
        (False, ValueError("broken"), "CR_THROW_EXCEPTION"),
        (True, OrderlyStatus.SUCCESS, "CR_SUCCESS"),
        (True, OrderlyStatus.SUSPEND, "CR_LATER"),
        (True, OrderlyStatus.COMMIT, "CR_COMMIT"),
        (True, OrderlyStatus.ROLLBACK, "CR_ROLLBACK"),
    ],
)
async def test_a_message_consumed_on_request_reports_what_the_listener_did_and_touches_nothing(
    cluster: Any, topic: str, quick: Timings, eventually: Any, orderly: bool, answer: Any, expected: str
) -> None:
    seen: list[Any] = []

    def listener(messages: Any, context: Any) -> Any:
        seen.append((messages[0].body, context.queue, threading.current_thread() is threading.main_thread()))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with cluster.running("b1"):
        async with push(
            cluster.name_server, "g", topic, quick, listener=listener, orderly=orderly
        ) as consumer:
            await eventually(lambda: consumer.rebalancer.queues)
            broker = cluster.servers["b1"]
            broker.ask(309, {"consumerGroup": "g", "brokerName": "b1"}, direct_body(topic))
            await eventually(lambda: broker.responses)
            result = ConsumeMessageDirectlyResult.decode(broker.responses[0].body)
            assert consumer.offset_store.memory(MessageQueue(topic, "b1", 2)) is None
        assert seen == [(b"direct", MessageQueue(topic, "b1", 2), False)]
        assert result.consume_result == expected
        assert result.order is orderly
        assert (result.remark is not None) == isinstance(answer, Exception)
        assert not cluster.sent(RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_a_coroutine_listener_can_consume_on_request_as_well(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    async def listener(messages: Any, context: Any) -> ConsumeStatus:
        await asyncio.sleep(0.01)
        return ConsumeStatus.SUCCESS

    async with cluster.running("b1"), push(cluster.name_server, "g", topic, quick, listener=listener):
        broker = cluster.servers["b1"]
        await eventually(lambda: broker.peers)
        broker.ask(309, {"consumerGroup": "g", "brokerName": "b1"}, direct_body(topic))
        await eventually(lambda: broker.responses)
        result = ConsumeMessageDirectlyResult.decode(broker.responses[0].body)
        assert result.consume_result == "CR_SUCCESS"
        assert result.spent_time_mills >= 9


async def test_the_number_of_workers_can_be_changed_while_running(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    running = [0, 0]
    lock = threading.Lock()

    def listener(messages: Any, context: Any) -> ConsumeStatus:
        with lock:
            running[0] += 1
            running[1] = max(running)
        time.sleep(0.02)
        with lock:
            running[0] -= 1
        return ConsumeStatus.SUCCESS

    queue = MessageQueue(topic, "b1", 0)
    async with cluster.running("b1"):
        cluster.feed(topic, {0: list(range(10))})
        async with push(
            cluster.name_server, "g", topic, quick, listener=listener, consume_threads=1
        ) as consumer:
            await eventually(lambda: consumer.offset_store.memory(queue) == 10)
            assert running[1] == 1
            consumer.resize_workers(5)
            cluster.feed(topic, {10: list(range(10, 30))})
            held = [r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic][-1]
            held.peer.send(cluster.pulled(held, offsets=list(range(10, 30))))
            await eventually(lambda: consumer.offset_store.memory(queue) == 30)
            assert 1 < running[1] <= 5
            with pytest.raises(InvalidArgument):
                consumer.resize_workers(0)


async def test_rates_are_sampled_and_reported(
    cluster: Any, topic: str, quick: Timings, eventually: Any
) -> None:
    timings = dataclasses.replace(quick, stats_interval_ms=30)
    async with cluster.running("b1"), push(cluster.name_server, "g", topic, timings) as consumer:
        await asyncio.sleep(0.1)
        held = [r for r in cluster.sent(RequestCode.PULL_MESSAGE) if r.ext["topic"] == topic][-1]
        held.peer.send(cluster.pulled(held, offsets=[0, 1, 2]))
        await eventually(lambda: consumer.stats.topic(topic).status().consume_ok_tps > 0)
        status = consumer.stats.topic(topic).status()
        assert status.pull_tps > 0
        assert status.consume_failed_tps == 0
