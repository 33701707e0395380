"""A broker on a disk that drops and tears unsynced writes: what it confirmed about offsets, topics and
delayed messages still holds after any crash, whatever the disk was doing at the moment."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.message.ids import pack_host
from penstock.message.record import RecordView
from penstock.store.commit_log import Flush
from penstock.store.store import Store
from penstock.testing.fault_disk import Crash, FaultDisk
from penstock.wire.command import decode_command, encode_command

HOST = pack_host("127.0.0.1", 10911)
SMALL = {
    "mappedFileSizeCommitLog": "16384",
    "mappedFileSizeConsumeQueue": "200",
    "maxHashSlotNum": "17",
    "maxIndexNum": "60",
}


class Peer:
    """Runs what was to happen when a request is confirmed."""

    remote = ("127.0.0.1", 40_000)
    remote_host = pack_host("127.0.0.1", 40_000)
    closed = False

    def __init__(self) -> None:
        self.expected: dict[int, Callable[[], None]] = {}

    def send(self, *parts: bytes | memoryview) -> None:
        answer = decode_command(b"".join(parts)[4:])
        confirmed = self.expected.pop(answer.opaque)
        if answer.code == 0:
            confirmed()

    def close(self) -> None: ...


class Scenario:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = FaultDisk(seed)
        self.now_ms = 1_700_000_000_000
        self.committed: dict[tuple[str, int], int] = {}
        self.topics: set[str] = set()
        self.delayed: set[bytes] = set()
        self.number = 0

    def open(self) -> None:
        self.disk.now_ms = self.now_ms
        settings = BrokerSettings.from_properties(SMALL)
        delays_ms = settings.delay_levels_ms()
        self.store = Store.open(
            self.disk,
            settings.store_settings(),
            store_host=HOST,
            delay_level_ms=lambda level: delays_ms[level - 1],
            now_ms=self.now_ms,
        )
        self.jobs: list[Callable[[], None]] = []
        self.broker = Broker(
            settings, self.store, now_ms=self.now_ms, random=self.rng, run_job=self.jobs.append
        )
        self.broker.groups.find("G", self.now_ms)
        self.peer = Peer()
        self.flush: Flush | None = None

    # ---- work -----------------------------------------------------------------------------------

    def work(self, steps: int) -> None:
        actions = [self.commit] * 4 + [self.send, self.send_delayed, self.create_topic, self.fail_or_heal]
        actions += [self.begin_flush, self.end_flush, self.pass_time, self.run_job] * 2
        for _ in range(steps):
            self.rng.choice(actions)()

    def ask(self, code: int, ext: dict[str, str], body: bytes, confirmed: Callable[[], None]) -> None:
        self.number += 1
        self.peer.expected[self.number] = confirmed
        frame = encode_command(code, self.number, ext=ext, body=body)
        self.broker.handle(self.peer, decode_command(frame[4:]), self.now_ms)

    def commit(self) -> None:
        queue = (self.rng.choice(("SELF_TEST_TOPIC", "TBW102")), self.rng.randint(0, 2))
        offset = self.number

        def confirmed() -> None:
            self.committed[queue] = max(offset, self.committed.get(queue, 0))

        fields = {"consumerGroup": "G", "topic": queue[0], "queueId": str(queue[1])}
        self.ask(15, {**fields, "commitOffset": str(offset)}, b"", confirmed)

    def send_to(self, topic: str, body: bytes, properties: str, confirmed: Callable[[], None]) -> None:
        ext = dict(zip("abcdefghijkm", ("P", topic, "TBW102", "2", "0", "0", "1", "0"), strict=False))
        self.ask(310, {**ext, "i": properties}, body, confirmed)

    def send(self) -> None:
        self.send_to("T", bytes(self.rng.choice((1, 300))), "", lambda: self.topics.add("T"))

    def send_delayed(self) -> None:
        body = b"delayed %d" % self.number
        self.send_to("Later", body, "DELAY\x011\x02", lambda: self.delayed.add(body))

    def create_topic(self) -> None:
        name = f"T{self.number}"
        self.send_to(name, b"x", "", lambda: self.topics.add(name))

    def begin_flush(self) -> None:
        if self.flush is None:
            self.flush = self.store.take_flush()
            self.error: OSError | None = None
            if self.flush is not None:
                try:
                    self.flush.run()
                except OSError as error:
                    self.error = error

    def end_flush(self) -> None:
        if self.flush is not None:
            arrivals = self.store.flushed(self.flush, self.error)
            if self.error is None:
                self.broker.durable(arrivals, self.now_ms)
            else:
                self.broker.flush_failed(self.error, self.now_ms)
            self.flush = None

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice((20, 500, 3_000, 12_000))
        self.disk.now_ms = self.now_ms
        self.broker.tick(self.now_ms)
        self.jobs += self.store.tick(self.now_ms)

    def run_job(self) -> None:
        if self.jobs:
            try:
                self.jobs.pop(0)()
            except OSError:
                pass

    def fail_or_heal(self) -> None:
        self.disk.error = errno.EIO if self.disk.error is None and self.rng.random() < 0.3 else None

    def stop(self) -> None:
        self.disk.error = None
        self.begin_flush()
        self.end_flush()
        while self.jobs:
            self.run_job()
        self.broker.close(self.now_ms)
        self.store.close(self.now_ms)

    # ---- truth ----------------------------------------------------------------------------------

    def check(self) -> None:
        for (topic, queue_id), offset in self.committed.items():
            assert self.broker.offsets.query("G", topic, queue_id) >= offset, (topic, queue_id)
        missing = self.topics - set(self.broker.topics.table)
        assert not missing

    def check_deliveries(self) -> None:
        """With a sound disk and enough time every confirmed message arrives."""
        for _ in range(40):
            self.now_ms += 100
            self.broker.tick(self.now_ms)
            self.begin_flush()
            self.end_flush()
        arrived = set()
        for offset in range(self.store.max_offset("Later", 0)):
            ((position, _, _),) = self.store.entries("Later", 0, offset, 1)
            record = self.store.read_record(position)
            assert record is not None
            arrived.add(bytes(RecordView(record).body))
        assert self.delayed <= arrived


def run(seed: int) -> None:
    scenario = Scenario(seed)
    rng = scenario.rng
    for _ in range(rng.randint(1, 4)):
        scenario.disk.crash_at = scenario.disk.operations + rng.randint(1, 400)
        try:
            scenario.open()
            scenario.check()
            scenario.work(rng.randint(0, 200))
            if rng.random() < 0.3:
                scenario.stop()
        except Crash:
            pass
        scenario.disk.crash()
    scenario.open()
    scenario.check()
    scenario.check_deliveries()


@pytest.mark.crash
def test_what_was_confirmed_about_offsets_topics_and_delays_survives_any_crash(seeds: range) -> None:
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
