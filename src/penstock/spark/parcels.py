"""Arrow batches cut into sends: which queue each row goes to, and which rows travel together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no type information
import pyarrow.compute as pc  # type: ignore[import-untyped]  # as above

from penstock.errors import InvalidArgument, MessageTooLarge
from penstock.limits import MAX_BODY_BYTES
from penstock.message.hashing import java_hash
from penstock.message.names import dlq_topic
from penstock.message.properties import Key
from penstock.message.queue import MessageQueue
from penstock.spark.arrays import binary_parts
from penstock.spark.outgoing import (
    Columns,
    batch_elements,
    check_bodies,
    is_delayed,
    property_texts,
    too_large,
    unique_keys,
)
from penstock.spark.write_options import WriteOptions

Ints = npt.NDArray[np.int64]
ANY_QUEUE: Final = -1
KEPT_BODY_BYTES: Final = 1 << 20
"""Of a row that is too large: enough to see what it is."""
ORIGIN_BODY_BYTES: Final = "originBodyBytes"
"""Property of a dead letter: how many bytes the row had."""


class Parcel(NamedTuple):
    """One send request."""

    topic: str
    queue: MessageQueue | None
    """None: whichever queue is next, and another one if that fails."""
    batch: bool
    flag: int
    properties: str
    body: bytes | memoryview
    messages: int


class Packer:
    """Makes the parcels of one task. The parcels of a queue are in the order of their rows."""

    def __init__(
        self, options: WriteOptions, key_prefix: str, queues_of: Callable[[str], Sequence[MessageQueue]]
    ) -> None:
        self._options = options
        self._key_prefix = key_prefix
        self._queues_of = queues_of
        self.rows = 0

    def pack(self, batch: pa.RecordBatch) -> list[list[Parcel]]:
        """Parcels by lane: those of a lane go out one after the other, the lanes side by side."""
        names = zip(self._options.columns, batch.columns, strict=True)
        columns = {name: column for name, column in names if name}
        columns["body"] = columns["body"].cast(pa.binary())
        check_bodies(columns["body"], self.rows)
        columns["uniqueKey"] = unique_keys(self._key_prefix, self.rows, batch.num_rows)
        lanes: list[list[Parcel]] = []
        large = too_large(columns["body"])
        if len(large):
            lanes = [[self._dead_letter(columns, row)] for row in large.tolist()]
            rest = pa.array(np.delete(np.arange(batch.num_rows), large))
            columns = {name: column.take(rest) for name, column in columns.items()}
        for topic, rows in self._by_topic(columns, len(columns["body"])):
            queues = self._queues_of(topic)
            part = columns if rows is None else {name: column.take(rows) for name, column in columns.items()}
            choice = self._choose(part, queues)
            for number in np.unique(choice).tolist():
                mine = np.flatnonzero(choice == number)
                same = len(mine) == len(choice)
                lane = part if same else {name: column.take(pa.array(mine)) for name, column in part.items()}
                queue = None if number == ANY_QUEUE else queues[number]
                parcels = list(self._parcels(topic, queue, lane))
                lanes += [[parcel] for parcel in parcels] if queue is None else [parcels]
        self.rows += batch.num_rows
        return lanes

    def _dead_letter(self, columns: Columns, row: int) -> Parcel:
        """What fits of a row that is too large, and what it was; or an error, as the option says."""
        body = columns["body"][row].as_py()
        if self._options.on_oversize == "fail":
            raise MessageTooLarge(
                f"row {self.rows + row} of this partition has a body of {len(body)} bytes: at most "
                f"{MAX_BODY_BYTES} are allowed; set onOversize=dlq to send such rows to the dead letters"
            )
        topic = self._options.topic or columns["topic"][row].as_py()
        key = columns["uniqueKey"][row].as_py().decode()
        properties = {
            Key.UNIQ_KEY: key,
            Key.WAIT: "true",
            Key.DLQ_ORIGIN_TOPIC: topic,
            Key.DLQ_ORIGIN_MESSAGE_ID: key,
            ORIGIN_BODY_BYTES: str(len(body)),
        }
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        # The broker makes the topic when it gets its first message, so it need not be in any route yet.
        queue = MessageQueue(
            dlq_topic(self._options.producer_group), self._queues_of(topic)[0].broker_name, 0
        )
        return Parcel(queue.topic, queue, False, 0, text, body[:KEPT_BODY_BYTES], 1)

    def _by_topic(self, columns: Columns, count: int) -> Iterator[tuple[str, pa.Array | None]]:
        if self._options.topic is not None:
            yield self._options.topic, None
            return
        topics = columns["topic"]
        if topics.null_count:
            row = topics.is_null().index(True).as_py()
            raise InvalidArgument(f"row {self.rows + row} of this partition has no topic")
        codes = topics.dictionary_encode()
        numbers = codes.indices.to_numpy()
        for code, topic in enumerate(codes.dictionary.to_pylist()):
            rows = np.flatnonzero(numbers == code)
            yield topic, None if len(rows) == count else pa.array(rows)

    def _choose(self, columns: Columns, queues: Sequence[MessageQueue]) -> Ints:
        """For each row the number of its queue."""
        selector = self._options.selector
        choice = np.full(len(columns["body"]), ANY_QUEUE, np.int64)
        if selector == "hash":
            codes = columns["shardingKey"].dictionary_encode()
            # As other clients place the same key, so that an order holds across all of them.
            numbers = [abs(java_hash(key)) % len(queues) for key in codes.dictionary.to_pylist()]
            table = np.array([*numbers, ANY_QUEUE], np.int64)
            choice = table[pc.fill_null(codes.indices, len(numbers)).to_numpy()]
        elif selector == "column":
            ids = columns["queueId"].to_pylist()
            brokers = columns["brokerName"].to_pylist() if "brokerName" in columns else [None] * len(ids)
            wanted = {pair: _find_queue(queues, *pair) for pair in set(zip(brokers, ids, strict=True))}
            choice = np.array([wanted[pair] for pair in zip(brokers, ids, strict=True)], np.int64)
        return choice

    def _parcels(self, topic: str, queue: MessageQueue | None, columns: Columns) -> Iterator[Parcel]:
        count = len(columns["body"])
        keys = columns["uniqueKey"]
        flags = np.zeros(count, np.int32)
        if "flag" in columns:
            flags = pc.fill_null(columns["flag"], 0).to_numpy()
        properties = property_texts(columns, keys)
        elements = batch_elements(columns["body"], flags, properties)
        data, bounds = binary_parts(elements)
        alone = is_delayed(columns) | (np.diff(bounds) > self._options.batch_bytes)
        stops = np.append(np.flatnonzero(alone), count)
        row = 0
        while row < count:
            if alone[row]:
                text = properties[row].as_py().decode()
                body = columns["body"][row].as_py()
                yield Parcel(topic, queue, False, int(flags[row]), text, body, 1)
                row += 1
                continue
            full = int(np.searchsorted(bounds, bounds[row] + self._options.batch_bytes, "right")) - 1
            stop = int(stops[np.searchsorted(stops, row)])
            end = min(full, stop, row + self._options.batch_messages)
            # A batch has an id of its own besides those of its messages.
            text = f"{Key.UNIQ_KEY}\x01{keys[row].as_py().decode()}\x02{Key.WAIT}\x01true\x02"
            yield Parcel(topic, queue, True, 0, text, data[bounds[row] : bounds[end]].data, end - row)
            row = end


def _find_queue(queues: Sequence[MessageQueue], broker_name: str | None, queue_id: int | None) -> int:
    if queue_id is None:
        return ANY_QUEUE
    for number, queue in enumerate(queues):
        if queue.queue_id == queue_id and broker_name in (None, queue.broker_name):
            return number
    place = f"queue {queue_id}" + (f" on broker {broker_name}" if broker_name else "")
    raise InvalidArgument(f"column queueId: topic {queues[0].topic} has no writable {place}")
