"""A small cluster in virtual time: brokers that restart and die, consumers that come, go and die."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock import ConsumeFrom, Message, Producer, PullConsumer, PushConsumer, RetryLater
from penstock.broker.settings import BrokerSettings
from penstock.client import instance as instances
from penstock.client.consumer_base import ConsumerBase
from penstock.client.instance import ServiceState
from penstock.errors import PenstockError, WrongState
from penstock.message.model import ReceivedMessage
from penstock.message.names import dlq_topic
from penstock.message.queue import MessageQueue
from penstock.namesrv import NamesrvSettings
from penstock.runtime import clock
from penstock.runtime.broker import BrokerRuntime
from penstock.runtime.namesrv import NamesrvRuntime
from penstock.runtime.registration import Registrar
from penstock.testing.consume_history import ConsumeHistory, GroupRules
from penstock.testing.running import SMALL_FILES
from penstock.testing.virtual_loop import VirtualLoop

BROKERS = ("a", "b")
CONSUME_TIMEOUT_S = 60
RULES = {
    "work": GroupRules(
        "orders", max_reconsume_times=3, consume_timeout_s=CONSUME_TIMEOUT_S, retry_delays_s=(5.0, 5.0, 5.0)
    ),
    "line": GroupRules("lines", orderly=True, max_reconsume_times=2, consume_timeout_s=CONSUME_TIMEOUT_S),
    "poll": GroupRules("orders"),
}
POISON = 3
"""Per cent of messages that no listener can consume."""


@contextlib.contextmanager
def virtual_time(seed: int) -> Iterator[VirtualLoop]:
    loop = VirtualLoop(seed)
    random.seed(seed)
    clock.source = loop.wall_ns
    try:
        yield loop
    finally:
        clock.source = clock.time.time_ns
        loop.close()


class AtOnce:
    """Disk work without a thread."""

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, work: Callable[[], None], done: Callable[[OSError | None], None] | None = None) -> None:
        work()
        if done is not None:
            done(None)

    def close(self) -> None:
        return


class SimulatedBroker(BrokerRuntime):
    worker = AtOnce  # type: ignore[assignment]
    tick_seconds = 0.1


class World:
    def __init__(self, seed: int, data: Path) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.history = ConsumeHistory(RULES)
        self.failures: list[str] = []
        self.disturbances = 0
        self._data = data
        self._ports: dict[str, int] = {}
        self._brokers: dict[str, SimulatedBroker] = {}
        self._consumers: dict[str, list[ConsumerBase]] = {group: [] for group in RULES}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = 0

    # ---- the cluster --------------------------------------------------------------------------------

    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(lambda _, context: self.failures.append(repr(context)))
        self._namesrv = NamesrvRuntime(NamesrvSettings(listen_port=0), self._data / "namesrv")
        await self._namesrv.start()
        for name in BROKERS:
            await self.start_broker(name)

    async def start_broker(self, name: str) -> None:
        settings = BrokerSettings.from_properties(
            {
                **SMALL_FILES,
                "brokerName": name,
                "flushDiskType": "ASYNC_FLUSH",
                "listenPort": str(self._ports.get(name, 0)),
            }
        )
        broker = SimulatedBroker(settings, self._data / name, registrar=Registrar(local=self._namesrv))
        await broker.open()
        await broker.start()
        broker.broker.random.seed(self.seed)
        if name in self._ports:
            self.history.broker_back(name, self.loop.time())
        self._ports[name] = settings.listen_port
        self._brokers[name] = broker

    async def end_broker(self, name: str, *, kill: bool) -> None:
        broker = self._brokers.pop(name)
        await (broker.kill() if kill else broker.stop())
        self.history.broker_away(name, self.loop.time())

    # ---- consumers ----------------------------------------------------------------------------------

    async def join(self, group: str) -> None:
        self._numbers += 1
        name_server = self._namesrv.address
        options: dict[str, Any] = {
            "group": group,
            "consume_from": ConsumeFrom.FIRST_OFFSET,
            "instance_name": f"{group}-{self._numbers}",
        }
        rules = RULES[group]
        consumer: PushConsumer | PullConsumer
        if group == "poll":
            consumer = PullConsumer(name_server, subscribe={rules.topic: "*"}, **options)
            await consumer.start()
            self.spawn(self._poll(consumer))
        else:
            consumer = PushConsumer(
                name_server,
                orderly=rules.orderly,
                max_reconsume_times=rules.max_reconsume_times,
                consume_timeout_ms=CONSUME_TIMEOUT_S * 1000,
                consume_threads=4,
                **options,
            )
            consumer.on(rules.topic)(self._listener(consumer))
            await consumer.start()
        self._consumers[group].append(consumer)

    def _listener(self, consumer: PushConsumer) -> Callable[[ReceivedMessage], Any]:
        group = consumer.group
        longest = 15.0 if RULES[group].orderly else 20.0

        async def listen(message: ReceivedMessage) -> None:
            message_id = message.body.decode()
            call = self.history.began(
                group,
                consumer.client_id,
                message_id,
                message.queue,
                message.queue_offset,
                message.reconsume_times,
                self.loop.time(),
            )
            # What becomes of an attempt depends on the message alone, so that a seed means one story.
            fate = random.Random(f"{self.seed}/{group}/{message_id}/{message.reconsume_times}")
            nature = random.Random(f"{self.seed}/{group}/{message_id}").random() * 100
            if fate.random() < 0.1:
                await asyncio.sleep(fate.uniform(0.1, longest))
            elif fate.random() < 0.003 and not RULES[group].orderly:
                await asyncio.sleep(2.5 * CONSUME_TIMEOUT_S)
            bad = nature < POISON or (nature < 15 and message.reconsume_times < 1 + nature % 3)
            self.history.ended(call, not bad, self.loop.time())
            if bad:
                raise RetryLater("as planned")

        return listen

    async def _poll(self, consumer: PullConsumer) -> None:
        while consumer.running:
            try:
                messages = await consumer.poll(2_000)
            except WrongState:  # it left, or died, meanwhile
                return
            for message in messages:
                now = self.loop.time()
                call = self.history.began(
                    "poll",
                    consumer.client_id,
                    message.body.decode(),
                    message.queue,
                    message.queue_offset,
                    0,
                    now,
                )
                self.history.ended(call, True, now)

    async def leave(self, consumer: ConsumerBase) -> None:
        self._consumers[consumer.group].remove(consumer)
        await consumer.stop()
        self.history.died(consumer.client_id, self.loop.time())  # what it did not finish in time was cut off

    def die(self, consumer: ConsumerBase) -> None:
        """As if its process were killed: nothing more is done, said or stored, its connections break."""
        self._consumers[consumer.group].remove(consumer)
        self.history.died(consumer.client_id, self.loop.time())
        consumer._state = ServiceState.SHUTDOWN_ALREADY
        consumer.rebalancer.drop_all()
        if isinstance(consumer, PushConsumer):
            consumer.consume_service.stopping = True
            consumer.consume_service.pool.stop()
        instance = consumer.instance
        instance.state = ServiceState.SHUTDOWN_ALREADY
        del instances._instances[instance.client_id]
        instance.pull_service.stop()
        self.spawn(instance.rebalance_service.stop())
        for task in [*consumer._tasks, *instance._tasks]:
            task.cancel()
        instance.remoting._closed = True
        for channel in instance.remoting._channels.values():
            channel.abort()

    # ---- life ---------------------------------------------------------------------------------------

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(repr(task.exception()))

    async def produce(self, producer: Producer, until: float) -> None:
        number = 0
        while self.loop.time() < until:
            await asyncio.sleep(self.random.expovariate(1.0))
            for topic in ("orders", "lines"):
                number += 1
                message = Message(topic, f"{topic}-{number}".encode())
                try:
                    await producer.send(message, queue_key=number % 7 if topic == "lines" else None)
                except PenstockError:
                    continue  # not stored, or nobody knows: it does not count
                self.history.stored(topic, message.body.decode())

    async def disturb(self, until: float, every_s: float) -> None:
        while self.loop.time() < until:
            await asyncio.sleep(self.random.expovariate(1 / every_s))
            group = self.random.choice(sorted(RULES))
            members = self._consumers[group]
            choice = self.random.choice(["join", "leave", "die", "restart", "kill"])
            self.disturbances += 1
            if choice in ("restart", "kill"):
                name = self.random.choice(BROKERS)
                await self.end_broker(name, kill=choice == "kill")
                await asyncio.sleep(self.random.uniform(0.2, 40))
                await self.start_broker(name)
            elif len(members) < 2 or (choice == "join" and len(members) < 4):
                await self.join(group)
            elif choice == "die":
                self.die(self.random.choice(members))
            else:
                await self.leave(self.random.choice(members))

    async def watch(self) -> None:
        """Looks at the offsets that the brokers hold."""
        while True:
            await asyncio.sleep(1)
            for name, broker in self._brokers.items():
                offsets = broker.broker.offsets
                for topic, group in list(offsets.pairs()):
                    if group in RULES:
                        for queue_id, offset in offsets.queues(group, topic).items():
                            queue = MessageQueue(topic, name, queue_id)
                            self.history.committed(group, queue, offset, self.loop.time())

    async def dead_letters(self) -> None:
        """Reads the dead-letter topics from their beginning."""
        for group in RULES:
            topic = dlq_topic(group)
            queues = [
                MessageQueue(topic, name, 0)
                for name, broker in self._brokers.items()
                if broker.broker.topics.get(topic) is not None
            ]
            if not queues:
                continue
            reader = PullConsumer(
                self._namesrv.address, group=f"dead-{group}", consume_from=ConsumeFrom.FIRST_OFFSET
            )
            reader.assign(queues)
            async with reader:
                for queue in queues:
                    await reader.seek_to_begin(queue)
                while messages := await reader.poll(3_000):
                    for message in messages:
                        self.history.dead(group, message.body.decode(), self.loop.time())

    async def run(self, seconds: float, *, every_s: float = 45.0) -> None:
        """Lives for `seconds` with disturbances, then in peace until all is consumed, two hours at most."""
        await self.open()
        until = self.loop.time() + seconds
        async with Producer(self._namesrv.address, group="shop") as producer:
            for group in RULES:
                await self.join(group)
            self.spawn(self.watch())
            self.spawn(self.produce(producer, until))
            await self.disturb(until, every_s)
            peace = self.loop.time()
            while self.loop.time() < peace + 2 * 3_600:
                await asyncio.sleep(120)
                await self.dead_letters()
                if not self.history.unfinished():
                    break
        await self.close()

    async def close(self) -> None:
        for members in self._consumers.values():
            for consumer in list(members):
                await self.leave(consumer)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in list(self._brokers):
            await self.end_broker(name, kill=False)
        await self._namesrv.stop()
