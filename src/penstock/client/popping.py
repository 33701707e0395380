"""The pop loop of one assigned queue: checks, request, answer, and again until the queue is dropped."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Final

from penstock.client.config import ConsumeFrom
from penstock.client.filtering import by_hooks, by_tag
from penstock.client.pop_api import PopApi, PopResult, PopStatus
from penstock.client.pop_queue import PopQueue
from penstock.client.popped import popped_messages
from penstock.errors import PenstockError, ServerError
from penstock.wire.bodies import SubscriptionData
from penstock.wire.codes import ResponseCode
from penstock.wire.headers import PopHeader

if TYPE_CHECKING:
    from penstock.client.pop_consumption import PopConsumption
    from penstock.client.push_consumer import PushConsumer

log = logging.getLogger("penstock.client")

INIT_MIN: Final = 0
INIT_MAX: Final = 1
BROKERS_TIME: Final = 0
"""Born time of a pop whose clock is the broker's: ours may be off, and the broker would answer at once."""
TOO_QUICK: Final = 0.05
"""A long poll that found nothing in less than this much of its time was not held: something is wrong."""


class PopLoop:
    def __init__(self, consumer: PushConsumer, consumption: PopConsumption, pop_queue: PopQueue) -> None:
        self._consumer = consumer
        self._consumption = consumption
        self._settings = consumer.settings
        self._api = PopApi(consumer.instance.remoting)
        self._pop_queue = pop_queue
        self._attempt = _new_attempt()

    async def run(self) -> None:
        timings, pop_queue = self._settings.timings, self._pop_queue
        while not pop_queue.dropped:
            try:
                delay_ms = await self._step()
            except PenstockError as error:
                busy = isinstance(error, ServerError) and error.code == ResponseCode.FLOW_CONTROL
                delay_ms = timings.broker_busy_ms if busy else timings.pull_error_ms
                if not pop_queue.dropped:
                    log.warning("pop of %s failed, again in %d ms: %s", pop_queue.queue, delay_ms, error)
            except Exception:
                delay_ms = timings.pull_error_ms
                log.exception("pop of %s failed, again in %d ms", pop_queue.queue, delay_ms)
            if delay_ms:
                await pop_queue.sleep(delay_ms)

    async def _step(self) -> int:
        """One request; how long to wait before the next."""
        timings, pop_queue = self._settings.timings, self._pop_queue
        pop_queue.last_pop_ms = self._consumer.instance.now_ms()
        if self._consumer.paused:
            return timings.pull_paused_ms
        if pop_queue.unacked > self._settings.pop_threshold:
            await pop_queue.changed()
            return 0
        subscription = self._consumer.subscription(pop_queue.queue.topic)
        if subscription is None:
            log.warning("no subscription for topic %s, looking again later", pop_queue.queue.topic)
            return timings.pull_error_ms
        return await self._pop(subscription)

    async def _pop(self, subscription: SubscriptionData) -> int:
        instance, pop_queue = self._consumer.instance, self._pop_queue
        began = instance.loop.time()
        address = await instance.master_address(pop_queue.queue)
        if pop_queue.dropped:  # meanwhile: nobody would look at what came now
            return 0
        try:
            result = await self._api.pop(address, self._header(subscription))
        except PenstockError as error:
            if not error.outcome_unknown:
                self._attempt = _new_attempt()
            raise
        self._attempt = _new_attempt()
        now = instance.loop.time()
        if result.status is PopStatus.FOUND:
            pop_queue.stats.pull_rt.add((now - began) * 1000)
            self._found(result, subscription, now)
            return self._settings.pull_interval_ms
        if result.status is PopStatus.POLLING_FULL:
            log.warning("%s has too many consumers waiting, popping again later", address)
            return self._settings.timings.pull_error_ms
        quick = (now - began) * 1000 < TOO_QUICK * self._settings.pop_poll_ms
        return self._settings.timings.flow_control_ms if quick else 0

    def _header(self, subscription: SubscriptionData) -> PopHeader:
        settings, queue = self._settings, self._pop_queue.queue
        first = settings.consume_from is ConsumeFrom.FIRST_OFFSET
        return PopHeader(
            consumer_group=settings.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=settings.pop_batch,
            invisible_time=settings.pop_invisible_ms,
            poll_time=settings.pop_poll_ms,
            born_time=BROKERS_TIME,
            init_mode=INIT_MIN if first else INIT_MAX,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=settings.orderly,
            # The same again after a lost answer: an orderly queue would else be blocked by that answer.
            attempt_id=self._attempt if settings.orderly else None,
            broker_name=queue.broker_name,
        )

    def _found(self, result: PopResult, subscription: SubscriptionData, now: float) -> None:
        pop_queue = self._pop_queue
        popped = popped_messages(result, pop_queue.queue, self._settings.group, now)
        pop_queue.stats.pull_messages.add(len(popped))
        wanted = by_tag(popped, subscription)
        by_hooks(wanted, self._consumer.filter_hooks, self._settings.group, pop_queue.queue)
        if len(wanted) < len(popped):
            kept = {id(message) for message in wanted}
            self._consumption.leases.ack_soon([message for message in popped if id(message) not in kept])
        self._consumption.submit(pop_queue, wanted)


def _new_attempt() -> str:
    return secrets.token_hex(8)
