"""Data sources that cost nothing themselves: what is left is the price of Spark and of the decoder."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from penstock.message.ids import unique_id
from penstock.message.queue import MessageQueue
from penstock.message.record import MAGIC_V1, RECORD_HEAD
from penstock.spark.brokers import settle_worker
from penstock.spark.columns import Decoder
from penstock.spark.layout import Segment
from penstock.spark.options import read_options

ROWS = 4_000
PULL = 1_024
COLUMNS = (
    "topic string, brokerName string, queueId int, queueOffset bigint, msgId string, tags string, "
    "keys string, body binary, flag int, bornTimestamp timestamp, storeTimestamp timestamp"
)
MAP = ", properties map<string,string>"


def prebuilt(body_bytes: int, *, with_map: bool) -> pa.RecordBatch:
    """4,000 rows with the columns that a user of the source looks at."""
    now = pa.array(np.full(ROWS, 1_700_000_000_000_000), pa.timestamp("us", tz="UTC"))
    columns: dict[str, pa.Array] = {
        "topic": pa.array(["bench"] * ROWS),
        "brokerName": pa.array(["broker-a"] * ROWS),
        "queueId": pa.array(np.zeros(ROWS, np.int32)),
        "queueOffset": pa.array(np.arange(ROWS)),
        "msgId": pa.array([unique_id() for _ in range(ROWS)]),
        "tags": pa.array(["TagA"] * ROWS),
        "keys": pa.array([str(i) for i in range(ROWS)]),
        "body": pa.array([b"x" * body_bytes] * ROWS, pa.binary()),
        "flag": pa.array(np.zeros(ROWS, np.int32)),
        "bornTimestamp": now,
        "storeTimestamp": now,
    }
    if with_map:
        entries = [("UNIQ_KEY", unique_id()), ("TAGS", "TagA"), ("KEYS", "17"), ("WAIT", "true")]
        columns["properties"] = pa.array([entries] * ROWS, pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_pydict(columns)


def pull_bodies(body_bytes: int, answers: int) -> list[Segment]:
    """Answers of a broker as they come over the wire."""
    host = bytes((127, 0, 0, 1)) + struct.pack(">i", 10911)

    def record(offset: int) -> bytes:
        text = f"UNIQ_KEY\x01{unique_id()}\x02TAGS\x01TagA\x02KEYS\x01{offset}\x02WAIT\x01true\x02".encode()
        rest = b"\x05bench" + struct.pack(">H", len(text)) + text
        size = RECORD_HEAD.size + body_bytes + len(rest)
        times = (1_700_000_000_000, host, 1_700_000_000_001, host)
        head = (size, MAGIC_V1, 0, 0, 0, offset, offset * 500, 0, *times, 0, 0, body_bytes)
        return RECORD_HEAD.pack(*head) + b"x" * body_bytes + rest

    queue = MessageQueue("bench", "broker-a", 0)
    return [
        Segment(queue, start, start + PULL, b"".join(record(start + i) for i in range(PULL)))
        for start in range(0, answers * PULL, PULL)
    ]


def answers_for(body_bytes: int) -> int:
    """About 4 MiB of them."""
    return max(1, (4 << 20) // ((body_bytes + 210) * PULL))


def decoder_options(form: str) -> Any:
    given = {"nameServer": "127.0.0.1:9876", "subscribe": "bench", "includeProperties": form}
    return read_options(given).pull


class Prebuilt(DataSource):
    """Options: bodyBytes, rows, partitions, map; for streams also rowsPerTrigger, triggers, and batchRows for
    triggers with next to nothing. Without settle a worker stays as Spark leaves it."""

    @classmethod
    def name(cls) -> str:
        return "bench_prebuilt"

    def _with_map(self) -> bool:
        return bool(self.options.get("map", "false") == "true")

    def schema(self) -> str:
        return COLUMNS + (MAP if self._with_map() else "")

    def reader(self, schema: Any) -> DataSourceReader:
        return PrebuiltReader(dict(self.options.items()), self._with_map())

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return PrebuiltStream(dict(self.options.items()), self._with_map())

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return Nothing()

    def _settles(self) -> bool:
        return bool(self.options.get("settle", "true") == "true")

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  # Spark's name
        return NothingStream(self._settles())


class Share(InputPartition):
    def __init__(self, batches: int) -> None:
        super().__init__(batches)
        self.batches = batches


def _yield(options: dict[str, str], with_map: bool, batches: int) -> Iterator[pa.RecordBatch]:
    if options.get("settle", "true") == "true":
        settle_worker()
    rows = int(options.get("batchrows", ROWS))
    batch = prebuilt(int(options["bodybytes"]), with_map=with_map).slice(0, rows)
    for _ in range(batches):
        yield batch


class PrebuiltReader(DataSourceReader):
    def __init__(self, options: dict[str, str], with_map: bool) -> None:
        self._options, self._with_map = options, with_map

    def partitions(self) -> Sequence[InputPartition]:
        count = int(self._options.get("partitions", "4"))
        return [Share(int(self._options["rows"]) // ROWS // count) for _ in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return _yield(self._options, self._with_map, partition.batches)


class PrebuiltStream(DataSourceStreamReader):
    def __init__(self, options: dict[str, str], with_map: bool) -> None:
        self._options, self._with_map = options, with_map
        self._trigger = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        return {"trigger": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        self._trigger = min(self._trigger + 1, int(self._options["triggers"]))
        return {"trigger": self._trigger}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        rows = int(self._options["rowspertrigger"]) * (end["trigger"] - start["trigger"])
        count = int(self._options.get("partitions", "4"))
        return [Share(rows // int(self._options.get("batchrows", ROWS)) // count) for _ in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return _yield(self._options, self._with_map, partition.batches)

    def commit(self, end: dict[str, int]) -> None:
        pass


class Decoded(DataSource):
    """Answers from memory through the decoder. Options: bodyBytes, rows, properties; with once one batch is
    decoded and handed on again and again: the columns of our source at no cost."""

    @classmethod
    def name(cls) -> str:
        return "bench_decoded"

    def schema(self) -> str:
        from penstock.spark.schema import spark_ddl

        options = decoder_options(self.options.get("properties", "map"))
        return spark_ddl(options.columns, options.properties)

    def reader(self, schema: Any) -> DataSourceReader:
        return DecodedReader(dict(self.options.items()))


class DecodedReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        rows = answers_for(int(self._options["bodybytes"])) * PULL
        return [Share(int(self._options["rows"]) // rows // 4) for _ in range(4)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        settle_worker()
        size = int(self._options["bodybytes"])
        segments = pull_bodies(size, answers_for(size))
        decoder = Decoder(decoder_options(self._options.get("properties", "map")))
        once = decoder.decode(segments) if "once" in self._options else None
        for _ in range(partition.batches):
            yield decoder.decode(segments) if once is None else once


class Nothing(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        settle_worker()
        for _ in iterator:
            pass
        return WriterCommitMessage()


class NothingStream(DataSourceStreamArrowWriter):
    def __init__(self, settles: bool) -> None:
        self._settles = settles

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._settles:
            settle_worker()
        for _ in iterator:
            pass
        return WriterCommitMessage()
