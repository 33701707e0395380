import time

import pytest

from penstock.store.disk import RealDisk
from penstock.store.results import GetStatus

HOUR_MS = 3_600_000


def segments(box):
    return [int(name.partition("/")[2]) for name in box.files() if name.startswith("commitlog/")]


def fill(box, count, topic="T"):
    for number in range(count):
        box.send(topic, 0, b"%04d" % number + bytes(900), props={"KEYS": f"{topic}{number}"})


def move_to_hour(box, hour):
    while time.localtime(box.now_ms // 1000).tm_hour != hour:
        box.now_ms += HOUR_MS


@pytest.fixture
def old(box):
    """Thirteen records in four segments, 80 hours ago; two of today in the last segment; it is noon."""
    box.open(consume_queue_file_entries=5)
    fill(box, 13)
    box.checkpoint()
    box.now_ms += 80 * HOUR_MS
    move_to_hour(box, 12)
    box.disk.now_ms = box.now_ms
    fill(box, 2, "Fresh")
    box.checkpoint()
    return box


def test_expired_files_go_at_the_hour_set_for_it(old):
    old.tick(70_000, times=3)
    assert segments(old) == [0, 4096, 8192, 12288]
    move_to_hour(old, 4)
    old.tick(times=3)
    assert segments(old) == [12288]
    assert old.store.min_physical_offset == 12288


def test_several_hours_may_be_set(old):
    old.kill()
    old.open(delete_when="03;13")
    old.tick(61_000)
    assert len(segments(old)) == 4
    move_to_hour(old, 13)
    old.tick(times=2)
    assert segments(old) == [12288]


def test_files_that_are_not_expired_stay(old):
    old.kill()
    old.open(file_reserved_hours=1000)
    old.store.delete_expired_files()
    old.tick(70_000, times=3)
    assert len(segments(old)) == 4


def test_an_operator_may_have_expired_files_deleted_at_any_hour(old):
    old.store.delete_expired_files()
    old.tick(70_000, times=3)
    assert segments(old) == [12288]


def test_above_the_watermark_expired_files_go_at_any_hour(old):
    old.disk.free_bytes = old.disk.total_bytes * 24 // 100
    old.tick(70_000, times=3)
    assert segments(old) == [12288]
    assert old.store.writable


def test_when_space_runs_out_even_fresh_files_go_but_never_the_last(box):
    box.open()
    fill(box, 12)
    box.disk.free_bytes = box.disk.total_bytes * 14 // 100
    box.tick(70_000, times=3)
    assert segments(box) == [8192]
    assert box.store.writable


def test_queues_and_index_follow_the_log(old):
    store = old.store
    assert store.query_keys("T", "T3", 9, 0, 1 << 60).records
    old.store.delete_expired_files()
    old.tick(70_000, times=3)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (12, 13)
    assert store.get("T", 0, 3, 32).status == GetStatus.OFFSET_TOO_SMALL
    names = [name for name in old.files() if name.startswith("consumequeue/T/")]
    assert names == [f"consumequeue/T/0/{200:020d}"]
    assert store.query_keys("T", "T3", 9, 0, 1 << 60).records == []
    assert old.send()[1] == 13
    for end in ("stop", "kill"):
        getattr(old, end)()
        store = old.open()
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (12, 14)
        assert old.bodies()[1:] == [b"body"]


def test_an_idle_queue_keeps_its_numbering_when_its_messages_are_gone(box):
    store = box.open()
    box.send("Idle")
    fill(box, 12)
    box.checkpoint()
    box.disk.free_bytes = box.disk.total_bytes * 14 // 100
    box.tick(70_000, times=3)
    for _ in range(2):
        assert (store.min_offset("Idle", 0), store.max_offset("Idle", 0)) == (1, 1)
        assert store.get("Idle", 0, 0, 32).status == GetStatus.OFFSET_TOO_SMALL
        assert store.get("Idle", 0, 1, 32).status == GetStatus.OFFSET_OVERFLOW_ONE
        box.kill()
        store = box.open()
    assert box.send("Idle")[1] == 1


def test_the_minimum_offset_lies_where_the_log_begins(box):
    store = box.open(consume_queue_file_entries=5)
    fill(box, 12)
    box.checkpoint()
    box.disk.free_bytes = box.disk.total_bytes * 14 // 100
    box.tick(70_000, times=3)
    assert store.min_physical_offset == 8192
    assert store.min_offset("T", 0) == 8
    assert store.get("T", 0, 0, 32).next_offset == 8
    assert len(box.bodies()) == 4
    assert store.earliest_time("T", 0) == store.store_time("T", 0, 8) > 0


def test_old_index_files_go_with_the_log(box):
    store = box.open(index_entries=5)
    fill(box, 12)
    box.checkpoint()
    assert len(store.index.files) == 3
    box.disk.free_bytes = box.disk.total_bytes * 14 // 100
    box.tick(70_000, times=3)
    assert len(store.index.files) == 1
    assert len([name for name in box.files() if name.startswith("index/")]) == 1
    assert len(store.query_keys("T", "T11", 9, 0, 1 << 60).records) == 1


def test_queues_without_any_message_left_can_be_cleaned_away(box):
    store = box.open()
    for topic in ("Idle", "rmq_sys_wheel_timer"):
        box.send(topic)
    fill(box, 12)
    box.checkpoint()
    assert store.clean_expired_consume_queues() == 0
    box.disk.free_bytes = box.disk.total_bytes * 14 // 100
    box.tick(70_000, times=3)
    assert store.clean_expired_consume_queues() == 1
    box.tick(times=2)
    assert sorted(store.topics_with_queues()) == ["T", "rmq_sys_wheel_timer"]
    assert not [name for name in box.files() if name.startswith("consumequeue/Idle/")]
    assert box.send("Idle")[1] == 0
    box.kill()
    box.open()
    assert box.bodies("Idle") == [b"body"]


def test_slices_handed_out_stay_readable_when_their_file_goes(make_box, tmp_path):
    box = make_box(RealDisk(tmp_path))
    store = box.open()
    fill(box, 12)
    part = store.get("T", 0, 0, 1).parts[0]
    before = bytes(part)
    store.log.remove(0)
    assert bytes(part) == before
    assert store.get("T", 0, 0, 1).next_offset == 5
    part.release()
    box.stop()
