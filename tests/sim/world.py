"""A broker core in virtual time on a disk that crashes and fails: everything follows from a seed."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.message.ids import pack_host
from penstock.store.store import Store
from penstock.testing.fault_disk import FaultDisk
from penstock.testing.history import History
from penstock.wire.bodies import SubscriptionGroupConfig, TopicConfig
from penstock.wire.command import Command, decode_command, encode_command

SMALL = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "17",
    "maxIndexNum": "60",
    "brokerName": "b",
}
HOST = pack_host("127.0.0.1", 10911)
QUEUES = 3
TICK_MS = 40
LONGEST_MS = 3_000
"""The longest invisible time that anybody asks for."""
GROUPS = ("G", "O")
"""The second pops in order."""

Told = Callable[[Command], None]


class Asked(NamedTuple):
    """A request without an answer; group, invisible time and queue if it is a pop."""

    told: Told
    group: str = ""
    invisible_ms: int = 0
    queue_id: int = 0


class Consumer:
    """The connection of all clients."""

    remote = ("127.0.0.1", 40_000)
    remote_host = pack_host("127.0.0.1", 40_000)
    closed = False

    def __init__(self) -> None:
        self.asked: dict[int, Asked] = {}

    def send(self, *parts: bytes | memoryview) -> None:
        answer = decode_command(b"".join(parts)[4:])
        self.asked.pop(answer.opaque).told(answer)

    def close(self) -> None: ...


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = FaultDisk(seed)
        self.histories = {group: History() for group in GROUPS}
        self.now_ms = 1_700_000_000_000
        self.number = 0
        self.consumer = Consumer()

    def open(self) -> None:
        self.disk.now_ms = self.now_ms
        settings = BrokerSettings.from_properties(SMALL)
        self.store = Store.open(self.disk, settings.store_settings(), store_host=HOST, now_ms=self.now_ms)
        self.broker = Broker(settings, self.store, now_ms=self.now_ms, random=self.rng)
        self.consumer = Consumer()
        for history in self.histories.values():
            history.started(self.now_ms)
        if self.broker.topics.get("T") is None:
            config = TopicConfig("T", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            self.broker.topics.put(config, self.now_ms)
        for group in GROUPS:
            config_of_group = SubscriptionGroupConfig(group, retry_max_times=1_000)
            if self.broker.groups.get(group) != config_of_group:
                self.broker.groups.put(config_of_group, self.now_ms)
        self.flush()

    def ask(self, code: int, ext: dict[str, Any], body: bytes, asked: Asked) -> None:
        self.number += 1
        self.consumer.asked[self.number] = asked
        frame = encode_command(code, self.number, ext={key: str(v) for key, v in ext.items()}, body=body)
        self.broker.handle(self.consumer, decode_command(frame[4:]), self.now_ms)

    # ---- disk and time --------------------------------------------------------------------------

    def flush(self) -> None:
        """One group goes to the disk, if there is one and the disk is well."""
        flush = self.store.take_flush()
        if flush is None:
            return
        try:
            flush.run()
        except OSError as error:
            self.store.flushed(flush, error)
            self.broker.flush_failed(error, self.now_ms)
            return
        self.broker.durable(self.store.flushed(flush), self.now_ms)

    def settle(self) -> None:
        for _ in range(3):  # what one flush wakes is in the next, and what that releases in the third
            self.flush()

    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + TICK_MS)
            self.disk.now_ms = self.now_ms
            self.broker.tick(self.now_ms)
            for job in self.store.tick(self.now_ms):
                job()
            self.settle()
            if any(asked.group == "G" and asked.queue_id < 0 for asked in self.consumer.asked.values()):
                self.histories["G"].emptied(self.now_ms)

    def fail(self) -> None:
        """The disk is full for a while."""
        self.disk.error = errno.ENOSPC
        self.flush()
        self.disk.error = None
        while not self.store.writable:
            for history in self.histories.values():
                history.started(self.now_ms + 2_000)  # nothing can come back meanwhile
            self.pass_time(2_000)

    def crash(self) -> None:
        self.lose_pops()
        for history in self.histories.values():
            history.crashed(self.now_ms)
        self.disk.crash_at = self.disk.error = None
        self.disk.crash()
        self.now_ms += self.rng.choice((0, 100, 5_000))

    def restart(self) -> None:
        """A clean stop answers what was asked first."""
        self.settle()
        self.lose_pops()
        self.broker.close(self.now_ms)
        self.store.close(self.now_ms)
        self.open()

    def lose_pops(self) -> None:
        for asked in self.consumer.asked.values():
            if asked.group:
                self.histories[asked.group].pop_lost(self.now_ms, asked.invisible_ms)
