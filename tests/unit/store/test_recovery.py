import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import StoreDamaged, StoreError, StoreLocked
from penstock.store.consume_queue import QueueWrite
from penstock.store.disk import RealDisk

QUEUE_FILE = "consumequeue/T/0/" + "0" * 20


def segment(start):
    return f"commitlog/{start:020d}"


@pytest.fixture
def filled(box):
    """Three segments, each of four records, all checkpointed; stopped by a kill."""
    box.open()
    for number in range(12):
        box.send(body=b"%04d" % number + bytes(900), props={"KEYS": f"k{number}"})
    box.checkpoint()
    box.kill()
    return box


def all_bodies(count):
    return [b"%04d" % number + bytes(900) for number in range(count)]


def change(box, path, at, data):
    whole = bytearray(box.disk.read_bytes(path))
    whole[at : at + len(data)] = data
    box.disk.write_bytes(path, bytes(whole))


def refused(box, error, match):
    before = box.files()
    with pytest.raises(error, match=match) as caught:
        box.open()
    assert "\n" not in str(caught.value)
    assert box.files() == before, "nothing may change"
    return caught.value


def test_a_clean_stop_leaves_no_abort_mark_and_a_kill_does(box):
    box.open()
    assert box.disk.read_bytes("abort") == str(os.getpid()).encode()
    box.stop()
    assert not box.disk.exists("abort")
    box.open()
    box.kill()
    assert box.disk.exists("abort")


def test_everything_is_there_after_a_stop_and_after_a_kill(filled):
    for end in ("stop", "kill", "stop"):
        filled.open()
        assert filled.bodies() == all_bodies(12)
        getattr(filled, end)()


def test_what_was_not_flushed_is_gone_and_its_offset_is_given_again(filled):
    filled.open()
    filled.put(body=b"never flushed")
    filled.kill()
    filled.open()
    assert filled.send(body=b"new")[1] == 12
    assert filled.bodies() == [*all_bodies(12), b"new"]


@pytest.mark.parametrize("keep", [0, 3, 8, 60, 100, 500, 990])
def test_a_torn_last_record_is_dropped_and_nothing_of_it_stays_behind(filled, keep):
    store = filled.open()
    filled.send(body=all_bodies(13)[-1])
    position, _ = filled.send(body=b"torn" + bytes(900), props={"a": "b" * 50})
    size = store.max_physical_offset - position
    filled.kill()
    change(filled, segment(12288), position % 4096 + keep, bytes(size - keep))
    store = filled.open()
    assert store.max_physical_offset == position
    assert filled.bodies() == all_bodies(13)
    assert not any(filled.files()[segment(12288)][position % 4096 :])


def test_old_bytes_behind_the_end_cannot_become_records_again(filled):
    """A record is dropped; the one behind it was whole and must not return when the gap is filled."""
    filled.open()
    first, _ = filled.send(body=b"dropped")
    filled.send(body=b"also unseen")
    filled.kill()
    change(filled, segment(12288), first % 4096 + 90, b"X")
    filled.open()
    assert filled.send(body=b"dropped")[0] == first
    filled.kill()
    filled.open()
    assert filled.bodies() == [*all_bodies(12), b"dropped"]


def test_entries_that_never_reached_the_queue_files_are_built_again(filled):
    filled.open()
    for number in range(12, 20):
        filled.send(body=b"%04d" % number + bytes(900), props={"KEYS": f"k{number}"})
    filled.kill()
    assert len(filled.disk.read_bytes(QUEUE_FILE).rstrip(b"\0")) <= 200
    store = filled.open()
    assert filled.bodies() == all_bodies(20)
    assert len(store.query_keys("T", "k15", 9, 0, 1 << 60).records) == 1


@pytest.mark.parametrize("what", ["a queue file", "all queues", "the index", "the checkpoint", "everything"])
def test_what_is_derived_from_the_log_can_be_deleted(filled, what):
    filled.open()
    filled.send(body=b"0012" + bytes(900))
    filled.kill()
    for path in filled.files():
        kind = path.partition("/")[0]
        if (
            (what == "a queue file" and path == QUEUE_FILE.replace("0" * 20, f"{200:020d}"))
            or (what == "all queues" and kind == "consumequeue")
            or (what == "the index" and kind == "index")
            or (what == "the checkpoint" and kind == "checkpoint")
            or (what == "everything" and kind in ("consumequeue", "index", "checkpoint"))
        ):
            filled.disk.remove(path)
    filled.open()
    assert filled.bodies() == all_bodies(13)
    filled.stop()
    filled.open()
    assert filled.bodies() == all_bodies(13)


def test_a_rebuild_that_is_interrupted_is_not_mistaken_for_a_finished_one(filled):
    for path in filled.files():
        if path.startswith("consumequeue"):
            filled.disk.remove(path)
    filled.open()
    filled.send("Other")
    # One queue goes to disk, then the machine stops before a checkpoint.
    queue = filled.store.queues["Other", 0]
    QueueWrite(filled.disk, queue).run()
    filled.kill()
    filled.open()
    assert filled.bodies() == all_bodies(12)
    assert filled.bodies("Other") == [b"body"]


def test_queue_entries_that_point_behind_the_log_are_dropped(filled):
    change(filled, QUEUE_FILE.replace("0" * 20, f"{200:020d}"), 2 * 20, struct.pack(">qiq", 12288, 500, 0))
    store = filled.open()
    assert store.max_offset("T", 0) == 12
    assert filled.send(body=b"new")[1] == 12
    assert filled.bodies() == [*all_bodies(12), b"new"]


