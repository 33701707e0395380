"""What a consumer tells an administrator about itself."""

from __future__ import annotations

import dataclasses
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.client.config import ConsumerSettings
from penstock.client.process_queue import ProcessQueue
from penstock.client.rebalance import wall_ms
from penstock.errors import PenstockError
from penstock.message.queue import MessageQueue
from penstock.wire.bodies import ConsumerRunningInfo, ProcessQueueInfo

if TYPE_CHECKING:
    from penstock.client.consumer_base import ConsumerBase

SECRETS: Final = frozenset({"access_key", "secret_key", "security_token", "tls", "rpc_hooks", "timings"})
CLIENT_VERSION: Final = "V5_5_0"
MIB: Final = 1024 * 1024


def settings_as_text(settings: ConsumerSettings) -> dict[str, str]:
    return {
        item.name: str(getattr(settings, item.name))
        for item in dataclasses.fields(settings)
        if item.name not in SECRETS
    }


async def of_consumer(
    consumer: ConsumerBase,
    queues: Mapping[MessageQueue, ProcessQueue],
    consume_type: str,
    extra: Mapping[str, str],
    *,
    with_stacks: bool,
) -> ConsumerRunningInfo:
    properties = {
        **settings_as_text(consumer.settings),
        **extra,
        "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in consumer.instance.remoting.name_servers),
        "PROP_CONSUME_TYPE": consume_type,
        "PROP_CLIENT_VERSION": CLIENT_VERSION,
    }
    table = {}
    for queue, process_queue in list(queues.items()):
        offset = consumer.offset_store.memory(queue)
        if offset is None:
            try:
                offset = await consumer.offset_store.stored(queue)
            except PenstockError:
                offset = None
        table[queue] = process_queue_info(
            process_queue, -1 if offset is None else offset, consumer.instance.now_ms()
        )
    subscriptions = [
        data for topic in consumer.topics() if (data := consumer.subscription(topic)) is not None
    ]
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=subscriptions,
        mq_table=table,
        status_table={topic: consumer.stats.topic(topic).status() for topic in consumer.topics()},
        jstack=thread_stacks() if with_stacks else None,
    )


def process_queue_info(process_queue: ProcessQueue, commit_offset: int, now_ms: float) -> ProcessQueueInfo:
    def wall(loop_ms: float) -> int:
        return wall_ms() - int(now_ms - loop_ms)

    return ProcessQueueInfo(
        commit_offset=commit_offset,
        cached_msg_min_offset=process_queue.first_offset or 0,
        cached_msg_max_offset=process_queue.last_offset or 0,
        cached_msg_count=len(process_queue.cached),
        cached_msg_size_in_mib=process_queue.cached_bytes // MIB,
        transaction_msg_min_offset=min(process_queue.taken, default=0),
        transaction_msg_max_offset=max(process_queue.taken, default=0),
        transaction_msg_count=len(process_queue.taken),
        locked=process_queue.locked,
        try_unlock_times=process_queue.unlock_tries,
        last_lock_timestamp=wall(process_queue.last_lock_ms),
        dropped=process_queue.dropped,
        last_pull_timestamp=wall(process_queue.last_pull_ms),
        last_consume_timestamp=wall(process_queue.last_consume_ms),
    )


def thread_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"{names.get(ident, 'unknown')} ({ident})\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
