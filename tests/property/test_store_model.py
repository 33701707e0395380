"""Any sequence of sends, reads, stops and kills gives what a plain list for each queue gives."""

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.message.batch import encode_batch
from penstock.message.record import RecordView, split_records
from penstock.message.tags import tag_code
from penstock.store.batches import read_batch
from penstock.store.results import GetStatus
from penstock.store.settings import StoreSettings
from penstock.store.store import Store
from penstock.testing.fault_disk import FaultDisk

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
PER_FILE = 7
topics = st.sampled_from(["A", "B", "%RETRY%" + "g" * 140])
queue_ids = st.integers(0, 1)
bodies = st.one_of(st.binary(max_size=40), st.integers(500, 1500).map(bytes))
tags = st.sampled_from(["", "x", "y"])
born_hosts = st.sampled_from([HOST, bytes(20)])


def properties_of(tag: str, key: str) -> bytes:
    return f"UNIQ_KEY\x01{key}\x02".encode() + (f"TAGS\x01{tag}\x02".encode() if tag else b"")


class StoreMachine(RuleBasedStateMachine):
    """Queues in the model hold (body, tag, key, store time) of what is visible, then of what waits."""

    @initialize(flush=st.sampled_from(["sync", "async"]))
    def begin(self, flush: str) -> None:
        self.disk = FaultDisk(0)
        self.settings = StoreSettings(
            commit_log_file_size=4096,
            consume_queue_file_entries=PER_FILE,
            index_slots=11,
            index_entries=40,
            flush=flush,
        )
        self.now_ms = 1_700_000_000_000
        self.visible: dict[tuple[str, int], list[tuple[bytes, str, str, int]]] = {}
        self.waiting: list[tuple[tuple[str, int], tuple[bytes, str, str, int]]] = []
        self.jobs: list[Callable[[], None]] = []
        self.number = 0
        self.open()

    def open(self) -> None:
        self.store = Store.open(self.disk, self.settings, store_host=HOST, now_ms=self.now_ms)
        self.waiting.clear()
        self.jobs.clear()

    def next_key(self) -> str:
        self.number += 1
        return f"key{self.number}"

    def expected_offset(self, queue: tuple[str, int]) -> int:
        return len(self.visible.get(queue, [])) + sum(name == queue for name, _ in self.waiting)

    @rule(topic=topics, queue_id=queue_ids, body=bodies, tag=tags, born_host=born_hosts)
    def send(self, topic: str, queue_id: int, body: bytes, tag: str, born_host: bytes) -> None:
        key = self.next_key()
        _, offset = self.store.append(
            topic,
            queue_id,
            0,
            0,
            self.now_ms,
            born_host,
            0,
            0,
            body,
            properties_of(tag, key),
            tag_code(tag or None),
            (key,),
            self.now_ms,
        )
        assert offset == self.expected_offset((topic, queue_id))
        self.waiting.append(((topic, queue_id), (body, tag, key, self.now_ms)))

    @rule(
        topic=topics,
        queue_id=queue_ids,
        messages=st.lists(st.tuples(st.binary(max_size=300), tags), max_size=4),
    )
    def send_batch(self, topic: str, queue_id: int, messages: list[tuple[bytes, str]]) -> None:
        keyed = [(body, tag, self.next_key()) for body, tag in messages]
        batch = read_batch(encode_batch([(0, body, properties_of(tag, key)) for body, tag, key in keyed]))
        _, first = self.store.append_batch(topic, queue_id, 0, 0, HOST, 0, batch, self.now_ms)
        assert first == self.expected_offset((topic, queue_id))
        self.waiting += [((topic, queue_id), (body, tag, key, self.now_ms)) for body, tag, key in keyed]

    @rule()
    def flush(self) -> None:
        flush = self.store.take_flush()
        if flush is None:
            assert not self.waiting
            return
        flush.run()
        arrivals = self.store.flushed(flush)
        assert [(arrival.topic, arrival.queue_id) for arrival in arrivals for _ in arrival.messages()] == [
            name for name, _ in self.waiting
        ]
        for queue, message in self.waiting:
            self.visible.setdefault(queue, []).append(message)
        self.waiting.clear()

    @rule(later_ms=st.sampled_from([0, 1, 1_200, 61_000]))
    def tick(self, later_ms: int) -> None:
        self.now_ms += later_ms
        self.jobs += self.store.tick(self.now_ms)

    @rule()
    def run_jobs(self) -> None:
        while self.jobs:
            self.jobs.pop()()

    @rule()
    def stop_and_start(self) -> None:
        self.flush()
        self.run_jobs()
        self.store.close(self.now_ms)
        assert not self.disk.exists("abort")
        self.open()

    @rule()
    def kill_and_start(self) -> None:
        """What was written stays written; what was appended only is gone."""
        self.disk.unlock()
        self.open()

    @rule()
    def lose_what_is_derived(self) -> None:
        self.disk.unlock()
        self.disk.remove_tree("consumequeue")
        self.open()

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        self.flush()
        self.store.delete_topic(topic)
        for queue in [queue for queue in self.visible if queue[0] == topic]:
            del self.visible[queue]

    # ---- what must hold -------------------------------------------------------------------------

    @invariant()
    def queues_hold_what_was_flushed(self) -> None:
        shown = {queue: len(messages) for queue, messages in self.visible.items()}
        for queue, count in shown.items():
            assert (self.store.min_offset(*queue), self.store.max_offset(*queue)) == (0, count)
        for topic, ids in self.store.topics_with_queues().items():
            for queue_id in ids:
                assert self.store.max_offset(topic, queue_id) == shown.get((topic, queue_id), 0)

    @rule(topic=topics, queue_id=queue_ids, offset=st.integers(-1, 12), count=st.integers(1, 40), tag=tags)
    def read(self, topic: str, queue_id: int, offset: int, count: int, tag: str) -> None:
        messages = self.visible.get((topic, queue_id), [])
        wanted = tag_code(tag)
        result = self.store.get(
            topic, queue_id, offset, count, (lambda code: code == wanted) if tag else None
        )
        if not 0 <= offset < len(messages):
            assert result.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
            assert result.next_offset == max(0, min(offset, len(messages)))
            return
        file_end = min(len(messages), offset - offset % PER_FILE + PER_FILE)
        expected = [
            (at, messages[at]) for at in range(offset, file_end) if not tag or messages[at][1] == tag
        ][: min(count, 32)]
        records = split_records(b"".join(result.parts))
        assert [(record.queue_offset, bytes(record.body)) for record in records] == [
            (at, message[0]) for at, message in expected
        ]
        assert [(record.find("UNIQ_KEY"), record.store_ms) for record in records] == [
            message[2:] for _, message in expected
        ]
        if not expected:
            assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, file_end)

    @rule(topic=topics, queue_id=queue_ids, back_ms=st.integers(-2, 130_000), upper=st.booleans())
    def search(self, topic: str, queue_id: int, back_ms: int, upper: bool) -> None:
        time_ms = self.now_ms - back_ms
        times = [message[3] for message in self.visible.get((topic, queue_id), [])]
        if upper:
            expected = max(0, sum(stored <= time_ms for stored in times) - 1)
        else:
            expected = sum(stored < time_ms for stored in times)
        assert self.store.offset_by_time(topic, queue_id, time_ms, upper) == expected

    @rule(data=st.data())
    def query(self, data: st.DataObject) -> None:
        everything = [
            (queue, at, message) for queue, all_ in self.visible.items() for at, message in enumerate(all_)
        ]
        if everything:
            (topic, queue_id), at, message = data.draw(st.sampled_from(everything))
            result = self.store.query_keys(topic, message[2], 64, 0, self.now_ms)
            views = [RecordView(record) for record in result.records]
            assert (queue_id, at) in [(view.queue_id, view.queue_offset) for view in views]
            assert {view.find("UNIQ_KEY") for view in views} == {message[2]}


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
