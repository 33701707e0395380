"""A store on a disk that drops and tears unsynced writes: whatever the moment of the crash, nothing that was
acknowledged is lost or changed, and queues, index and journal agree with the log."""

import errno
import random
from collections.abc import Callable

import pytest

from penstock.message.batch import encode_batch
from penstock.message.record import RecordView
from penstock.store.batches import read_batch
from penstock.store.commit_log import Flush
from penstock.store.dispatch import keys_of, tag_code_of
from penstock.store.log_scan import records
from penstock.store.settings import StoreSettings
from penstock.store.store import Store
from penstock.testing.fault_disk import Crash, FaultDisk

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
SETTINGS = {
    "commit_log_file_size": 6144,
    "consume_queue_file_entries": 10,
    "index_slots": 17,
    "index_entries": 60,
}

Sent = tuple[str, int, int, bytes, bytes]
"""Topic, queue, offset, body, properties."""


class Scenario:
    """Random work on a store, with a note of what it has promised."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = FaultDisk(seed)
        self.sync = self.rng.random() < 0.8
        self.settings = StoreSettings(**SETTINGS, flush="sync" if self.sync else "async")
        self.now_ms = 1_700_000_000_000
        self.promised: dict[int, Sent] = {}
        """By position in the log."""
        self.waiting: dict[int, Sent] = {}
        self.noted: list[bytes] = []
        self.notes_waiting: list[tuple[int, bytes]] = []
        self.deleted: dict[str, int] = {}
        """Topic → position of the log at which it was deleted."""
        self.number = 0
        self.jobs: list[Callable[[], None]] = []

    def open(self) -> None:
        self.disk.now_ms = self.now_ms
        self.store = Store.open(self.disk, self.settings, store_host=HOST, now_ms=self.now_ms)
        self.flush: Flush | None = None
        self.jobs = []

    # ---- work -----------------------------------------------------------------------------------

    def work(self, steps: int) -> None:
        actions = [self.send] * 6 + [self.send_batch, self.note, self.begin_flush, self.begin_flush]
        actions += [self.end_flush, self.end_flush, self.tick, self.run_jobs, self.run_jobs]
        actions += self.rng.choice(([], [self.fail], [self.delete]))
        for _ in range(steps):
            self.now_ms += self.rng.choice((0, 1, 20, 600, 70_000))
            self.disk.now_ms = self.now_ms
            self.rng.choice(actions)()

    def new_message(self) -> tuple[bytes, bytes]:
        self.number += 1
        body = self.rng.randbytes(self.rng.choice((0, 1, 30, 300, 900)))
        key = f"key-{self.number}"
        pieces = [f"UNIQ_KEY\x01U{self.number:08d}\x02"]
        if self.rng.random() < 0.5:
            pieces.append(f"KEYS\x01{key} shared\x02")
        if self.rng.random() < 0.5:
            pieces.append(f"TAGS\x01tag-{self.number % 3}\x02")
        if self.rng.random() < 0.1:
            pieces.append(f"long\x01{'x' * 1200}\x02")
        return body, "".join(pieces).encode()

    def queue(self) -> tuple[str, int]:
        return self.rng.choice(("A", "B", "Topic-C")), self.rng.randint(0, 1)

    def send(self) -> None:
        topic, queue_id = self.queue()
        body, properties = self.new_message()
        position, offset = self.store.append(
            topic,
            queue_id,
            0,
            0,
            self.now_ms,
            HOST,
            0,
            0,
            body,
            properties,
            tag_code_of(properties),
            tuple(keys_of(properties)),
            self.now_ms,
        )
        self.waiting[position] = (topic, queue_id, offset, body, properties)

    def send_batch(self) -> None:
        topic, queue_id = self.queue()
        messages = [self.new_message() for _ in range(self.rng.randint(1, 2))]
        batch = read_batch(encode_batch([(0, body, properties) for body, properties in messages]))
        positions, first = self.store.append_batch(topic, queue_id, 0, 1, HOST, 0, batch, self.now_ms)
        for at, (position, (body, properties)) in enumerate(zip(positions, messages, strict=True)):
            self.waiting[position] = (topic, queue_id, first + at, body, properties)

    def note(self) -> None:
        self.number += 1
        payload = f"note-{self.number}".encode() * self.rng.randint(1, 60)
        self.notes_waiting.append((self.store.journal.append(7, payload), payload))

    def begin_flush(self) -> None:
        if self.flush is None:
            self.flush = self.store.take_flush()
            if self.flush is not None:
                if self.sync:
                    self.flush.run()
                else:
                    self.flush.write()

    def end_flush(self) -> None:
        if self.flush is not None:
            self.store.flushed(self.flush)
            self.flush = None
            end = self.store.max_physical_offset
            self.promised |= {at: sent for at, sent in self.waiting.items() if at < end}
            self.waiting = {at: sent for at, sent in self.waiting.items() if at >= end}
            self.noted += [note for at, note in self.notes_waiting if at <= self.store.durable]
            self.notes_waiting = [(at, note) for at, note in self.notes_waiting if at > self.store.durable]

    def fail(self) -> None:
        """A flush fails for lack of space, and space returns."""
        if self.flush is None:
            flush = self.store.take_flush()
            if flush is not None:
                self.disk.error = errno.ENOSPC
                try:
                    flush.run()
                except OSError as error:
                    self.store.flushed(flush, error)
                self.disk.error = None
                while not self.store.writable:
                    self.now_ms += 2_000
                    self.tick()
                    self.run_jobs()
                # Until here a crash may have left some of the group: it could not be wiped yet.
                self.waiting.clear()
                self.notes_waiting.clear()
                end = self.store.max_physical_offset
                self.deleted = {topic: min(at, end) for topic, at in self.deleted.items()}

    def delete(self) -> None:
        crash_at, self.disk.crash_at = self.disk.crash_at, None
        topic, _ = self.queue()
        if topic in self.store.topics_with_queues():
            self.store.delete_topic(topic)
            self.deleted[topic] = max(
                self.waiting_end(), self.store.max_physical_offset, self.deleted.get(topic, 0)
            )
        self.disk.crash_at = crash_at

    def waiting_end(self) -> int:
        return max(self.waiting, default=-1) + 1

    def tick(self) -> None:
        self.jobs += self.store.tick(self.now_ms)

    def run_jobs(self) -> None:
        while self.jobs:
            self.jobs.pop(self.rng.randrange(len(self.jobs)))()

    # ---- truth ----------------------------------------------------------------------------------

    def check(self) -> None:
        """After a restart: what was promised is there, and everything that is there is whole."""
        store = self.store
        found = {}
        for position, size, *_ in records(store.log, store.min_physical_offset, store.max_physical_offset):
            record = RecordView(store.log.read_raw(position, size))
            record.verify()
            found[record.physical_offset] = (
                record.topic,
                record.queue_id,
                record.queue_offset,
                bytes(record.body),
                record.properties_bytes,
            )
        sent = self.promised | self.waiting
        if self.sync:
            assert self.promised.items() <= found.items()
            notes = [payload for _, payload in store.journal.replayed]
            assert notes[: len(self.noted)] == self.noted
        assert found.items() <= sent.items()
        assert list(found) == sorted(sent)[: len(found)]
        end = store.max_physical_offset
        self.deleted = {topic: min(at, end) for topic, at in self.deleted.items()}
        self.check_queues(found)
        self.check_index(found)
        # What has come back is visible, so from now on it must stay.
        self.promised, self.waiting = found, {}
        self.noted = [payload for _, payload in store.journal.replayed]
        self.notes_waiting = []

    def check_queues(self, found: dict[int, Sent]) -> None:
        expected: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for position, (topic, queue_id, offset, _, properties) in sorted(found.items()):
            if position < self.deleted.get(topic, 0):
                continue
            entries = expected.setdefault((topic, queue_id), [])
            assert offset == len(entries)
            entries.append((position, tag_code_of(properties)))
        assert set(self.store.queues) == set(expected)
        for (topic, queue_id), entries in expected.items():
            assert self.store.min_offset(topic, queue_id) == 0
            assert self.store.max_offset(topic, queue_id) == len(entries)
            stored = self.store.entries(topic, queue_id, 0, len(entries) + 1)
            assert [(position, tag) for position, _, tag in stored] == entries
            offset = 0
            while offset < len(entries):
                result = self.store.get(topic, queue_id, offset, 32)
                body = memoryview(b"".join(result.parts))
                for _ in range(result.count):
                    record = RecordView(body)
                    assert record.physical_offset == entries[offset][0]
                    body = body[record.size :]
                    offset += 1

    def check_index(self, found: dict[int, Sent]) -> None:
        for position, (topic, _, _, _, properties) in found.items():
            if position < self.deleted.get(topic, 0):
                continue
            for key in keys_of(properties):
                if key != "shared":
                    result = self.store.query_keys(topic, key, 64, 0, self.now_ms)
                    assert position in [RecordView(record).physical_offset for record in result.records]


def run(seed: int) -> None:
    scenario = Scenario(seed)
    rng = scenario.rng
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.7:
            scenario.disk.crash_at = scenario.disk.operations + rng.randint(1, 150)
        try:
            scenario.open()
            scenario.check()
            scenario.work(rng.randint(0, 120))
            if rng.random() < 0.3:
                scenario.end_flush()
                scenario.run_jobs()
                scenario.store.close(scenario.now_ms)
                scenario.promised |= scenario.waiting
                scenario.waiting = {}
                scenario.noted += [note for _, note in scenario.notes_waiting]
                scenario.notes_waiting = []
        except Crash:
            pass
        scenario.disk.crash()
    scenario.open()
    scenario.check()


@pytest.mark.crash
def test_whatever_the_moment_of_a_crash_nothing_acknowledged_is_lost_or_changed(seeds: range) -> None:
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
