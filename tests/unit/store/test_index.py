import struct

import pytest

from penstock.message.hashing import key_hash
from penstock.message.record import RecordView
from penstock.store.batches import MixedBatch
from penstock.store.index import ENTRY, HEADER, IndexFile, index_file_size
from penstock.testing.fault_disk import Crash, FaultDisk, FaultFile


def found(box, key, topic="T", limit=32, begin_ms=0, end_ms=1 << 60):
    result = box.store.query_keys(topic, key, limit, begin_ms, end_ms)
    return [RecordView(record).physical_offset for record in result.records]


def keyed(box, *keys, unique=None, **fields):
    props = {"KEYS": " ".join(keys)} if keys else {}
    if unique:
        props["UNIQ_KEY"] = unique
    return box.send(props=props, **fields)[0]


def test_a_message_is_found_by_its_unique_key_and_by_each_of_its_keys(box):
    box.open()
    position = keyed(box, "a", "", "b", unique="U1")
    other = keyed(box, "a", topic="Other")
    for key in ("U1", "a", "b"):
        assert found(box, key) == [position]
    assert found(box, "") == []
    assert found(box, "c") == []
    assert found(box, "a", topic="Other") == [other]


def test_a_batch_is_indexed_from_its_property_bytes(box):
    store = box.open()
    items = [(0, b"", b"UNIQ_KEY\x01U%d\x02KEYS\x01k%d shared\x02" % (number, number)) for number in range(3)]
    positions, _ = store.append_batch("T", 0, 0, 0, bytes(8), 0, MixedBatch(items), box.now_ms)
    box.flush()
    assert [found(box, f"U{number}") for number in range(3)] == [[position] for position in positions]
    assert found(box, "k1") == [positions[1]]
    assert found(box, "shared") == positions


def test_the_file_has_the_layout_of_the_specification(box):
    box.open()
    first_ms = box.now_ms
    first = keyed(box, "k1", unique="U1")
    box.now_ms += 2_500
    second = keyed(box, "k2")
    box.stop()
    ((name, data),) = [(name, data) for name, data in box.files().items() if name.startswith("index/")]
    assert len(name) == len("index/") + 17
    assert len(data) == 40 + 20 * 4 + 50 * 20 == index_file_size(20, 50)
    begin_ms, end_ms, begin, end, slots_used, count = HEADER.unpack_from(data)
    assert (begin_ms, end_ms, begin, end, count) == (first_ms, box.now_ms, first, second, 4)
    slots = struct.unpack_from(">20i", data, 40)
    assert slots_used == sum(slot > 0 for slot in slots)
    hashes = [key_hash(f"T#{key}") for key in ("U1", "k1", "k2")]
    entries = [ENTRY.unpack_from(data, 40 + 80 + number * 20) for number in (1, 2, 3)]
    assert [entry[:3] for entry in entries] == [
        (hashes[0], first, 0),
        (hashes[1], first, 0),
        (hashes[2], second, 2),
    ]
    chains = {}
    for number, value in enumerate(hashes, 1):
        assert entries[number - 1][3] == chains.get(value % 20, 0)
        chains[value % 20] = number
    assert {slot: number for slot, number in enumerate(slots) if number} == chains
    assert not any(data[40 + 80 : 40 + 80 + 20]), "entry 0 is never used"


def test_a_full_file_is_followed_by_the_next(box):
    box.open()
    positions = [keyed(box, f"k{number}", body=b"") for number in range(120)]
    box.checkpoint()
    files = box.store.index.files
    assert [file.count for file in files] == [50, 50, 23]
    assert [found(box, f"k{number}") for number in range(120)] == [[position] for position in positions]
    names = [name for name in box.files() if name.startswith("index/")]
    assert len(set(names)) == 3
    box.stop()
    box.open()
    assert [found(box, f"k{number}") for number in range(120)] == [[position] for position in positions]
    position = keyed(box, "k5")
    assert found(box, "k5") == [positions[5], position]


def test_a_query_is_limited_in_number_and_gives_the_newest(box):
    box.open(commit_log_file_size=65_536)
    positions = [keyed(box, "same", body=b"") for _ in range(120)]
    assert found(box, "same", limit=3) == positions[-3:]
    assert found(box, "same", limit=1000) == positions[-64:]


def test_a_query_keeps_to_its_span_of_time(box):
    box.open(commit_log_file_size=65_536)
    start = box.now_ms
    positions = []
    for number in range(10):
        box.now_ms = start + number * 1000
        positions.append(keyed(box, "same"))
    assert found(box, "same", begin_ms=start + 3000, end_ms=start + 5000) == positions[3:6]
    assert found(box, "same", begin_ms=start + 20_000) == []
    assert found(box, "same", end_ms=start - 1) == []


