"""Directories written by Apache's broker, stopped in four ways, open here with the same content.

The `.json` beside each says what Apache's own client read after a restart. Where ours differs on purpose:
in `torn` the last record lost the end of its properties. Apache keeps such a record, ours drops it. In all of
them Apache went on working after the restart, so its half-message queue may be longer than the packed files.
"""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from penstock.message.ids import unpack_host
from penstock.message.record import RecordView, split_records
from penstock.store.disk import RealDisk
from penstock.store.results import GetStatus
from penstock.store.settings import StoreSettings
from penstock.store.store import Store

GOLDEN = Path(__file__).parents[2] / "golden" / "disk"
HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
NOW_MS = 1_794_800_000_000
DELAYS_MS = {1: 1_000, 18: 7_200_000}


def open_store(root: Path, facts: dict[str, Any]) -> Store:
    sizes = facts["settings"]
    settings = StoreSettings(
        commit_log_file_size=sizes["mappedFileSizeCommitLog"],
        consume_queue_file_entries=sizes["mappedFileSizeConsumeQueue"] // 20,
        index_slots=sizes["maxHashSlotNum"],
        index_entries=sizes["maxIndexNum"],
    )
    return Store.open(
        RealDisk(root), settings, store_host=HOST, delay_level_ms=DELAYS_MS.__getitem__, now_ms=NOW_MS
    )


@pytest.fixture(params=["clean", "killed", "torn", "cut"])
def name(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def facts(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    if name == "torn":
        lost = lost_record(value)
        value["messages"] = [message for message in value["messages"] if message["commitLogOffset"] != lost]
    return value


def lost_record(facts: dict[str, Any]) -> int:
    """Position of the record that was damaged after the stop."""
    damage = facts["damage"]
    return int(damage["file"]) + int(damage["record"])


@pytest.fixture
def root(name: str, tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as archive:
        members = [member for member in archive if not member.name.endswith("timerwheel")]
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 has it
        archive.extractall(tmp_path, members)
    return tmp_path / name


def queue_files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (root / "consumequeue").rglob("0" * 12 + "*")}


def read_queue(store: Store, topic: str, queue_id: int) -> list[RecordView]:
    offset = store.min_offset(topic, queue_id)
    found: list[RecordView] = []
    while (result := store.get(topic, queue_id, offset, 32)).status == GetStatus.FOUND:
        found += split_records(b"".join(result.parts))
        offset = result.next_offset
    return found


def check_content(store: Store, facts: dict[str, Any], name: str) -> None:
    by_position = {message["commitLogOffset"]: message for message in facts["messages"]}
    seen = set()
    for topic, queue_ids in store.topics_with_queues().items():
        for queue_id in queue_ids:
            for at, record in enumerate(read_queue(store, topic, queue_id)):
                record.verify()
                assert (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, at)
                expected = by_position[record.physical_offset]
                check_message(record, expected)
                seen.add(record.physical_offset)
    assert seen == set(by_position)

    for queue, (low, high) in facts["queues"].items():
        topic, _, queue_id = queue.rpartition("@")
        stored = sum(message["topic"] == topic for message in facts["messages"])
        ours = (store.min_offset(topic, int(queue_id)), store.max_offset(topic, int(queue_id)))
        assert ours == ((low, stored) if topic == HALF_TOPIC else (low, high))
        times = [
            message["storeTimestamp"]
            for message in facts["messages"]
            if (message["topic"], message["queueId"]) == (topic, int(queue_id))
        ]
        if times:
            assert store.earliest_time(topic, int(queue_id)) == min(times)
            assert store.offset_by_time(topic, int(queue_id), min(times)) == low
            assert store.offset_by_time(topic, int(queue_id), max(times) + 1) == ours[1]

    for text, positions in facts["keyQueries"].items():
        topic, _, key = text.partition("#")
        result = store.query_keys(topic, key, 32, 0, NOW_MS)
        wanted = positions if isinstance(positions, list) else []
        assert [RecordView(record).physical_offset for record in result.records] == wanted


def check_message(record: RecordView, expected: dict[str, Any]) -> None:
    assert record.size == expected["storeSize"]
    assert record.flag == expected["flag"]
    assert record.sys_flag & ~1 == expected["sysFlag"]
    assert record.body_crc == expected["bodyCRC"]
    assert record.born_ms == expected["bornTimestamp"]
    assert record.store_ms == expected["storeTimestamp"]
    assert record.reconsume_times == expected["reconsumeTimes"]
    assert record.prepared_offset == expected["preparedTransactionOffset"]
    for field, packed in (("bornHost", record.born_host), ("storeHost", record.store_host)):
        ip, port = unpack_host(packed)
        assert f"{ip}:{port}" == expected[field]
    assert record.properties == expected["properties"]
    if not record.sys_flag & 1:
        assert hashlib.sha1(record.body).hexdigest() == expected["bodySha1"]


@pytest.mark.behaviour("STO-1")
def test_a_directory_of_apache_reads_back_message_by_message(
    name: str, facts: dict[str, Any], root: Path
) -> None:
    store = open_store(root, facts)
    check_content(store, facts, name)
    store.close(NOW_MS)


def test_it_reads_the_same_after_a_clean_stop_and_after_a_crash_of_ours(
    name: str, facts: dict[str, Any], root: Path
) -> None:
    store = open_store(root, facts)
    store.close(NOW_MS)
    assert not (root / "abort").exists()
    store = open_store(root, facts)
    check_content(store, facts, name)
    store.disk.unlock()  # as if the process had been killed
    store = open_store(root, facts)
    check_content(store, facts, name)
    store.close(NOW_MS)


def test_consume_queues_that_were_deleted_are_built_again_byte_by_byte(
    name: str, facts: dict[str, Any], root: Path
) -> None:
    by_apache = queue_files(root)
    open_store(root, facts).close(NOW_MS)
    before = queue_files(root)
    if name in ("clean", "killed"):
        assert before == by_apache
    for path in before:
        path.unlink()
    store = open_store(root, facts)
    check_content(store, facts, name)
    store.close(NOW_MS)
    assert queue_files(root) == before


def test_new_messages_continue_the_numbering(name: str, facts: dict[str, Any], root: Path) -> None:
    store = open_store(root, facts)
    last = max(message["storeTimestamp"] for message in facts["messages"])
    position, offset = store.append("Many", 0, 0, 0, 1, HOST, 0, 0, b"new", b"", 0, (), last - 5_000)
    flush = store.take_flush()
    assert flush is not None
    flush.run()
    store.flushed(flush)
    assert offset == facts["queues"]["Many@0"][1]
    assert position > max(message["commitLogOffset"] for message in facts["messages"])
    record = read_queue(store, "Many", 0)[-1]
    assert bytes(record.body) == b"new"
    assert record.store_ms >= last, "store times never go down"
    store.close(NOW_MS)
