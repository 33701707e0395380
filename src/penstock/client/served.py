"""Requests that a broker sends to a client: who is there, where are you, start anew, consume this."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock.message.queue import MessageQueue
from penstock.transport.client import Connection
from penstock.wire import headers
from penstock.wire.bodies import GetConsumerStatusBody, ResetOffsetBody, ResetOffsetBodyForC
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.dialect import DialectError

if TYPE_CHECKING:
    from penstock.client.instance import ClientInstance

log = logging.getLogger("penstock.client")

NOT_SUPPORTED = "request type {} not supported"


class ServedRequests:
    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    def handle(self, connection: Connection, request: Command) -> None:
        """Never blocks the connection: what takes time runs as a task that answers when it is done."""
        match request.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._instance.rebalance_service.wake()
                connection.respond(request, ResponseCode.SUCCESS)
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                self._spawn(connection, request, self._reset_offset(connection, request))
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                self._consumer_status(connection, request)
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                self._spawn(connection, request, self._running_info(connection, request))
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                self._spawn(connection, request, self._consume_directly(connection, request))
            case _:
                connection.respond(
                    request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, NOT_SUPPORTED.format(request.code)
                )

    def _spawn(self, connection: Connection, request: Command, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.exception("request %d from %s failed", request.code, connection.address)
                connection.respond(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

        self._instance.spawn(guarded())

    async def _reset_offset(self, connection: Connection, request: Command) -> None:
        header = request.header(headers.ResetConsumerClientOffsetHeader)
        consumer = self._instance.consumers.get(header.group)
        connection.respond(request, ResponseCode.SUCCESS)
        if consumer is None:
            log.info("offsets of group %s are to be reset, but it has no consumer here", header.group)
            return
        await consumer.reset_offsets(header.topic, read_reset_table(request.body))

    def _consumer_status(self, connection: Connection, request: Command) -> None:
        header = request.header(headers.GetConsumerStatusFromClientHeader)
        consumer = self._instance.consumers.get(header.group)
        table = {} if consumer is None else consumer.offsets_in_memory(header.topic)
        body = GetConsumerStatusBody(message_queue_table=table)
        connection.respond(request, ResponseCode.SUCCESS, body=body.encode())

    async def _running_info(self, connection: Connection, request: Command) -> None:
        header = request.header(headers.GetConsumerRunningInfoHeader)
        consumer = self._instance.consumers.get(header.consumer_group)
        if consumer is None:
            remark = f"The Consumer Group <{header.consumer_group}> not exist in this consumer"
            connection.respond(request, ResponseCode.SYSTEM_ERROR, remark)
            return
        info = await consumer.running_info(with_stacks=header.jstack_enable)
        connection.respond(request, ResponseCode.SUCCESS, body=info.encode())

    async def _consume_directly(self, connection: Connection, request: Command) -> None:
        header = request.header(headers.ConsumeMessageDirectlyHeader)
        consumer = self._instance.consumers.get(header.consumer_group)
        if consumer is None or not request.body:
            remark = f"The Consumer Group <{header.consumer_group}> not exist in this consumer"
            connection.respond(request, ResponseCode.SYSTEM_ERROR, remark)
            return
        result = await consumer.consume_directly(
            request.body, header.target_broker or header.broker_name or ""
        )
        connection.respond(request, ResponseCode.SUCCESS, body=result.encode())


def read_reset_table(body: bytes | None) -> dict[MessageQueue, int]:
    """The offsets of a reset come as a map keyed by queue, or as a list for clients in C."""
    try:
        return ResetOffsetBody.decode(body).offset_table
    except DialectError:
        items = ResetOffsetBodyForC.decode(body).offset_table
    return {MessageQueue(item.topic, item.broker_name, item.queue_id): item.offset for item in items}
