"""Consuming one message on request of an administrator: no queue, no offset, no retry, no hooks."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from penstock.client.listener import (
    ConsumeContext,
    ConsumeStatus,
    Context,
    Listeners,
    OrderlyContext,
    OrderlyStatus,
)
from penstock.client.pulled import PulledMessage
from penstock.client.send_back import restore_topics
from penstock.wire.bodies import ConsumeMessageDirectlyResult

_RESULTS = {
    ConsumeStatus.SUCCESS: "CR_SUCCESS",
    ConsumeStatus.RECONSUME_LATER: "CR_LATER",
    OrderlyStatus.SUCCESS: "CR_SUCCESS",
    OrderlyStatus.SUSPEND: "CR_LATER",
    OrderlyStatus.COMMIT: "CR_COMMIT",
    OrderlyStatus.ROLLBACK: "CR_ROLLBACK",
}


async def consume_directly(
    listeners: Listeners, message: PulledMessage, group: str, *, orderly: bool
) -> ConsumeMessageDirectlyResult:
    restore_topics([message], group)
    context: Context = (OrderlyContext if orderly else ConsumeContext)(message.queue)
    began = time.monotonic()
    remark = None
    try:
        if listeners.is_async(message.topic):
            status = await listeners.call_async([message], context)
        else:
            status = await _on_thread(listeners, message, context)
        result = "CR_RETURN_NULL" if status is None else _RESULTS.get(status, "CR_LATER")
    except Exception as error:
        result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
    return ConsumeMessageDirectlyResult(
        order=orderly,
        auto_commit=context.auto_commit if isinstance(context, OrderlyContext) else True,
        consume_result=result,
        remark=remark,
        spent_time_mills=int((time.monotonic() - began) * 1000),
    )


async def _on_thread(listeners: Listeners, message: PulledMessage, context: Context) -> Any:
    """A daemon thread of its own: the listener may hang, and must not keep the process alive then."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(RuntimeError(repr(error)) if not isinstance(error, Exception) else error)

    def call() -> None:
        result, error = None, None
        try:
            result = listeners.call([message], context)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop is gone, and with it whoever waited
            pass

    threading.Thread(target=call, name="consume-directly", daemon=True).start()
    return await future
