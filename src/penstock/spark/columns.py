"""Bodies of pull answers to Arrow columns: whole answers at a time, no Python object a message.

Records that are out of the ordinary (IPv6 hosts, long topics, compressed, batches inside, odd properties,
damaged) are decoded one by one by `odd_records` and put back in their place.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no type information
import pyarrow.compute as pc  # type: ignore[import-untyped]  # as above

from penstock.errors import CorruptRecord
from penstock.message import sysflag
from penstock.message.ids import offset_id
from penstock.message.model import host_text
from penstock.message.properties import Key, properties_damaged
from penstock.spark.arrays import Bools, Ints, Repeats, all_same, is_utf8, not_utf8, numbers, slices
from penstock.spark.even_tails import EvenTails, even_tails
from penstock.spark.layout import HEAD, Layout, Segment, find_records
from penstock.spark.odd_records import Row, damaged_row, rows_of_record
from penstock.spark.options import PullOptions
from penstock.spark.property_columns import PropertyColumns
from penstock.spark.schema import arrow_schema

log = logging.getLogger("penstock.spark")

_FROM_PROPERTIES: Final = {"tags": Key.TAGS, "keys": Key.KEYS, "msgId": Key.UNIQ_KEY}
_NUMBERS: Final = {
    "queueId": ("queue_id", np.int32),
    "queueOffset": ("queue_offset", np.int64),
    "flag": ("flag", np.int32),
    "sysFlag": ("sys_flag", np.int32),
    "reconsumeTimes": ("reconsume_times", np.int32),
    "physicalOffset": ("physical_offset", np.int64),
}
_TIMES: Final = {"bornTimestamp": "born_ms", "storeTimestamp": "store_ms"}
_HOSTS: Final = {"bornHost": "born_host", "storeHost": "store_host"}
_CRC_MASK: Final = 0x7FFF_FFFF
_LARGEST_MS: Final = (2**63 - 1) // 1000
"""Spark counts microseconds; a time that would not fit is a sender's nonsense and stays at the edge."""

Columns = dict[str, pa.Array]


