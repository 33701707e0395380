"""`penstock send` and `penstock tail`."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.cli.output import add_json, add_name_server, count, print_json
from penstock.client.producer import Producer
from penstock.client.pull_consumer import PullConsumer
from penstock.errors import InvalidArgument
from penstock.message.model import Message, ReceivedMessage
from penstock.transport.loop import run

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Subparsers = _SubParsersAction[argparse.ArgumentParser]

TOOLS_GROUP = "TOOLS_CONSUMER"
"""Every broker has it from the start: a look at a topic needs no group to be made."""


def register(subparsers: Subparsers) -> None:
    send = subparsers.add_parser("send", help="send a message, or one for each line of the input")
    send.add_argument("topic")
    send.add_argument(
        "body", nargs="?", help="text of the message; '-' or nothing reads lines from the input"
    )
    send.add_argument("-t", "--tag")
    send.add_argument("-k", "--key", action="append", default=[], help="may be given several times")
    send.add_argument("-p", "--property", action="append", default=[], metavar="NAME=VALUE")
    send.add_argument(
        "--delay-level", type=int, default=0, metavar="N", help="1 to 18: one second to two hours"
    )
    send.add_argument("--queue-key", help="messages of one key go to one queue, in order")
    send.add_argument("-g", "--group", default="PENSTOCK_CLI", help="producer group")
    add_name_server(send)
    add_json(send)
    send.set_defaults(run=lambda options: run(_send(options)))

    tail = subparsers.add_parser("tail", help="print messages of a topic as they come, until Ctrl-C")
    tail.add_argument("topic")
    tail.add_argument("-t", "--tags", help="for example 'paid || shipped'")
    tail.add_argument("--sql", help="an SQL92 expression over properties")
    tail.add_argument(
        "--from",
        dest="start",
        choices=("first", "last"),
        default="last",
        help="begin with the first message there is, or with the next one to come (default)",
    )
    tail.add_argument("-c", "--count", type=count, metavar="N", help="end after N messages")
    add_name_server(tail)
    add_json(tail)
    tail.set_defaults(run=lambda options: run(_tail(options)))


# ---- send -------------------------------------------------------------------------------------------


def _message(options: argparse.Namespace, body: bytes) -> Message:
    properties = {}
    for item in options.property:
        name, separator, value = item.partition("=")
        if not separator:
            raise InvalidArgument(f"write a property as NAME=VALUE, not {item!r}")
        properties[name] = value
    return Message(
        options.topic,
        body,
        tag=options.tag,
        keys=options.key,
        properties=properties,
        delay_level=options.delay_level,
    )


async def _send(options: argparse.Namespace) -> int:
    async with Producer(options.name_server, group=options.group) as producer:
        if options.body not in (None, "-"):
            body = os.fsencode(options.body)  # the bytes that were typed, whatever the locale made of them
            results = [await producer.send(_message(options, body), queue_key=options.queue_key)]
        else:
            lines = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
            messages = [_message(options, line) for line in lines if line]
            results = await producer.send_many(messages, queue_key=options.queue_key)
    for result in results:
        if options.json:
            print_json(
                {
                    "messageId": result.message_id,
                    "offsetMessageId": result.offset_message_id,
                    "broker": result.queue.broker_name,
                    "queueId": result.queue.queue_id,
                    "queueOffset": result.queue_offset,
                    "status": result.status.name,
                }
            )
        else:
            queue = result.queue
            print(f"{result.message_id}  {queue.broker_name}/{queue.queue_id} offset {result.queue_offset}")
    return 0


# ---- tail -------------------------------------------------------------------------------------------


async def _tail(options: argparse.Namespace) -> int:
    """Reads every queue by assignment: a look at a topic must not disturb a group, nor leave an offset."""
    consumer = PullConsumer(options.name_server, group=TOOLS_GROUP, auto_commit=False)
    consumer.filter(options.topic, options.tags, sql=options.sql)
    consumer.assign([])
    printed = 0
    async with consumer:
        queues = await consumer.fetch_queues(options.topic)
        if not queues:
            raise InvalidArgument(f"topic {options.topic} does not exist")
        consumer.assign(queues)
        consumer.pause(queues)  # else they begin where the group is, and note that as its progress
        for queue in queues:
            if options.start == "first":
                await consumer.seek_to_begin(queue)
            else:
                await consumer.seek_to_end(queue)
        consumer.resume(queues)
        async for message in consumer:
            _show(message, as_json=options.json)
            printed += 1
            if printed == options.count:
                return 0
    return 0


def _show(message: ReceivedMessage, *, as_json: bool) -> None:
    body = message.body.decode("utf-8", "replace")
    if as_json:
        print_json(
            {
                "topic": message.topic,
                "queueId": message.queue_id,
                "queueOffset": message.queue_offset,
                "messageId": message.message_id,
                "tag": message.tag,
                "keys": message.keys,
                "properties": message.user_properties,
                "storeTimestamp": message.store_ms,
                "body": body,
            }
        )
    else:
        stored = (
            datetime.fromtimestamp(message.store_ms / 1000, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
        )
        tag = f" [{message.tag}]" if message.tag else ""
        text = "".join(character if character.isprintable() else "?" for character in body)
        print(f"{stored}  {message.queue_id}/{message.queue_offset}{tag}  {text}")
    sys.stdout.flush()
