"""DataFrames and streams into topics, at least once.

A task answers only after every message was acknowledged. A task or batch that runs again sends its rows
again, each under the same unique key as before, so that consumers can tell.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.client.api import BrokerApi, server_error
from penstock.client.routes import MASTER_ID, publish_queues
from penstock.errors import BrokerNotFound, PenstockError, SendError, TopicNotFound
from penstock.message.names import AUTO_CREATE_TOPIC
from penstock.message.queue import MessageQueue
from penstock.spark.brokers import brokers, settle_worker
from penstock.spark.cluster import place
from penstock.spark.write_options import WriteOptions
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.headers import SendHeaderV2

if TYPE_CHECKING:
    from pyarrow import RecordBatch  # type: ignore[import-untyped]  # pyarrow ships no type information

    from penstock.spark.parcels import Parcel

log = logging.getLogger("penstock.spark")

LANES_AT_ONCE: Final = 16
FIRST_PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 2_000
_STORED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
"""Answers that mean the message is in the broker's log."""


@dataclass
class Written(WriterCommitMessage):
    messages: int


class TopicWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._job = options.sink_id or uuid.uuid4().hex  # made once: every attempt of a task has the same

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return _write(iterator, self._options, f"{self._job}/{_task().partitionId()}")


class TopicStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        task = _task()
        sink = self._options.sink_id or task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        return _write(iterator, self._options, f"{sink}/{batch}/{task.partitionId()}")


def check_topic_exists(options: WriteOptions) -> None:
    """On the driver, before any task: a topic that is in no route would fail in every one of them."""
    if options.topic is not None:
        Sender(options).queues(options.topic, wait_for_topic=False)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "only Spark calls this, inside a task"
    return task


def _write(iterator: Iterator[RecordBatch], options: WriteOptions, identity: str) -> Written:
    from penstock.spark.parcels import Packer  # here, because the driver loads this module, too

    settle_worker()
    sender = Sender(options)
    prefix = hashlib.sha256(identity.encode()).hexdigest()[:20].upper()
    packer = Packer(options, prefix, sender.queues)
    on_the_way: Future[None] | None = None
    for batch in iterator:
        lanes = packer.pack(batch)
        if on_the_way is not None:
            on_the_way.result()  # the next batch of a queue must not overtake this one
        on_the_way = sender.start(lanes)
    if on_the_way is not None:
        on_the_way.result()
    return Written(packer.rows)


class Sender:
    """Sends parcels until they are stored or the retries are used up."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._brokers = brokers(options.name_server)
        self._queues: dict[str, list[MessageQueue]] = {}
        self._addresses: dict[str, str] = {}
        self._turn = 0

    @property
    def _api(self) -> BrokerApi:
        return self._brokers.api

    def queues(self, topic: str, *, wait_for_topic: bool = True) -> Sequence[MessageQueue]:
        """The writable queues, in the order that all producers share."""
        if topic not in self._queues:
            self._brokers.run(self._find_first_route(topic, wait_for_topic))
        return self._queues[topic]

    async def _find_first_route(self, topic: str, wait_for_topic: bool) -> None:
        """With the patience of a send: a name server that comes back knows no topic for a moment."""
        pause_ms = FIRST_PAUSE_MS
        for left in range(self._options.retries, -1, -1):
            try:
                await self._find_route(topic)
                return
            except PenstockError as error:
                if not left or not (error.retriable or (wait_for_topic and isinstance(error, TopicNotFound))):
                    raise
                log.warning("%s; %d more attempts", error, left)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)

    async def _find_route(self, topic: str) -> None:
        route = await self._api.topic_route(topic)
        queues = publish_queues(topic, route) if route is not None else []
        if route is None or not queues:
            where = f"name server {self._options.name_server}"
            raise TopicNotFound(f"topic {topic} does not exist, or cannot be written, on {where}")
        self._queues[topic] = queues
        for broker in route.broker_datas:
            if broker.broker_name is not None and MASTER_ID in broker.broker_addrs:
                self._addresses[broker.broker_name] = broker.broker_addrs[MASTER_ID]

    def start(self, lanes: list[list[Parcel]]) -> Future[None]:
        return self._brokers.start(self._send_lanes(lanes))

    async def _send_lanes(self, lanes: list[list[Parcel]]) -> None:
        places = asyncio.Semaphore(LANES_AT_ONCE)

        async def send_lane(lane: list[Parcel]) -> None:
            async with places:
                for parcel in lane:
                    await self._send(parcel)

        tasks = [asyncio.create_task(send_lane(lane)) for lane in lanes]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _send(self, parcel: Parcel) -> None:
        pause_ms = FIRST_PAUSE_MS
        problem: PenstockError | None = None
        for _ in range(self._options.retries + 1):
            if problem is not None:
                log.warning("%d messages for %s are sent again: %s", parcel.messages, parcel.topic, problem)
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)
            queue = parcel.queue or self._next_queue(parcel.topic)
            try:
                await self._attempt(parcel, queue)
                return
            except PenstockError as error:
                if not error.retriable:
                    raise SendError(f"{parcel.messages} messages for {place(queue)}: {error}") from error
                problem = error
            try:
                await self._find_route(parcel.topic)
            except PenstockError as error:
                problem = error
        raise SendError(
            f"{parcel.messages} messages for topic {parcel.topic} were not stored after "
            f"{self._options.retries} retries (option retries): {problem}"
        )

    def _next_queue(self, topic: str) -> MessageQueue:
        self._turn += 1
        queues = self._queues[topic]
        return queues[self._turn % len(queues)]

    async def _attempt(self, parcel: Parcel, queue: MessageQueue) -> None:
        address = self._addresses.get(queue.broker_name)
        if address is None:
            raise BrokerNotFound(f"broker {queue.broker_name} has no master")
        header = SendHeaderV2(
            producer_group=self._options.producer_group,
            topic=parcel.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=parcel.flag,
            properties=parcel.properties,
            batch=parcel.batch,
            broker_name=queue.broker_name,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if parcel.batch else RequestCode.SEND_MESSAGE_V2
        response = await self._api.send(address, code, header, parcel.body, self._options.send_timeout_ms)
        if response.code not in _STORED:
            raise server_error(response, address)
