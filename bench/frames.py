"""Prepared requests for the load generator."""

from __future__ import annotations

import time

from penstock.message.batch import encode_batch
from penstock.message.ids import unique_id
from penstock.wire.codes import RequestCode
from penstock.wire.command import encode_command

QUEUES = 4


def _send_ext(topic: str, queue_id: int, properties: str, *, batch: bool) -> dict[str, str]:
    return {
        "a": "BenchProducer",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "true" if batch else "false",
        "n": "broker-a",
    }


def _properties() -> str:
    return f"UNIQ_KEY\x01{unique_id()}\x02WAIT\x01true\x02TAGS\x01TagA\x02"


def sends(topic: str | list[str], count: int, body_bytes: int) -> list[bytes]:
    """To one topic, or to several that take turns; the queues take turns, too."""
    topics = [topic] if isinstance(topic, str) else topic
    body = b"x" * body_bytes
    return [
        encode_command(
            RequestCode.SEND_MESSAGE_V2,
            i,
            ext=_send_ext(topics[i % len(topics)], i // len(topics) % QUEUES, _properties(), batch=False),
            body=body,
        )
        for i in range(count)
    ]


def batches(topic: str, count: int, size: int, body_bytes: int) -> list[bytes]:
    body = b"x" * body_bytes

    def one(i: int) -> bytes:
        items = [(0, body, _properties().encode()) for _ in range(size)]
        ext = _send_ext(topic, i % QUEUES, _properties(), batch=True)
        return encode_command(RequestCode.SEND_BATCH_MESSAGE, i, ext=ext, body=encode_batch(items))

    return [one(i) for i in range(count)]


def pulls(topic: str | list[str], messages_per_queue: int, size: int) -> list[bytes]:
    """Read every queue from its beginning; the queues take turns."""
    topics = [topic] if isinstance(topic, str) else topic

    def one(topic: str, queue: int, offset: int) -> bytes:
        ext = {
            "consumerGroup": "BenchConsumer",
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": str(size),
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        return encode_command(RequestCode.PULL_MESSAGE, offset, ext=ext)

    return [
        one(topic, queue, offset)
        for offset in range(0, messages_per_queue, size)
        for queue in range(QUEUES)
        for topic in topics
    ]
