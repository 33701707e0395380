"""Many messages at once: batches for each queue, several batches under way at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, repeat
from typing import Any

from penstock.client.config import ProducerSettings
from penstock.client.sender import Outgoing, Sender, SendResult, by_key
from penstock.errors import InvalidArgument, MessageTooLarge, PenstockError, SendManyFailed
from penstock.limits import MAX_PROPERTIES_BYTES
from penstock.message.batch import ELEMENT_BYTES, check_properties_size, encode_columns
from penstock.message.ids import unique_id, unique_ids
from penstock.message.model import Message
from penstock.message.names import is_retry_topic
from penstock.message.properties import NAME_END, VALUE_END, Key, encode_properties
from penstock.message.queue import MessageQueue
from penstock.wire.codes import RequestCode

NOT_IN_BATCHES = frozenset(
    {Key.DELAY, Key.TIMER_DELAY_MS, Key.TIMER_DELAY_SEC, Key.TIMER_DELIVER_MS, Key.TRAN_MSG}
)

QueueKey = str | int | Callable[[Message], str | int] | None


@dataclass(slots=True)
class _Chunk:
    """Messages on their way to one batch, in columns: their places in the result, ids and parts."""

    topic: str
    wait: str
    queue: MessageQueue | None
    places: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    size: int = 0

    def append(self, place: int, flag: int, body: bytes, properties: dict[str, str]) -> None:
        message_id = properties.get(Key.UNIQ_KEY)
        if message_id is None:
            message_id = properties[Key.UNIQ_KEY] = unique_id()
        text = encode_properties(properties).encode()
        if len(text) > MAX_PROPERTIES_BYTES:
            check_properties_size(len(text))  # raises, and nothing is noted
        self.size += ELEMENT_BYTES + len(body) + len(text)
        self.places.append(place)
        self.ids.append(message_id)
        self.flags.append(flag)
        self.bodies.append(body)
        self.properties.append(text)

    def outgoing(self) -> Outgoing:
        properties = encode_properties({Key.UNIQ_KEY: unique_id(), Key.WAIT: self.wait})
        return Outgoing(
            RequestCode.SEND_BATCH_MESSAGE,
            self.topic,
            encode_columns(self.flags, self.bodies, self.properties),
            properties,
            ",".join(self.ids),
            batch=True,
        )

    def spread(self, result: SendResult, results: list[SendResult | Exception | None]) -> None:
        """One result for each message."""
        offset_ids = result.offset_message_id.split(",")
        if len(offset_ids) != len(self.ids):  # stored as one record
            offset_ids = offset_ids[:1] * len(self.ids)
        rows = zip(
            repeat(result.status),
            self.ids,
            repeat(result.queue),
            count(result.queue_offset),
            offset_ids,
            repeat(None),
            repeat(None),
            repeat(result.region),
        )
        # tuple.__new__ is what SendResult's own constructor calls; so the loop over messages is not Python's.
        each = map(tuple.__new__, repeat(SendResult), rows)
        first, last = self.places[0], self.places[-1]
        if last - first + 1 == len(self.places):  # as they mostly are: no other message came between
            results[first : last + 1] = each
            return
        for place, one in zip(self.places, each, strict=True):
            results[place] = one


_OpenChunks = dict[tuple[str, str, MessageQueue | None], _Chunk]


class Batcher:
    def __init__(
        self,
        sender: Sender,
        settings: ProducerSettings,
        check: Callable[[Message], None],
        prepare: Callable[[Message], Outgoing],
    ) -> None:
        self._sender = sender
        self._settings = settings
        self._check = check
        self._prepare = prepare

    def one_batch(self, messages: Sequence[Message]) -> Outgoing:
        """A single batch, or an error that says why these messages cannot be one."""
        if not messages:
            raise InvalidArgument("a batch needs at least one message")
        first = messages[0]
        chunk = _Chunk(first.topic, first.properties.get(Key.WAIT, "true"), None)
        for place, message in enumerate(messages):
            if message.topic != chunk.topic:
                raise InvalidArgument(f"a batch has one topic, not {chunk.topic} and {message.topic}")
            if message.properties.get(Key.WAIT, "true") != chunk.wait:
                raise InvalidArgument("the messages of a batch must agree in wait_stored")
            if not _batchable(message.topic, message.properties):
                raise InvalidArgument("delayed and retried messages cannot be part of a batch")
            self._check(message)
            chunk.append(place, message.flag, message.body, message.properties)
        if chunk.size > self._settings.max_message_bytes:
            raise MessageTooLarge(
                f"a batch of {chunk.size} bytes is over the limit of {self._settings.max_message_bytes}"
            )
        return chunk.outgoing()

    async def send_many(
        self, messages: Iterable[Message], queue_key: QueueKey, timeout_ms: int
    ) -> list[SendResult]:
        settings = self._settings
        run = _Run(self._sender, settings.batch_requests, timeout_ms)
        open_chunks: _OpenChunks = {}
        rest = iter(messages)
        while block := list(islice(rest, settings.batch_messages)):
            begin = len(run.results)
            run.results += repeat(None, len(block))
            chunks = self._alike(block, begin) if queue_key is None else []
            if chunks:
                await run.send_all(open_chunks)
                for chunk in chunks:
                    await run.send_chunk(chunk)
            else:
                await self._take_each(block, begin, queue_key, open_chunks, run)
        await run.send_all(open_chunks)
        return await run.finish()

    async def _take_each(
        self, block: list[Message], begin: int, queue_key: QueueKey, open_chunks: _OpenChunks, run: _Run
    ) -> None:
        """Puts each message into the batch it belongs to, which leaves when it is full."""
        settings, results, check = self._settings, run.results, self._check
        compress_over_bytes = settings.compress_over_bytes
        batch_messages, batch_bytes = settings.batch_messages, settings.batch_bytes
        most_bytes = settings.max_message_bytes - MAX_PROPERTIES_BYTES - ELEMENT_BYTES
        for place, message in enumerate(block, begin):
            try:
                check(message)
                queue = None if queue_key is None else await self._queue_for(message, queue_key)
            except PenstockError as error:
                results[place] = error
                continue
            topic, body, properties = message.topic, message.body, message.properties
            # Alone, a large message is compressed; with a key it stays in its batch, for the order's sake.
            large = queue is None and len(body) >= compress_over_bytes
            if large or not _batchable(topic, properties):
                await run.send_single(place, self._prepare(message), queue)
                continue
            key = (topic, properties.get(Key.WAIT, "true"), queue)
            chunk = open_chunks.get(key)
            if chunk is not None and chunk.size + len(body) > most_bytes:
                await run.send_chunk(open_chunks.pop(key))
                chunk = None
            if chunk is None:
                chunk = open_chunks[key] = _Chunk(*key)
            try:
                chunk.append(place, message.flag, body, properties)
            except MessageTooLarge as error:
                results[place] = error
            if len(chunk.places) >= batch_messages or chunk.size >= batch_bytes:
                await run.send_chunk(open_chunks.pop(key))

    def _alike(self, block: list[Message], begin: int) -> list[_Chunk]:
        """The block's batches, made by columns, if its messages differ in bodies and flags only. Else none,
        and then each has to be looked at."""
        settings = self._settings
        total = len(block)
        try:
            topic, properties = block[0].topic, block[0].properties
            columns = [message.properties for message in block]
            if (
                Key.UNIQ_KEY in properties
                or columns.count(properties) != total
                or [message.topic for message in block].count(topic) != total
                or not _batchable(topic, properties)
            ):
                return []
            bodies = [message.body for message in block]
            sizes = list(map(len, bodies))
            longest = max(sizes)
            self._check(block[sizes.index(min(sizes))])
            self._check(block[sizes.index(longest)])
        except PenstockError:
            return []
        text = f"{encode_properties(properties)}{Key.UNIQ_KEY}{NAME_END}"
        new_ids = unique_ids(total)
        text_bytes = len(f"{text}{new_ids[0]}{VALUE_END}".encode())
        if longest >= settings.compress_over_bytes or text_bytes > MAX_PROPERTIES_BYTES:
            return []
        # setdefault: a message that is there twice is stored twice under one id
        ids = [own.setdefault(Key.UNIQ_KEY, new) for own, new in zip(columns, new_ids, strict=True)]
        texts = [f"{text}{message_id}{VALUE_END}".encode() for message_id in ids]
        flags = [message.flag for message in block]
        places = list(range(begin, begin + total))
        wait = properties.get(Key.WAIT, "true")
        most_bytes = min(settings.batch_bytes, settings.max_message_bytes)
        most = max(1, most_bytes // (ELEMENT_BYTES + longest + text_bytes))
        share = math.ceil(total / math.ceil(total / most))  # equal shares, none over the bytes of a batch
        return [
            _Chunk(topic, wait, None, places[part], ids[part], flags[part], bodies[part], texts[part])
            for part in (slice(start, start + share) for start in range(0, total, share))
        ]

    async def _queue_for(self, message: Message, queue_key: QueueKey) -> MessageQueue:
        key = queue_key(message) if callable(queue_key) else queue_key
        info = self._sender.known(message.topic) or await self._sender.publish_info(message.topic)
        return by_key(info.queues, key)


class _Run:
    """One `send_many`: requests under way, and what came of each message."""

    def __init__(self, sender: Sender, limit: int, timeout_ms: int) -> None:
        self._sender = sender
        self._timeout_ms = timeout_ms
        self._places = asyncio.Semaphore(limit)
        self._order: dict[MessageQueue, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.results: list[SendResult | Exception | None] = []

    async def send_all(self, chunks: _OpenChunks) -> None:
        for chunk in chunks.values():
            if chunk.places:
                await self.send_chunk(chunk)
        chunks.clear()

    async def send_chunk(self, chunk: _Chunk) -> None:
        await self._start(self._send_chunk(chunk), chunk.queue)

    async def send_single(self, place: int, message: Outgoing, queue: MessageQueue | None) -> None:
        await self._start(self._send_single(place, message, queue), queue)

    async def _start(self, work: Coroutine[Any, Any, None], queue: MessageQueue | None) -> None:
        await self._places.acquire()
        task = asyncio.get_running_loop().create_task(self._guard(work, queue))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.sleep(0)  # lets requests leave while the next batch is made

    async def _guard(self, work: Coroutine[Any, Any, None], queue: MessageQueue | None) -> None:
        try:
            if queue is None:
                await work
            else:
                # Locks are fair: requests for one queue leave in the order they were made, one by one.
                async with self._order.setdefault(queue, asyncio.Lock()):
                    await work
        finally:
            self._places.release()

    async def _send_chunk(self, chunk: _Chunk) -> None:
        try:
            outgoing = chunk.outgoing()
            result = await self._sender.deliver(outgoing, queue=chunk.queue, timeout_ms=self._timeout_ms)
        except PenstockError as error:
            for place in chunk.places:
                self.results[place] = error
            return
        chunk.spread(result, self.results)

    async def _send_single(self, place: int, message: Outgoing, queue: MessageQueue | None) -> None:
        try:
            self.results[place] = await self._sender.deliver(
                message, queue=queue, timeout_ms=self._timeout_ms
            )
        except PenstockError as error:
            self.results[place] = error

    async def finish(self) -> list[SendResult]:
        if self._tasks:
            await asyncio.wait(self._tasks)
        if set(map(type, self.results)) <= {SendResult}:
            return self.results  # type: ignore[return-value]  # every one is a SendResult
        failed = [result for result in self.results if not isinstance(result, SendResult)]
        unknown = any(getattr(error, "outcome_unknown", False) for error in failed)
        raise SendManyFailed(
            f"{len(failed)} of {len(self.results)} messages failed, first: {failed[0]}",
            list(self.results),
            outcome_unknown=unknown,
        )


def _batchable(topic: str, properties: Mapping[str, str]) -> bool:
    return NOT_IN_BATCHES.isdisjoint(properties) and not is_retry_topic(topic)
