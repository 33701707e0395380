"""Records that do not fit the columnar path, decoded one by one into the same columns."""

from __future__ import annotations

from typing import Any

from penstock.errors import CorruptRecord
from penstock.message import sysflag
from penstock.message.batch import split_inner_batch
from penstock.message.compression import decompress
from penstock.message.ids import offset_id
from penstock.message.model import host_text
from penstock.message.properties import Key
from penstock.message.record import RECORD_HEAD, RecordView
from penstock.spark.layout import Segment
from penstock.spark.options import PullOptions
from penstock.spark.schema import ERROR_COLUMN

Row = dict[str, Any]


def rows_of_record(data: bytes, start: int, end: int, segment: Segment, options: PullOptions) -> list[Row]:
    """The rows of the record in `data[start:end]`: one, or those of the batch inside it."""
    record = RecordView(data[start:end])
    if record.size != end - start:
        raise CorruptRecord("bytes that belong to no record follow it")
    if options.verify_crc:
        record.verify()
    return [_row(message, segment, options) for message in split_inner_batch(record)]


def _row(record: RecordView, segment: Segment, options: PullOptions) -> Row:
    sys_flag, body = record.sys_flag, record.body
    if sys_flag & sysflag.COMPRESSED and options.decompress:
        body = decompress(body, sys_flag)
        sys_flag &= ~sysflag.COMPRESSED
    properties = record.properties
    return {
        "topic": record.topic,
        "brokerName": segment.queue.broker_name,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "msgId": properties.get(Key.UNIQ_KEY) or offset_id(record.store_host, record.physical_offset),
        "tags": properties.get(Key.TAGS),
        "keys": properties.get(Key.KEYS),
        "body": bytes(body),
        "properties": list(properties.items()) if options.properties == "map" else record.properties_text,
        "flag": record.flag,
        "sysFlag": sys_flag,
        "bornTimestamp": record.born_ms,
        "bornHost": host_text(record.born_host),
        "storeTimestamp": record.store_ms,
        "storeHost": host_text(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "physicalOffset": record.physical_offset,
    }


def damaged_row(data: bytes, start: int, end: int, segment: Segment, error: str) -> Row:
    """What can be said about a record that cannot be decoded."""
    row: Row = {
        "topic": segment.queue.topic,
        "brokerName": segment.queue.broker_name,
        "queueId": segment.queue.queue_id,
        ERROR_COLUMN: error,
    }
    if end - start >= RECORD_HEAD.size:
        fields = RECORD_HEAD.unpack_from(data, start)
        row |= {"queueOffset": fields[5], "physicalOffset": fields[6]}
    return row
