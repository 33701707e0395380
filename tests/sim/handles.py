"""Handles as a client makes and sends them."""

from __future__ import annotations

import base64
from typing import Any

from penstock.message.handles import Handle, parse_handle, parse_start_offsets, real_topic
from penstock.message.record import RecordView


def text(record: RecordView) -> str:
    return bytes(record.body).decode()


def key(handle: Handle) -> Handle:
    """What tells handles apart: one of an orderly pop stays good when its time is changed."""
    return handle._replace(start_offset=0, invisible_ms=0) if handle.is_orderly else handle


def handle_of(record: RecordView, ext: dict[str, str]) -> Handle:
    given = record.find("POP_CK")
    if given is not None:
        return parse_handle(given)
    times = int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"])
    start = parse_start_offsets(ext["startOffsetInfo"])[f"0@{record.queue_id}"]
    return Handle(start, *times, "0", "b", record.queue_id, record.queue_offset)


def fields(group: str, handle: Handle) -> dict[str, Any]:
    return {
        "consumerGroup": group,
        "topic": real_topic("T", group, handle.retry_flag),
        "queueId": handle.queue_id,
        "offset": handle.offset,
        "extraInfo": handle,
    }


def entry(group: str, handle: Handle) -> dict[str, Any]:
    start, pop_ms, invisible_ms, revive, flag, _, queue_id, offset = handle
    bits = (1 << offset - start).to_bytes(16, "little").rstrip(b"\0")
    named = {"c": group, "t": "T", "r": flag, "so": start, "q": queue_id, "rq": revive}
    return {**named, "pt": pop_ms, "it": invisible_ms, "b": base64.b64encode(bits).decode()}
