"""What a group's consumer tells brokers about the messages it has under lease: ack, extend, give back.

Acks of a push consumer go out at once, and those that come up while a broker has not answered yet go out
together afterwards: the busier, the larger the batches, and never a wait for a batch to fill.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.client.pop_api import PopApi
from penstock.client.popped import PoppedMessage
from penstock.errors import LeaseLost, PenstockError, ServerError
from penstock.wire.codes import ResponseCode

if TYPE_CHECKING:
    from penstock.client.instance import ClientInstance

log = logging.getLogger("penstock.client")

ACKS_AT_ONCE: Final = 1_024
"""Messages of one ack request."""
FIRST_RETRY_MS: Final = 100
LONGEST_RETRY_MS: Final = 2_000


class Leases:
    """Of one consumer. `settled` is told of messages whose ack needs no more care."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        settled: Callable[[Sequence[PoppedMessage]], None] | None = None,
    ) -> None:
        self._instance = instance
        self._group = group
        self._settled = settled
        self._api = PopApi(instance.remoting)
        self._waiting: dict[str, list[PoppedMessage]] = {}
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._one_by_one: set[str] = set()
        """Brokers that do not know batch acks."""

    # ---- acks that nobody waits for ----------------------------------------------------------------

    def ack_soon(self, messages: Iterable[PoppedMessage]) -> None:
        """A broker that cannot be reached is tried again as long as the leases last."""
        for message in messages:
            if message.changing is not None:
                message.changing.add_done_callback(partial(self._ack_changed, message))
                continue
            broker_name = message.handle.broker_name
            self._waiting.setdefault(broker_name, []).append(message)
            if broker_name not in self._senders:
                self._senders[broker_name] = self._instance.spawn(self._send_acks(broker_name))

    def _ack_changed(self, message: PoppedMessage, change: asyncio.Task[None]) -> None:
        self.ack_soon([message])

    async def _send_acks(self, broker_name: str) -> None:
        retry_ms = FIRST_RETRY_MS
        try:
            while waiting := self._waiting.pop(broker_name, None):
                batch, later = waiting[:ACKS_AT_ONCE], waiting[ACKS_AT_ONCE:]
                failed = await self._try_acks(broker_name, batch)
                if failed or later:
                    self._waiting[broker_name] = failed + later + self._waiting.get(broker_name, [])
                if failed:
                    await asyncio.sleep(retry_ms / 1000)
                    retry_ms = min(2 * retry_ms, LONGEST_RETRY_MS)
                else:
                    retry_ms = FIRST_RETRY_MS
        finally:
            del self._senders[broker_name]

    async def _try_acks(self, broker_name: str, messages: Sequence[PoppedMessage]) -> list[PoppedMessage]:
        """Those that should be tried again."""
        now = self._instance.loop.time()
        live = [message for message in messages if not message.lost and now < message.deadline]
        if len(live) < len(messages):
            self._done([message for message in messages if message.lost or now >= message.deadline])
        if not live:
            return []
        try:
            await self._ack_on(broker_name, live)
        except PenstockError as error:
            level = logging.INFO if error.retriable else logging.WARNING
            log.log(level, "ack of %d message(s) failed at %s: %s", len(live), broker_name, error)
            if error.retriable:
                return live
        self._done(live)
        return []

    def _done(self, messages: Sequence[PoppedMessage]) -> None:
        if self._settled is not None:
            self._settled(messages)

    async def flush(self, timeout_ms: float) -> None:
        """Waits for the acks under way, for so long."""
        if self._senders:
            await asyncio.wait(list(self._senders.values()), timeout=max(0.0, timeout_ms / 1000))

    # ---- requests that somebody waits for ----------------------------------------------------------

    async def ack(self, messages: Sequence[PoppedMessage]) -> None:
        """Raises what went wrong with any of them, after all were tried."""
        by_broker: dict[str, list[PoppedMessage]] = {}
        for message in messages:
            by_broker.setdefault(message.handle.broker_name, []).append(message)
        outcomes = await asyncio.gather(
            *(
                self._ack_on(broker_name, part[start : start + ACKS_AT_ONCE])
                for broker_name, part in by_broker.items()
                for start in range(0, len(part), ACKS_AT_ONCE)
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _ack_on(self, broker_name: str, messages: Sequence[PoppedMessage]) -> None:
        address = await self._instance.master_address(messages[0].queue)
        acks = [(message.topic, message.handle) for message in messages]
        if len(acks) > 1 and broker_name not in self._one_by_one:
            try:
                await self._api.batch_ack(address, self._group, acks)
                return
            except ServerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                self._one_by_one.add(broker_name)
        await asyncio.gather(*(self._api.ack(address, self._group, *ack) for ack in acks))

    async def change(self, message: PoppedMessage, invisible_ms: int, *, suspend: bool = False) -> None:
        """The message is this consumer's for so long from now on, under a new handle.

        `suspend`: if it comes again, that does not count as an attempt. Raises LeaseLost where it is not
        this consumer's any more.
        """
        while message.changing is not None:
            await asyncio.wait([message.changing])
        task = self._instance.loop.create_task(self._change(message, invisible_ms, suspend=suspend))
        message.changing = task
        task.add_done_callback(partial(_changed, message))
        # The caller may give up; the new handle must not be lost with it.
        await asyncio.shield(task)

    async def _change(self, message: PoppedMessage, invisible_ms: int, *, suspend: bool) -> None:
        loop = self._instance.loop
        if loop.time() >= message.deadline:
            message.lost = True
            raise lease_lost(message)
        address = await self._instance.master_address(message.queue)
        began = loop.time()
        try:
            message.handle = await self._api.change_invisible(
                address, self._group, message.topic, message.handle, invisible_ms, suspend=suspend
            )
        except ServerError as error:
            if error.code != ResponseCode.NO_MESSAGE:
                raise
            message.lost = True
            message.deadline = began
            raise lease_lost(message) from error
        message.deadline = began + invisible_ms / 1000


def _changed(message: PoppedMessage, change: asyncio.Task[None]) -> None:
    message.changing = None
    if not change.cancelled():
        change.exception()  # read here, because the caller may have been cancelled


def lease_lost(*messages: PoppedMessage) -> LeaseLost:
    shown = ", ".join(message.message_id for message in messages[:3])
    more = f" and {len(messages) - 3} more" if len(messages) > 3 else ""
    return LeaseLost(
        f"the lease of message {shown}{more} is lost: its invisible time is over, or it was acked or given "
        "back before; the broker gives it to whoever receives next. Receive with a longer invisible_ms, or "
        "extend the lease in time",
        messages,
    )
