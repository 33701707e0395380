"""The POP side of a push consumer: which queues it pops, by the broker's word, and their loops.

Whether a group pulls or pops a topic is set at the brokers and may change at any time. The consumer asks
with every rebalance and follows; what it holds under lease when it leaves POP is still consumed and acked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from penstock.client.consume_pop import ConsumePop
from penstock.client.consume_pop_orderly import ConsumePopOrderly
from penstock.client.pop_api import PopApi
from penstock.client.pop_consumption import PopConsumption
from penstock.client.pop_queue import PopQueue
from penstock.client.popping import PopLoop
from penstock.client.rebalance import PULLED, Assignment
from penstock.client.subscriptions import everything_of
from penstock.errors import PenstockError, ServerError
from penstock.message.allocation import Averagely, AveragelyByCircle
from penstock.message.names import is_retry_topic, pop_retry_topic_v1, pop_retry_topic_v2
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import PopProcessQueueInfo
from penstock.wire.codes import ResponseCode

if TYPE_CHECKING:
    from penstock.client.push_consumer import PushConsumer

log = logging.getLogger("penstock.client")

POP: Final = "POP"
BROKER_STRATEGIES: Final = (Averagely.name, AveragelyByCircle.name)
"""Ways of sharing out that brokers know."""
LAST_POPS_MS: Final = 200
"""How long a stop waits for pops under way, so that what they bring goes back at once."""


class PopService:
    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._api = PopApi(consumer.instance.remoting)
        self.queues: dict[MessageQueue, PopQueue] = {}
        self.consumption: PopConsumption = (
            ConsumePopOrderly(consumer) if consumer.settings.orderly else ConsumePop(consumer)
        )
        self._told: set[str] = set()
        """Topics whose brokers know POP: only those can have messages left over from it."""
        self._loops: set[asyncio.Task[None]] = set()
        strategy = consumer.settings.allocation.name
        self._strategy = strategy if strategy in BROKER_STRATEGIES else Averagely.name

    def start(self) -> None:
        self._consumer.spawn(self.consumption.keeper.run())

    # ---- whether to pull or to pop ------------------------------------------------------------------

    async def assigned(self, topic: str) -> Assignment | None:
        """What the broker wants this consumer to do; None where it has no good answer."""
        consumer = self._consumer
        if consumer.settings.client_rebalance or not consumer.clustering or is_retry_topic(topic):
            return PULLED
        address = consumer.instance.routes.any_of_topic(topic)
        if address is None:
            return None
        try:
            answer = await self._api.query_assignment(
                address,
                topic=topic,
                group=consumer.group,
                client_id=consumer.client_id,
                strategy=self._strategy,
                message_model=consumer.settings.message_model.value,
            )
        except ServerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # a broker from before POP
                return PULLED
            log.warning("the mode of topic %s is not known, nothing changes: %s", topic, error)
            return None
        except PenstockError as error:
            log.warning("the mode of topic %s is not known, nothing changes: %s", topic, error)
            return None
        if answer is None:
            return None
        self._told.add(topic)
        popped = frozenset(item.message_queue for item in answer if item.mode == POP)
        # Nothing at all: not to be popped, and by the broker's way of sharing out not to be pulled either.
        nothing = not answer and consumer.settings.allocation.name == self._strategy
        return Assignment(pulled=not popped and not nothing, popped=popped)

    async def follow(self, topic: str, assignment: Assignment) -> bool:
        """Pops exactly the assigned queues of a topic from now on; True if that is a change."""
        if topic in self._told:
            await self._watch_retries(topic, pulled=assignment.pulled)
        # A rebalance may be under way when the consumer stops: nobody looks at what is popped then.
        wanted = frozenset() if self.consumption.stopping else assignment.popped
        gone = [queue for queue in self.queues if queue.topic == topic and queue not in wanted]
        new = [queue for queue in sorted(wanted) if queue not in self.queues]
        for queue in gone:
            log.info("group %s pops %s no more", self._consumer.group, queue)
            self.queues.pop(queue).drop()
        for queue in new:
            self._begin(queue)
        return bool(gone or new)

    def _begin(self, queue: MessageQueue) -> None:
        consumer = self._consumer
        log.info("group %s pops %s", consumer.group, queue)
        pop_queue = PopQueue(queue, consumer.stats.topic(queue.topic), consumer.instance.now_ms())
        self.queues[queue] = pop_queue
        task = consumer.spawn(PopLoop(consumer, self.consumption, pop_queue).run())
        self._loops.add(task)
        task.add_done_callback(self._loops.discard)

    def keep_topics(self, topics: Iterable[str]) -> None:
        """Drops the queues of topics that are subscribed no more."""
        kept = set(topics)
        for queue in [queue for queue in self.queues if queue.topic not in kept]:
            self.queues.pop(queue).drop()

    async def _watch_retries(self, topic: str, *, pulled: bool) -> None:
        """Retries of popped messages are popped with their topic; who pulls it has to pull them as well."""
        consumer = self._consumer
        for name in (pop_retry_topic_v1(consumer.group, topic), pop_retry_topic_v2(consumer.group, topic)):
            known = consumer.subscription(name) is not None
            if not pulled:
                if known:
                    consumer.forget_subscription(name)
            elif not known:
                await consumer.instance.update_route(name)
                if consumer.instance.route(name) is not None:
                    consumer.add_subscription(everything_of(name))

    # ---- for administrators -------------------------------------------------------------------------

    def info(self) -> dict[MessageQueue, PopProcessQueueInfo]:
        return {
            queue: PopProcessQueueInfo(
                wait_ack_count=pop_queue.unacked,
                dropped=pop_queue.dropped,
                last_pop_timestamp=self._consumer.wall_time_of(pop_queue.last_pop_ms),
            )
            for queue, pop_queue in self.queues.items()
        }

    # ---- end ----------------------------------------------------------------------------------------

    def begin_stop(self) -> None:
        """No more pops, and no listener begins any more."""
        self.consumption.stopping = True
        self.keep_topics(())

    async def stop(self, timeout_ms: float) -> None:
        """After the listeners have ended and the group was left: the last answers come in, acks go out, the
        rest goes back. A broker of ours gives nothing to who has left; on others a pop may still wait."""
        if self._loops:
            await asyncio.wait(list(self._loops), timeout=LAST_POPS_MS / 1000)
        await self.consumption.stop(timeout_ms)
