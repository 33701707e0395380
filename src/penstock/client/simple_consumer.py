"""The simple consumer: the application receives messages under a lease, and acks each one when it is done.

There is no rebalance and nothing is fetched ahead: any number of simple consumers shares the queues of all
brokers, and a message that is not acked within its invisible time goes to another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.client import running_info
from penstock.client.config import ConsumeFrom, MessageModel, SimpleSettings
from penstock.client.consumer_base import ConsumerBase
from penstock.client.filtering import by_tag
from penstock.client.instance import ServiceState
from penstock.client.leases import Leases, lease_lost
from penstock.client.pop_api import PopApi
from penstock.client.popped import PoppedMessage, popped_messages
from penstock.client.popping import BROKERS_TIME, INIT_MAX, INIT_MIN
from penstock.client.rebalance import Rebalancer
from penstock.client.subscriptions import subscription_data
from penstock.errors import InvalidArgument, PenstockError, TopicNotFound, WrongState
from penstock.limits import MAX_INVISIBLE_MS, POP_MAX_MESSAGES
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
)
from penstock.wire.headers import NotificationHeader, PopHeader

log = logging.getLogger("penstock.client")

ALL_QUEUES: Final = -1
MOST_MESSAGES: Final = 1_024
AGAIN_MS: Final = 100
"""Pause after a broker that did not wait as it was asked to, or cannot be reached."""


class _Found(NamedTuple):
    messages: list[PoppedMessage]
    errors: list[PenstockError]
    """Of the brokers that could not be asked."""


class SimpleConsumer(ConsumerBase):
    """`receive`, then `ack`, `extend` or `nack` each message. Keywords are those of SimpleSettings."""

    def __init__(
        self,
        name_server: str | None = None,
        *,
        subscribe: Mapping[str, str] | None = None,
        settings: SimpleSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = SimpleSettings.make(name_server, settings, options)
        super().__init__(self._settings)
        self._watches: dict[MessageQueue, asyncio.Task[bool]] = {}
        self._first = 0
        self._subscribe_all(subscribe)

    @property
    def settings(self) -> SimpleSettings:
        return self._settings

    def subscribe(self, topic: str, tags: str | None = None, *, sql: str | None = None) -> None:
        self._put_subscription(subscription_data(topic, tags, sql))

    def unsubscribe(self, topic: str) -> None:
        self._subscriptions.discard(topic)

    # ---- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        if not self.topics():
            raise InvalidArgument(
                "nothing to receive: pass subscribe={topic: tags} or call subscribe() first"
            )
        self._begin()
        self.rebalancer = Rebalancer(self, self.instance.loop, idle_ms=None)
        self._api = PopApi(self.instance.remoting)
        self._leases = Leases(self.instance, self.group)
        await self._join()

    async def stop(self) -> None:
        """What was received and not acked goes to others when its invisible time is over."""
        if not self.running:
            return
        self._check_process()
        self._state = ServiceState.SHUTDOWN_ALREADY
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)
        await self._leave()

    def _check_running(self) -> None:
        self._check_process()
        if not self.running:
            raise WrongState(f"the consumer is not running: its state is {self._state.value}")

    # ---- receiving ----------------------------------------------------------------------------------

    async def receive(
        self, max_messages: int = 32, invisible_ms: int | None = None, *, wait_ms: int | None = None
    ) -> list[PoppedMessage]:
        """Messages from any queue of any broker, each this consumer's for `invisible_ms` (30 s).

        Waits up to `wait_ms` (15 s) for the first; an empty list if none came. Raises if no broker can be
        reached.
        """
        self._check_running()
        invisible_ms = self.settings.invisible_ms if invisible_ms is None else invisible_ms
        _check("max_messages", max_messages, 1, MOST_MESSAGES)
        _check_invisible(invisible_ms, least=1)
        loop = self.instance.loop
        deadline = loop.time() + (self.settings.wait_ms if wait_ms is None else wait_ms) / 1000
        while True:
            targets = await self._targets()
            messages, errors = await self._pop(targets, max_messages, invisible_ms)
            if messages:
                return messages
            if loop.time() >= deadline:
                if errors and len(errors) == len(targets):
                    raise errors[-1]
                return []
            await self._wait(targets, deadline)
            self._check_running()

    async def _targets(self) -> list[MessageQueue]:
        """All queues of each broker, topic by topic; another broker comes first each time."""
        found: set[MessageQueue] = set()
        for topic in self.topics():
            try:
                queues = await self.topic_queues(topic)
            except TopicNotFound:
                queues = None
            found.update(queue._replace(queue_id=ALL_QUEUES) for queue in queues or ())
        targets = sorted(found)
        self._first += 1
        turn = self._first % len(targets) if targets else 0
        return targets[turn:] + targets[:turn]

    async def _pop(self, targets: Sequence[MessageQueue], most: int, invisible_ms: int) -> _Found:
        messages: list[PoppedMessage] = []
        errors: list[PenstockError] = []
        # Where something is known to be comes first.
        for target in sorted(targets, key=lambda target: not self._is_ready(target)):
            self._forget_watch(target)
            while len(messages) < most:
                want = min(POP_MAX_MESSAGES, most - len(messages))
                try:
                    popped = await self._pop_one(target, want, invisible_ms)
                except PenstockError as error:
                    log.warning("nothing received from %s: %s", target, error)
                    errors.append(error)
                    break
                messages += popped
                if len(popped) < want:
                    break
        return _Found(messages, errors)

    async def _pop_one(self, target: MessageQueue, want: int, invisible_ms: int) -> list[PoppedMessage]:
        subscription = self.subscription(target.topic)
        if subscription is None:
            return []
        first = self.settings.consume_from is ConsumeFrom.FIRST_OFFSET
        address = await self.instance.master_address(target)
        began = self.instance.loop.time()
        header = PopHeader(
            consumer_group=self.group,
            topic=target.topic,
            queue_id=ALL_QUEUES,
            max_msg_nums=want,
            invisible_time=invisible_ms,
            poll_time=0,
            born_time=BROKERS_TIME,
            init_mode=INIT_MIN if first else INIT_MAX,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            broker_name=target.broker_name,
        )
        result = await self._api.pop(address, header)
        popped = popped_messages(result, target, self.group, began)
        self.stats.topic(target.topic).pull_messages.add(len(popped))
        wanted = by_tag(popped, subscription)
        if len(wanted) < len(popped):
            kept = {id(message) for message in wanted}
            self._leases.ack_soon(message for message in popped if id(message) not in kept)
        return wanted

    # ---- waiting ------------------------------------------------------------------------------------
    # Brokers are asked to tell when there is something, which takes no lease: whoever stops waiting, or is
    # served by another broker meanwhile, leaves no message behind that nobody looks at.

    async def _wait(self, targets: Sequence[MessageQueue], deadline: float) -> None:
        loop = self.instance.loop
        began = loop.time()
        for target in targets:
            if target not in self._watches:
                self._watches[target] = loop.create_task(self._watch(target))
        watches = [self._watches[target] for target in targets]
        left = deadline - began
        if watches:
            await asyncio.wait(watches, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if any(self._is_ready(target) for target in targets):
            return
        pause = AGAIN_MS / 1000
        if loop.time() - began < pause:
            await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))

    async def _watch(self, target: MessageQueue) -> bool:
        subscription = self.subscription(target.topic)
        header = NotificationHeader(
            consumer_group=self.group,
            topic=target.topic,
            queue_id=ALL_QUEUES,
            poll_time=self.settings.wait_ms,
            born_time=BROKERS_TIME,
            exp_type=subscription.expression_type if subscription is not None else None,
            exp=subscription.sub_string if subscription is not None else None,
            broker_name=target.broker_name,
        )
        try:
            return await self._api.notification(await self.instance.master_address(target), header)
        except PenstockError as error:
            log.info("%s does not say whether it has something: %s", target, error)
            return False

    def _is_ready(self, target: MessageQueue) -> bool:
        watch = self._watches.get(target)
        return watch is not None and watch.done() and not watch.cancelled() and watch.result()

    def _forget_watch(self, target: MessageQueue) -> None:
        watch = self._watches.get(target)
        if watch is not None and watch.done():
            del self._watches[target]

    # ---- what becomes of messages -------------------------------------------------------------------

    async def ack(self, message: PoppedMessage) -> None:
        """The message is done with. Raises LeaseLost where it is not this consumer's any more."""
        await self.ack_many([message])

    async def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """All of them with as few requests as there are brokers. Those whose lease is lost are told, as
        LeaseLost, after the others were acked."""
        self._check_running()
        now = self.instance.loop.time()
        live: list[PoppedMessage] = []
        lost: list[PoppedMessage] = []
        for message in messages:
            _check_message(message)
            (lost if message.lost or now >= message.deadline else live).append(message)
        if live:
            await self._leases.ack(live)
            for message in live:
                message.lost = True
                self.stats.topic(message.topic).consume_ok.add(1)
        if lost:
            raise lease_lost(*lost)

    async def extend(self, message: PoppedMessage, invisible_ms: int) -> None:
        """The message is this consumer's for so long from now on."""
        self._check_held(message)
        _check_invisible(invisible_ms, least=1)
        await self._leases.change(message, invisible_ms)

    async def nack(self, message: PoppedMessage, delay_ms: int = 0) -> None:
        """The message failed: it comes again after the delay, with one more attempt."""
        self._check_held(message)
        _check_invisible(delay_ms, least=0)
        await self._leases.change(message, delay_ms)
        message.lost = True
        self.stats.topic(message.topic).consume_failed.add(1)

    def _check_held(self, message: PoppedMessage) -> None:
        self._check_running()
        _check_message(message)
        if message.lost or self.instance.loop.time() >= message.deadline:
            raise lease_lost(message)

    # ---- what the instance asks ---------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_POP",
            message_model=MessageModel.CLUSTERING.value,
            consume_from_where=self.settings.consume_from.value,
            subscription_data_set=list(self._subscriptions.all()),
            unit_mode=self.settings.unit_mode,
        )

    async def rebalance(self) -> bool:
        return True

    def offsets_in_memory(self, topic: str) -> dict[MessageQueue, int]:
        return {}

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        return  # the broker knows where it goes on

    async def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return await running_info.of_consumer(self, {}, "CONSUME_POP", {}, with_stacks=with_stacks)

    async def consume_directly(self, body: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        raise WrongState("a simple consumer has no listener that could consume a message directly")


def _check(name: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidArgument(f"{name} must be an integer from {least} to {most}, not {value!r}")


def _check_invisible(value: int, *, least: int) -> None:
    _check("the time in milliseconds", value, least, MAX_INVISIBLE_MS)


def _check_message(message: object) -> None:
    if not isinstance(message, PoppedMessage):
        raise InvalidArgument(f"only what receive() gave can be acked, extended or nacked, not {message!r}")