class Decoder:
    """Turns answers into record batches of one schema."""

    def __init__(self, options: PullOptions) -> None:
        self.schema = arrow_schema(options.columns, options.properties)
        self.skipped_corrupt = 0
        self._options = options
        # The tags are needed to filter by them, also where the user did not ask for the column.
        wanted = dict.fromkeys(options.columns) | ({"tags": None} if options.tags else {})
        self._kinds = {name: pa.string() for name in wanted} | {f.name: f.type for f in self.schema}
        self._odd_flags = sysflag.HOSTS_V6 | sysflag.INNER_BATCH_MASK
        if options.decompress:
            self._odd_flags |= sysflag.COMPRESSED
        self._as_map = "properties" in wanted and options.properties == "map"
        self._taken_apart = self._as_map or not _FROM_PROPERTIES.keys().isdisjoint(wanted)
        self._with_texts = self._taken_apart or "properties" in wanted
        self._repeats = Repeats()

    def decode(self, segments: Sequence[Segment]) -> pa.RecordBatch:
        """All wanted messages of the answers, in their order."""
        data = segments[0].body if len(segments) == 1 else b"".join([s.body for s in segments])
        layout, segment_of = find_records(data, segments)
        plain = layout.plain & (layout.heads["sys_flag"] & self._odd_flags == 0)
        if self._options.verify_crc:
            plain &= _intact(data, layout)
        offsets = layout.heads["queue_offset"]
        first = np.array([segment.start for segment in segments])[segment_of]
        end = np.array([segment.end for segment in segments])[segment_of]
        rows = np.flatnonzero(plain & (offsets >= first) & (offsets < end))
        columns, properties_odd = self._plain_columns(data, layout, rows, segments, segment_of)
        plain[properties_odd] = False
        odd = np.flatnonzero(~plain)
        if len(odd):
            rows = rows[plain[rows]]
            columns = self._put_back(columns, rows, self._odd_rows(data, layout, odd, segments, segment_of))
        if self._options.tags:
            keep = pc.is_in(columns["tags"], pa.array(sorted(self._options.tags)))
            if not pc.all(keep).as_py():
                columns = {name: column.filter(keep) for name, column in columns.items()}
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    # ---- the columnar path --------------------------------------------------------------------------

    def _plain_columns(
        self, data: bytes, layout: Layout, rows: Ints, segments: Sequence[Segment], segment_of: Ints
    ) -> tuple[Columns, Ints]:
        """Columns of those rows whose texts are not odd, and the rows where they are."""
        part = layout.pick(rows)
        buffer = pa.py_buffer(data)
        odd = np.zeros(len(rows), np.bool_)
        properties: PropertyColumns | EvenTails | None = None
        texts: Any = None
        topics: Any = None
        tails = even_tails(data, part, self._repeats) if self._with_texts else None
        if tails is not None:
            properties, topics = tails, tails.topics()
        else:
            if self._with_texts:
                texts = slices(buffer, part.properties_starts, part.ends, pa.binary())
                odd |= not_utf8(texts)
            if self._taken_apart and not odd.any():
                properties = PropertyColumns(texts, self._repeats, as_map=self._as_map)
                odd |= properties.odd
            if "topic" in self._kinds:
                topics = self._topics(data, part)
                odd |= not_utf8(topics)
        if odd.any():
            columns, more = self._plain_columns(data, layout, rows[~odd], segments, segment_of)
            return columns, np.concatenate((rows[odd], more))
        columns = {}
        for name, kind in self._kinds.items():
            if name in _NUMBERS:
                field, number = _NUMBERS[name]
                columns[name] = numbers(part.heads[field].astype(number))
            elif name in _TIMES:
                columns[name] = _times(part.heads[_TIMES[name]].astype(np.int64), kind)
            elif name in _HOSTS:
                columns[name] = self._hosts(part.heads[_HOSTS[name]])
            elif name == "body":
                columns[name] = slices(buffer, part.starts + HEAD.itemsize, part.body_ends, pa.binary())
            elif name == "topic":
                columns[name] = topics.view(kind)
            elif name == "brokerName":
                columns[name] = self._broker_names(segments, segment_of[rows])
            elif properties is not None and name in _FROM_PROPERTIES:
                columns[name] = properties.column(_FROM_PROPERTIES[name])
            elif properties is not None and name == "properties" and self._as_map:
                columns[name] = properties.map_column()
            elif name == "properties":
                columns[name] = texts.view(kind) if tails is None else tails.texts()
            else:
                columns[name] = pa.nulls(len(rows), kind)
        if "msgId" in columns and columns["msgId"].null_count:
            columns["msgId"] = pc.coalesce(columns["msgId"], _offset_ids(part.heads))
        return columns, rows[:0]

    def _topics(self, data: bytes, part: Layout) -> pa.Array:
        """As text or as binary. Nearly always it is the same one everywhere."""
        starts, sizes = part.body_ends + 1, part.properties_starts - part.body_ends - 3
        even = bool(len(starts)) and bool((sizes == sizes[0]).all())
        if even and all_same(np.frombuffer(data, np.uint8), starts, int(sizes[0])):
            topic = data[starts[0] : starts[0] + sizes[0]]
            if is_utf8(topic):
                return self._repeats.of((topic,), len(starts))
        return slices(pa.py_buffer(data), starts, starts + sizes, pa.binary())

    def _broker_names(self, segments: Sequence[Segment], segment_of: Ints) -> pa.Array:
        names = [segment.queue.broker_name for segment in segments]
        if len(set(names)) == 1:
            return self._repeats.of((names[0].encode(),), len(segment_of))
        return pa.array(names).take(numbers(segment_of))

    def _hosts(self, packed: npt.NDArray[Any]) -> pa.Array:
        """Few hosts send many messages, so each is put into words once."""
        words = np.ascontiguousarray(packed).view(np.uint64)
        if len(words) and (words == words[0]).all():
            return self._repeats.of((host_text(packed[0].tobytes()).encode(),), len(words))
        codes = numbers(words).dictionary_encode()
        texts = [host_text(word.to_bytes(8, sys.byteorder)) for word in codes.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(codes.indices)

    # ---- one by one ---------------------------------------------------------------------------------

    def _odd_rows(
        self, data: bytes, layout: Layout, odd: Ints, segments: Sequence[Segment], segment_of: Ints
    ) -> list[tuple[int, Row]]:
        """The wanted rows of odd records, each with the number of its record."""
        found: list[tuple[int, Row]] = []
        for number in odd.tolist():
            segment = segments[segment_of[number]]
            start, end = int(layout.starts[number]), int(layout.ends[number])
            try:
                rows = rows_of_record(data, start, end, segment, self._options)
            except CorruptRecord as error:
                if _is_wanted(layout, number, segment, segment_of):
                    found += [(number, row) for row in self._damaged(data, start, end, segment, error)]
                continue
            found += [(number, row) for row in rows if segment.start <= row["queueOffset"] < segment.end]
        return found

    def _damaged(
        self, data: bytes, start: int, end: int, segment: Segment, error: CorruptRecord
    ) -> list[Row]:
        row = damaged_row(data, start, end, segment, str(error))
        queue = segment.queue
        place = f"{queue.topic}/{queue.broker_name}/{queue.queue_id} at offset {row.get('queueOffset', '?')}"
        if self._options.on_corrupt == "fail":
            raise CorruptRecord(
                f"damaged record in {place}: {error}; set onCorrupt to skip or keep to read on"
            ) from error
        if self._options.on_corrupt == "keep":
            return [row]
        self.skipped_corrupt += 1
        log.warning("skipped a damaged record in %s: %s", place, error)
        return []

    def _put_back(self, columns: Columns, rows: Ints, odd: list[tuple[int, Row]]) -> Columns:
        """Plain and odd rows together, in the order of their records."""
        order = np.argsort(np.concatenate((rows, [number for number, _ in odd])), kind="stable")
        merged = {}
        for name, kind in self._kinds.items():
            values = [row.get(name) for _, row in odd]
            if name in _TIMES:
                empty = np.array([value is None for value in values], np.bool_)
                array = _times(np.array([value or 0 for value in values], np.int64), kind)
                array = pc.if_else(pa.array(empty), pa.scalar(None, kind), array)
            else:
                array = pa.array(values, kind)
            merged[name] = pa.concat_arrays([columns[name], array]).take(pa.array(order))
        return merged


def _is_wanted(layout: Layout, number: int, segment: Segment, segment_of: Ints) -> bool:
    """Whether a damaged record, whose own offset means nothing, lies before the end of the range."""
    if number == 0 or segment_of[number - 1] != segment_of[number]:
        return True
    return bool(layout.heads["queue_offset"][number - 1] + 1 < segment.end)


def _intact(data: bytes, layout: Layout) -> Bools:
    """Which sound records also match their checksum."""
    view = memoryview(data)
    intact = layout.plain.copy()
    places = (
        layout.starts,
        layout.body_ends,
        layout.properties_starts,
        layout.ends,
        layout.heads["body_crc"],
    )
    for number in np.flatnonzero(layout.plain).tolist():
        start, body_end, properties_start, end, crc = (int(place[number]) for place in places)
        matches = crc32(view[start + HEAD.itemsize : body_end]) & _CRC_MASK == crc
        intact[number] = matches and not properties_damaged(data, properties_start, end)
    return intact


def _times(milliseconds: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    bounded = np.minimum(np.maximum(milliseconds, -_LARGEST_MS), _LARGEST_MS)
    return numbers(bounded * 1000, kind)


def _offset_ids(heads: npt.NDArray[Any]) -> pa.Array:
    pairs = zip(heads["store_host"].tolist(), heads["physical_offset"].tolist(), strict=True)
    return pa.array([offset_id(host, offset) for host, offset in pairs], pa.string())
