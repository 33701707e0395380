"""The client without await: same names, same results, and nothing that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from penstock import ConsumeFrom, Message, sync
from penstock.client.config import Timings
from penstock.errors import WrongState
from penstock.testing import RunningBroker


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_messages_go_out_and_come_in_without_await(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    got: list[bytes] = []
    consumer = sync.PushConsumer(
        server.name_server, group=group, consume_from=ConsumeFrom.FIRST_OFFSET, timings=quick
    )

    @consumer.on(topic, tags="paid")
    def note(message: Any) -> None:
        got.append(message.body)

    with sync.Producer(server.name_server) as producer:
        result = producer.send(Message(topic, b"one", tag="paid"))
        assert result.queue in producer.queues(topic)
        producer.send_oneway(Message(topic, b"two", tag="paid"))
        assert len(producer.send_many([Message(topic, b"three", tag="paid"), Message(topic, b"no")])) == 2
        producer.send_batch([Message(topic, b"four", tag="paid")])
        with consumer:
            wait_for(lambda: len(got) == 4)
    assert sorted(got) == [b"four", b"one", b"three", b"two"]


def test_a_coroutine_may_handle_messages_of_a_sync_consumer(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    threads: list[str] = []
    consumer = sync.PushConsumer(
        server.name_server, group=group, consume_from=ConsumeFrom.FIRST_OFFSET, timings=quick
    )

    @consumer.on(topic)
    async def note(message: Any) -> None:
        threads.append(threading.current_thread().name)

    with sync.Producer(server.name_server) as producer, consumer:
        producer.send(Message(topic, b"x"))
        wait_for(lambda: threads)
        consumer.suspend()
        consumer.resume()
    assert threads == ["penstock-client"]


def test_a_pull_consumer_polls_seeks_and_iterates(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    with sync.Producer(server.name_server) as producer:
        queue = producer.queues(topic)[0]
        for number in range(5):
            producer.send(Message(topic, b"%d" % number), queue=queue)
    consumer = sync.PullConsumer(
        server.name_server,
        group=group,
        subscribe={topic: "*"},
        consume_from=ConsumeFrom.FIRST_OFFSET,
        timings=quick,
    )
    with consumer:
        assert [message.body for message in consumer.poll(5_000)] == [b"0", b"1", b"2", b"3", b"4"]
        assert queue in consumer.assignment
        consumer.seek(queue, 3)
        bodies = []
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 2:
                break
        consumer.commit(persist=True)
        assert consumer.committed(queue) == 5
    assert bodies == [b"3", b"4"]


def test_errors_are_those_of_the_async_client(server: RunningBroker, topic: str) -> None:
    producer = sync.Producer(server.name_server)
    with pytest.raises(WrongState, match="not running"):
        producer.send(Message(topic, b"x"))


def test_a_blocking_call_from_a_coroutine_listener_is_an_error_not_a_deadlock(
    server: RunningBroker, topic: str, group: str, quick: Timings
) -> None:
    errors: list[Exception] = []
    consumer = sync.PushConsumer(
        server.name_server, group=group, consume_from=ConsumeFrom.FIRST_OFFSET, timings=quick
    )
    with sync.Producer(server.name_server) as producer:

        @consumer.on(topic)
        async def forward(message: Any) -> None:
            try:
                producer.send(Message(topic, b"again"))
            except WrongState as error:
                errors.append(error)

        producer.send(Message(topic, b"x"))
        with consumer:
            wait_for(lambda: errors)
    assert "async client" in str(errors[0])


def run_script(server: RunningBroker, topic: str, text: str) -> subprocess.CompletedProcess[str]:
    preamble = f"NS, TOPIC = {server.name_server!r}, {topic!r}\n"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", preamble + text],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_a_program_that_forgets_to_close_ends_quickly_and_loses_no_offset(
    server: RunningBroker, topic: str, group: str
) -> None:
    script = f"""
import threading, time
from penstock import ConsumeFrom, Message, sync
producer = sync.Producer(NS); producer.start()
producer.send(Message(TOPIC, b"x"))
seen = threading.Event()
consumer = sync.PushConsumer(NS, group={group!r}, consume_from=ConsumeFrom.FIRST_OFFSET)
@consumer.on(TOPIC)
def note(message):
    seen.set()
consumer.start()
assert seen.wait(10)
time.sleep(0.2)
print("end of main")
"""
    began = time.monotonic()
    result = run_script(server, topic, script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "end of main\n", "")
    assert time.monotonic() - began < 15
    with sync.PullConsumer(server.name_server, group=group, subscribe={topic: "*"}) as consumer:
        assert consumer.poll(300) == []


def test_a_program_with_a_stuck_listener_ends_all_the_same(
    server: RunningBroker, topic: str, group: str
) -> None:
    script = f"""
import threading
from penstock import ConsumeFrom, Message, sync
producer = sync.Producer(NS); producer.start()
producer.send(Message(TOPIC, b"x"))
seen = threading.Event()
consumer = sync.PushConsumer(NS, group={group!r}, consume_from=ConsumeFrom.FIRST_OFFSET)
@consumer.on(TOPIC)
def stuck(message):
    seen.set()
    threading.Event().wait()
consumer.start()
assert seen.wait(10)
"""
    result = run_script(server, topic, script)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_use_after_a_fork_is_a_clear_error_and_a_new_client_works_in_the_child(
    server: RunningBroker, topic: str
) -> None:
    script = """
import os, sys
from penstock import Message, sync
from penstock.errors import WrongState
producer = sync.Producer(NS); producer.start()
producer.send(Message(TOPIC, b"parent"))
pid = os.fork()
if pid == 0:
    try:
        producer.send(Message(TOPIC, b"child"))
    except WrongState as error:
        assert "fork" in str(error), error
    else:
        os._exit(2)
    with sync.Producer(NS) as own:
        own.send(Message(TOPIC, b"child"))
    os._exit(0)
_, status = os.waitpid(pid, 0)
producer.send(Message(TOPIC, b"parent again"))
print(os.waitstatus_to_exitcode(status))
"""
    result = run_script(server, topic, script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", "")


def test_an_async_client_after_a_fork_says_so_too(server: RunningBroker, topic: str) -> None:
    script = """
import asyncio, os
from penstock import Message, Producer
from penstock.errors import WrongState
producer = Producer(NS)
async def main():
    await producer.start()
    await producer.send(Message(TOPIC, b"parent"))
    pid = os.fork()
    if pid == 0:
        try:
            await producer.send(Message(TOPIC, b"child"))
        except WrongState:
            os._exit(0)
        os._exit(2)
    _, status = os.waitpid(pid, 0)
    await producer.close()
    print(os.waitstatus_to_exitcode(status))
asyncio.run(main())
"""
    result = run_script(server, topic, script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", "")


def test_run_consumes_until_a_signal_and_stops_in_order(
    server: RunningBroker, topic: str, group: str
) -> None:
    script = f"""
import os, signal, threading
from penstock import ConsumeFrom, Message, sync
with sync.Producer(NS) as producer:
    producer.send(Message(TOPIC, b"x"))
consumer = sync.PushConsumer(NS, group={group!r}, consume_from=ConsumeFrom.FIRST_OFFSET)
@consumer.on(TOPIC)
def note(message):
    print("got it", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
consumer.run()
print("stopped")
"""
    result = run_script(server, topic, script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "got it\nstopped\n", "")
