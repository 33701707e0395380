"""Storing a message once more under another topic: sent back by a consumer, or due after its delay."""

from __future__ import annotations

from penstock.message.ids import offset_id
from penstock.message.properties import Key, add_property, find_property
from penstock.message.record import RecordView
from penstock.message.tags import tag_code
from penstock.store.store import Store


def index_keys(properties: str) -> tuple[str, ...]:
    """What a message can be found by: its unique key and each of its business keys."""
    unique_key = find_property(properties, Key.UNIQ_KEY)
    keys = find_property(properties, Key.KEYS)
    found = [] if unique_key is None else [unique_key]
    if keys is not None:
        found += filter(None, keys.split(" "))
    return tuple(found)


def add_origin(properties: str, record: RecordView, topic: str) -> str:
    """Where a message was first consumed from, unless an earlier copy says so already."""
    if find_property(properties, Key.RETRY_TOPIC) is None:
        properties = add_property(properties, Key.RETRY_TOPIC, topic)
    if find_property(properties, Key.ORIGIN_MESSAGE_ID) is None:
        message_id = offset_id(record.store_host, record.physical_offset)
        properties = add_property(properties, Key.ORIGIN_MESSAGE_ID, message_id)
    return properties


def append_copy(
    store: Store,
    record: RecordView,
    topic: str,
    queue_id: int,
    properties: str,
    reconsume_times: int,
    now_ms: int,
    *,
    deliver_ms: int = 0,
) -> tuple[int, int]:
    """(physical offset, queue offset). Body, flags and birth stay those of the record."""
    return store.append(
        topic,
        queue_id,
        record.flag,
        record.sys_flag,
        record.born_ms,
        record.born_host,
        reconsume_times,
        record.prepared_offset,
        record.body,
        properties.encode(),
        deliver_ms or tag_code(find_property(properties, Key.TAGS)),
        index_keys(properties),
        now_ms,
    )