def test_torn_queue_entries_behind_the_checkpoint_are_not_believed(filled):
    """The bytes of the next entry look like one that points into the log, but its record says otherwise."""
    change(filled, QUEUE_FILE.replace("0" * 20, f"{200:020d}"), 2 * 20, struct.pack(">qiq", 8192, 1000, 0))
    filled.open()
    assert filled.bodies() == all_bodies(12)
    assert filled.send(body=b"new")[1] == 12


def test_schedule_entries_get_their_time_of_delivery_back(box):
    box.delay_level_ms = {1: 1000, 2: 5000}.__getitem__
    store = box.open()
    box.send("SCHEDULE_TOPIC_XXXX", 1, props={"DELAY": "2", "TAGS": "x"}, tag_code=box.now_ms + 5000)
    box.send("SCHEDULE_TOPIC_XXXX", 1, props={"TAGS": "TagA"})
    before = store.entries("SCHEDULE_TOPIC_XXXX", 1, 0, 9)
    box.kill()
    store = box.open()
    assert store.entries("SCHEDULE_TOPIC_XXXX", 1, 0, 9) == before
    assert [entry[2] for entry in before] == [box.now_ms + 5000, 2598919]


def test_an_empty_segment_that_was_being_created_is_no_damage(filled):
    filled.disk.open(segment(12288), create=True)
    filled.open()
    assert filled.bodies() == all_bodies(12)


# ---- what is refused ------------------------------------------------------------------------------


def test_a_missing_segment_in_the_middle_is_named(filled):
    filled.disk.remove(segment(4096))
    refused(filled, StoreDamaged, rf"{segment(4096)} is missing: restore it, or ")


def test_a_missing_last_segment_is_named(filled):
    filled.disk.remove(segment(8192))
    refused(filled, StoreDamaged, rf"{segment(8192)} is missing: restore it, or delete checkpoint")


@pytest.mark.parametrize("path", [segment(0), segment(8192), QUEUE_FILE])
def test_a_file_of_the_wrong_size_is_named(filled, path):
    filled.disk.write_bytes(path, filled.disk.read_bytes(path)[:-1])
    refused(filled, StoreDamaged, rf"{path} has \d+ bytes where .* says \d+: set .*, or ")


def test_a_directory_of_other_sizes_is_refused_whatever_the_sizes(filled):
    filled.settings["commit_log_file_size"] = 8192
    refused(filled, StoreDamaged, "mappedFileSizeCommitLog says 8192")
    filled.settings |= {"commit_log_file_size": 4096, "index_slots": 21}
    refused(filled, StoreDamaged, "maxHashSlotNum and maxIndexNum")


def test_damage_in_front_of_sound_messages_is_not_taken_for_a_torn_tail(filled):
    filled.open()
    for number in range(12, 17):
        filled.send(body=b"%04d" % number + bytes(900))
    filled.kill()
    change(filled, segment(12288), 992 + 10, b"damage")
    refused(
        filled,
        StoreDamaged,
        rf"{segment(12288)} is damaged at byte \d+, but {segment(16384)} behind it is sound",
    )


def test_a_directory_that_holds_something_else_is_refused(box):
    box.disk.write_bytes("letters.txt", b"dear")
    refused(box, StoreError, r"is not a data directory \(it holds 'letters.txt'\): give an empty")


def test_an_empty_directory_becomes_a_store(make_box, tmp_path: Path):
    box = make_box(RealDisk(tmp_path / "new" / "store"))
    box.open()
    assert box.send() == (0, 0)
    box.stop()
    assert sorted(os.listdir(tmp_path / "new" / "store")) == [
        "checkpoint",
        "commitlog",
        "consumequeue",
        "lock",
    ]


def test_strange_files_of_apache_are_left_alone(make_box, tmp_path: Path):
    for name in ("rocksdbstore/CURRENT", "compaction/position-checkpoint", "abort.bak", "timerwheel"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "commitlog").mkdir()
    box = make_box(RealDisk(tmp_path))
    box.open()
    box.send()
    box.stop()
    assert (tmp_path / "rocksdbstore" / "CURRENT").exists()
    box.open()
    assert box.bodies() == [b"body"]
    box.stop()


def test_a_locked_directory_is_refused_in_the_same_and_in_another_process(make_box, tmp_path: Path):
    box = make_box(RealDisk(tmp_path))
    box.open()
    with pytest.raises(StoreLocked, match=rf"{tmp_path}/lock is locked: another broker uses"):
        make_box(RealDisk(tmp_path)).open()
    script = (
        "import sys\n"
        "from penstock.errors import StoreLocked\n"
        "from penstock.store.disk import RealDisk\n"
        "try:\n"
        "    RealDisk(sys.argv[1]).lock('lock')\n"
        "except StoreLocked:\n"
        "    print('locked')\n"
    )
    run = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "locked\n"
    box.send()
    box.stop()
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == ""
    box.open()
    box.stop()


def test_a_store_can_be_moved_while_stopped(make_box, tmp_path: Path):
    box = make_box(RealDisk(tmp_path / "a"))
    box.open()
    box.send(body=b"x")
    box.stop()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    moved = make_box(RealDisk(tmp_path / "b"))
    moved.open()
    assert moved.bodies() == [b"x"]
    moved.stop()
