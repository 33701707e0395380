"""One client instance: one client id, one set of connections, one route cache, one set of services.

All producers and consumers of a process that have the same client id share it. It knows which broker has
which topic, keeps brokers informed of who is here, and wakes the rebalance of its consumers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Final, Protocol

from penstock.client import discovery
from penstock.client.api import BrokerApi
from penstock.client.config import ClientSettings, ProducerSettings
from penstock.client.pull_service import PullRequest, PullService
from penstock.client.rebalance import RebalanceService
from penstock.client.remoting import Remoting
from penstock.client.routes import RouteTable, subscribe_queues
from penstock.client.rpc_hooks import hooks_for
from penstock.client.sender import Sender
from penstock.client.served import ServedRequests
from penstock.errors import BrokerNotFound, NoNameServer, PenstockError, WrongState
from penstock.message.ids import local_ip
from penstock.message.names import AUTO_CREATE_TOPIC, is_retry_topic
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    ProducerData,
    TopicRouteData,
)

log = logging.getLogger("penstock.client")

INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
DEFAULT_INSTANCE: Final = "DEFAULT"


class ServiceState(Enum):
    CREATE_JUST = "created"
    START_FAILED = "start failed"
    RUNNING = "running"
    SHUTDOWN_ALREADY = "closed"


class Consumer(Protocol):
    """What an instance asks of its consumers."""

    group: str

    def topics(self) -> Iterable[str]: ...

    def consumer_data(self) -> ConsumerData: ...

    async def rebalance(self) -> bool:
        """False if it should be done again soon."""

    async def persist_offsets(self) -> None: ...

    def pull(self, request: PullRequest) -> None: ...

    def sample_stats(self) -> None: ...

    def broker_lost(self, broker_name: str) -> None:
        """The connection to it is gone: it may have been restarted."""

    async def broker_back(self) -> None:
        """A connection to a broker was made and it knows this client again."""

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None: ...

    def offsets_in_memory(self, topic: str) -> dict[MessageQueue, int]: ...

    async def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo: ...

    async def consume_directly(self, body: bytes, broker_name: str) -> ConsumeMessageDirectlyResult: ...


def client_id_of(settings: ClientSettings, instance_name: str, *, stream: bool = False) -> str:
    parts = [settings.client_ip or local_ip(), instance_name]
    if settings.unit_name:
        parts.append(settings.unit_name)
    if stream:
        parts.append("STREAM")
    return "@".join(parts)


_instances: dict[str, ClientInstance] = {}


def obtain(client_id: str, settings: ClientSettings, *, stream: bool = False) -> ClientInstance:
    """The process's instance with this id, made if there is none; the first caller's settings count."""
    instance = _instances.get(client_id)
    loop = asyncio.get_running_loop()
    if instance is not None and instance.usable:
        if instance.loop is not loop:
            raise WrongState(
                f"client id {client_id} is in use on another event loop; give this client an instance_name"
            )
        return instance
    instance = _instances[client_id] = ClientInstance(client_id, settings, stream=stream)
    return instance


class ClientInstance:
    def __init__(self, client_id: str, settings: ClientSettings, *, stream: bool) -> None:
        self.client_id = client_id
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.state = ServiceState.CREATE_JUST
        self.routes = RouteTable()
        self.producers: dict[str, Sender] = {}
        self.consumers: dict[str, Consumer] = {}
        self._pid = os.getpid()
        self._served = ServedRequests(self)
        self.remoting = Remoting(
            connect_timeout_ms=settings.connect_timeout_ms,
            max_in_flight=settings.max_in_flight,
            tls=settings.tls,
            hooks=hooks_for(settings, stream=stream),
            on_request=self._served.handle,
            on_open=self._opened,
            on_lost=self._lost,
        )
        self.api = BrokerApi(self.remoting, timeout_ms=settings.api_timeout_ms, vip=settings.vip_channel)
        self.pull_service = PullService(self)
        self.rebalance_service = RebalanceService(self.consumers, settings.timings, self.loop)
        self.inner_producer = Sender(
            self, ProducerSettings(group=INNER_PRODUCER_GROUP, name_server="", timings=settings.timings)
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._start_lock = asyncio.Lock()
        self._heartbeat_lock = asyncio.Lock()
        self._route_updates: dict[tuple[str, int], asyncio.Task[bool]] = {}

    @property
    def usable(self) -> bool:
        """Not closed, and neither inherited through a fork nor left behind by a loop that is gone."""
        return (
            self.state is not ServiceState.SHUTDOWN_ALREADY
            and self._pid == os.getpid()
            and not self.loop.is_closed()
        )

    def now_ms(self) -> float:
        return self.loop.time() * 1000

    # ---- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        async with self._start_lock:
            if self.state is ServiceState.RUNNING:
                return
            if self.state is not ServiceState.CREATE_JUST:
                raise WrongState(
                    f"client instance {self.client_id} cannot start: {self.state.value}; make a new client"
                )
            self.state = ServiceState.START_FAILED
            addresses = self.settings.name_servers() or await discovery.fetch(self.settings)
            self.remoting.set_name_servers(addresses)
            self._start_schedule()
            self.pull_service.start()
            self.rebalance_service.start()
            self.producers[INNER_PRODUCER_GROUP] = self.inner_producer
            self.state = ServiceState.RUNNING

    def _start_schedule(self) -> None:
        settings, timings = self.settings, self.settings.timings
        if not settings.name_servers():
            self._every(timings.discovery_interval_ms, timings.discovery_interval_ms, self._rediscover)
        self._every(10, settings.route_interval_ms, self.refresh_routes)
        self._every(timings.offline_check_ms, settings.heartbeat_interval_ms, self._clean_and_heartbeat)
        self._every(timings.persist_first_ms, settings.persist_interval_ms, self._persist_offsets)
        self._every(0, timings.stats_interval_ms, self._sample_stats)

    def _every(self, first_ms: int, period_ms: int, work: Callable[[], Awaitable[object]]) -> None:
        """At a fixed rate; what goes wrong is logged and tried again at the next turn."""

        async def repeat() -> None:
            due = self.loop.time() + first_ms / 1000
            while True:
                await asyncio.sleep(max(0.0, due - self.loop.time()))
                due += period_ms / 1000
                try:
                    await work()
                except NoNameServer as error:
                    log.warning("%s; trying again in %d ms", error, period_ms)
                except Exception:
                    log.exception(
                        "%s: a scheduled task failed, it runs again in %d ms", self.client_id, period_ms
                    )

        self.spawn(repeat())

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """A task that ends with the instance."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: a background task failed", self.client_id, exc_info=task.exception())

    def register_consumer(self, consumer: Consumer) -> None:
        if consumer.group in self.consumers:
            raise WrongState(
                f"group {consumer.group} has a consumer on client id {self.client_id} already; "
                "give the second one another instance_name"
            )
        self.consumers[consumer.group] = consumer

    def register_producer(self, sender: Sender) -> None:
        if sender.group in self.producers:
            raise WrongState(
                f"group {sender.group} has a producer on client id {self.client_id} already; "
                "give the second one another instance_name or group"
            )
        self.producers[sender.group] = sender

    async def unregister_consumer(self, group: str) -> None:
        self.consumers.pop(group, None)
        await self._unregister(consumer_group=group)

    async def unregister_producer(self, group: str) -> None:
        self.producers.pop(group, None)
        await self._unregister(producer_group=group)

    async def _unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Tells every broker with a connection; one that does not answer finds out by itself."""

        async def tell(address: str) -> None:
            try:
                await self.api.unregister_client(
                    address, self.client_id, producer_group=producer_group, consumer_group=consumer_group
                )
            except PenstockError as error:
                log.info("%s was not told that %s leaves: %s", address, self.client_id, error)

        connected = [address for address in self.routes.all_addresses() if self.remoting.ready(address)]
        await asyncio.gather(*map(tell, connected))

    async def release(self) -> None:
        """Closes if nobody but the inner producer is left."""
        if self.consumers or len(self.producers) > 1 or self.state is ServiceState.SHUTDOWN_ALREADY:
            return
        self.state = ServiceState.SHUTDOWN_ALREADY
        if _instances.get(self.client_id) is self:
            del _instances[self.client_id]
        self.producers.clear()
        self.pull_service.stop()
        await self.rebalance_service.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.remoting.close()

    # ---- routes -------------------------------------------------------------------------------------

    async def refresh_routes(self) -> None:
        topics = {topic for consumer in self.consumers.values() for topic in consumer.topics()}
        topics.update(topic for sender in self.producers.values() for topic in sender.topics())
        for topic in sorted(topics):
            await self.update_route(topic)

    async def update_route(self, topic: str, *, borrow_queues: int = 0) -> bool:
        """Asks the name server; True if something changed. With `borrow_queues` the route of the auto-create
        topic is taken for this one, with at most so many queues on a broker.

        Callers that want the same route at the same time share one question.
        """
        key = (topic, borrow_queues)
        task = self._route_updates.get(key)
        if task is None:
            task = self.loop.create_task(self._update_route(topic, borrow_queues), name=f"route {topic}")
            task.add_done_callback(lambda done: self._route_updated(key, done))
            self._route_updates[key] = task
        return await asyncio.shield(task)

    def _route_updated(self, key: tuple[str, int], task: asyncio.Task[bool]) -> None:
        self._route_updates.pop(key, None)
        if not task.cancelled():
            task.exception()  # read here, because every caller may have been cancelled

    async def _update_route(self, topic: str, borrow_queues: int) -> bool:
        try:
            route = await self.api.topic_route(AUTO_CREATE_TOPIC if borrow_queues else topic)
        except NoNameServer:
            raise
        except PenstockError as error:
            log.warning("route of topic %s not updated, keeping what is known: %s", topic, error)
            return False
        if route is None:
            if not is_retry_topic(topic) and not borrow_queues:
                log.info("topic %s has no route", topic)
            return False
        if borrow_queues:
            for data in route.queue_datas:
                count = min(borrow_queues, data.read_queue_nums)
                data.read_queue_nums = data.write_queue_nums = count
        changed = self.routes.put(topic, route)
        for sender in self.producers.values():
            if changed or sender.needs_route(topic):
                sender.route_changed(topic, route)
        return changed

    def topic_queues(self, topic: str) -> list[MessageQueue] | None:
        """Queues to consume; None if the route is not known."""
        route = self.routes.routes.get(topic)
        return None if route is None else subscribe_queues(topic, route)

    def route(self, topic: str) -> TopicRouteData | None:
        return self.routes.routes.get(topic)

    async def master_address(self, queue: MessageQueue) -> str:
        """The route is asked for once if the broker is not known."""
        address = self.routes.master(queue.broker_name)
        if address is None:
            await self.update_route(queue.topic)
            address = self.routes.master(queue.broker_name)
        if address is None:
            raise BrokerNotFound(f"no master of broker {queue.broker_name} is known")
        return address

    async def any_address(self, queue: MessageQueue) -> str:
        """The master, or any replica while there is no master."""
        try:
            return await self.master_address(queue)
        except BrokerNotFound:
            replica = self.routes.replica(queue.broker_name, 0)
            if replica is None:
                raise
            return replica.address

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        return await self.api.query_offset(await self.any_address(queue), group, queue)

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        await self.api.update_offset(await self.any_address(queue), group, queue, offset)

    async def consumer_ids(self, topic: str, group: str) -> list[str] | None:
        """Ids of the group from a broker of the topic; None if they cannot be had now."""
        address = self.routes.any_of_topic(topic)
        if address is None:
            await self.update_route(topic)
            address = self.routes.any_of_topic(topic)
        if address is None:
            return None
        try:
            return await self.api.consumer_ids(address, group)
        except PenstockError as error:
            log.warning(
                "ids of group %s not known, keeping the queues of topic %s as they are: %s",
                group,
                topic,
                error,
            )
            return None

    # ---- heartbeats ---------------------------------------------------------------------------------

    def _heartbeat_data(self) -> bytes | None:
        if not self.consumers and not self.producers:
            return None
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in self.producers],
            consumer_data_set=[consumer.consumer_data() for consumer in self.consumers.values()],
        ).encode()

    async def heartbeat_all(self) -> None:
        """To every master, and to replicas as well if there are consumers, which may read from them."""
        async with self._heartbeat_lock:
            data = self._heartbeat_data()
            if data is None:
                return
            addresses = dict.fromkeys(self.routes.all_addresses(masters_only=not self.consumers))
            await asyncio.gather(*(self._heartbeat(address, data) for address in addresses))

    async def _heartbeat(self, address: str, data: bytes) -> bool:
        try:
            self.routes.versions[address] = await self.api.heartbeat(address, data)
        except PenstockError as error:
            log.info("no heartbeat to %s, trying again in the next round: %s", address, error)
            return False
        return True

    def _opened(self, address: str) -> None:
        """A broker that came back knows nothing of us: tell it at once, and look whether queues moved."""
        if address in set(self.routes.all_addresses()):
            self.spawn(self._greet(address))

    async def _greet(self, address: str) -> None:
        if self._heartbeat_lock.locked():
            async with self._heartbeat_lock:
                greeted = True  # by the round that was under way
        else:
            data = self._heartbeat_data()
            greeted = data is not None and await self._heartbeat(address, data)
        if greeted:
            self.rebalance_service.wake()
            for consumer in list(self.consumers.values()):
                await consumer.broker_back()

    def _lost(self, address: str) -> None:
        for broker_name, replicas in self.routes.addresses.items():
            if address in replicas.values():
                for consumer in self.consumers.values():
                    consumer.broker_lost(broker_name)

    async def _clean_and_heartbeat(self) -> None:
        for address in self.routes.drop_unrouted():
            log.info("broker address %s is in no route any more", address)
            self.remoting.forget(address)
        await self.heartbeat_all()

    # ---- other scheduled work -----------------------------------------------------------------------

    async def _rediscover(self) -> None:
        self.remoting.set_name_servers(await discovery.fetch(self.settings))

    async def _persist_offsets(self) -> None:
        for consumer in list(self.consumers.values()):
            await consumer.persist_offsets()

    async def _sample_stats(self) -> None:
        for consumer in self.consumers.values():
            consumer.sample_stats()