def test_the_answer_tells_the_newest_indexed_record(box):
    store = box.open()
    assert store.query_keys("T", "k", 32, 0, 1)[1:] == (0, 0)
    position = keyed(box, "k")
    assert store.query_keys("T", "other", 32, 0, 1 << 60)[1:] == (box.now_ms, position)


def test_without_an_index_nothing_is_found_and_nothing_written(box):
    box.open(index_enabled=False)
    keyed(box, "k")
    assert found(box, "k") == []
    box.stop()
    assert not [name for name in box.files() if name.startswith("index/")]
    box.open()
    assert found(box, "k") == []


def test_waiting_records_are_bounded(box, monkeypatch):
    monkeypatch.setattr("penstock.store.key_index.BACKLOG_KEYS", 10)
    store = box.open(commit_log_file_size=65_536)
    for number in range(25):
        box.put(props={"KEYS": f"k{number}"})
    box.flush()
    assert store.index.files[-1].count == 16
    assert len(found(box, "k24")) == 1


def test_a_long_batch_is_indexed_in_portions(box, monkeypatch):
    monkeypatch.setattr("penstock.store.key_index.BACKLOG_KEYS", 10)
    store = box.open(commit_log_file_size=65_536)
    items = [(0, b"", f"UNIQ_KEY\x01U{number}\x02KEYS\x01a{number} b\x02".encode()) for number in range(9)]
    positions, _ = store.append_batch("T", 0, 0, 0, bytes(8), 0, MixedBatch(items), box.now_ms)
    box.flush()
    assert store.index.files[-1].count == 1 + 27 - 10
    assert store.index.waiting is not None
    assert store.index.waiting.physical_offset == positions[5], "two of its keys are in, one is not"
    assert [found(box, f"U{number}") for number in range(9)] == [[position] for position in positions]
    assert found(box, "b") == positions


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_after_a_restart_keys_are_still_found(box, end):
    box.open(commit_log_file_size=65_536)
    positions = [keyed(box, f"k{number}", unique=f"U{number}") for number in range(40)]
    box.checkpoint()
    positions += [keyed(box, f"k{number}", unique=f"U{number}") for number in range(40, 60)]
    getattr(box, end)()
    box.open()
    for number, position in enumerate(positions):
        assert found(box, f"k{number}") == [position]
        assert found(box, f"U{number}") == [position]


def test_a_commit_that_did_not_finish_is_rolled_back():
    """Whatever of a commit reached the medium, the chains are afterwards those of one commit or the other."""
    counts = set()
    for seed in range(100):
        disk = FaultDisk(seed)
        file = IndexFile(disk, "index/1", 7, 100)
        file.insert([number * 31 for number in range(20)], list(range(20)), [1000] * 20)
        commit = file.commit()
        commit.run()
        file.was_committed(commit)
        chains = {21: [file.find(number * 31, 99, 0, 2000) for number in range(30)]}
        file.insert([number * 31 for number in range(20, 30)], list(range(20, 30)), [1000] * 10)
        chains[31] = [file.find(number * 31, 99, 0, 2000) for number in range(30)]
        disk.crash_at = disk.operations + 1 + seed % 6
        with pytest.raises(Crash):
            file.commit().run()
        disk.crash()
        again = IndexFile(disk, "index/1", 7, 100)
        again.load()
        again.roll_back()
        counts.add(again.count)
        assert [again.find(number * 31, 99, 0, 2000) for number in range(30)] == chains[again.count]
    assert counts == {21, 31}, "the last step may have been done when the machine stopped"


def test_a_growing_file_is_not_read_back_for_its_slots(monkeypatch):
    """A file that is being written can keep its readers waiting, and with them everybody else."""
    file = IndexFile(FaultDisk(1), "index/1", 5000, 100)
    file.insert([31, 2000, 31], [0, 1, 2], [1000] * 3)
    first = file.commit()
    file.insert([2000], [3], [1000])
    first.run()
    file.was_committed(first)
    with monkeypatch.context() as patch:
        patch.setattr(FaultFile, "read", None)
        file.insert([31, 32], [4, 5], [1000] * 2)
    second = file.commit()
    second.run()
    file.was_committed(second)
    again = IndexFile(file._disk, "index/1", 5000, 100)
    again.load()
    for found in (file, again):
        assert [found.find(key_hash, 99, 0, 2000) for key_hash in (31, 2000, 32)] == [[4, 2, 0], [3, 1], [5]]
