import struct

import pytest

from penstock.message.tags import tag_code
from penstock.store.disk import RealDisk
from penstock.store.writer import OPEN_QUEUE_FILES


@pytest.mark.behaviour("STO-1")
def test_an_entry_is_position_size_and_tag_hash_in_20_bytes(box):
    box.open(commit_log_file_size=65_536)
    sizes = []
    for tag in ("TagA", "", "\u4e2d\u6587"):
        position, _ = box.send("T", 3, props={"TAGS": tag} if tag else {})
        sizes.append((position, box.store.max_physical_offset - position, tag_code(tag or None)))
    box.checkpoint()
    data = box.files()["consumequeue/T/3/" + "0" * 20]
    assert len(data) == 10 * 20
    assert list(struct.iter_unpack(">qiq", data[:60])) == sizes
    assert sizes[0][2] == 2598919
    assert not any(data[60:])


def test_files_have_their_full_size_and_are_named_by_their_first_byte(box):
    box.open(commit_log_file_size=65_536)
    for _ in range(25):
        box.put()
    box.flush()
    box.checkpoint()
    sizes = {name: len(data) for name, data in box.files().items() if name.startswith("consumequeue")}
    assert sizes == {f"consumequeue/T/0/{start:020d}": 200 for start in (0, 200, 400)}


def test_a_long_queue_is_written_before_any_checkpoint(box):
    store = box.open(commit_log_file_size=1 << 20, consume_queue_file_entries=1000)
    for _ in range(500):
        box.put(body=b"")
    box.flush()
    box.put("Short")
    box.flush()
    box.tick(1_100)
    box.tick()
    assert store.queues["T", 0].written == 500
    assert store.queues["Short", 0].written == 0
    assert store.queues["T", 0].synced == 0


def test_thousands_of_queues_keep_a_bounded_number_of_files_open(make_box, tmp_path):
    box = make_box(RealDisk(tmp_path))
    store = box.open(commit_log_file_size=1 << 20)
    count = OPEN_QUEUE_FILES + 50
    for number in range(count):
        box.put(f"T{number}", 0, b"%d" % number)
    box.flush()
    box.stop()
    store = box.open()
    for number in range(count):
        assert box.bodies(f"T{number}") == [b"%d" % number]
    assert len(store.queue_files) <= OPEN_QUEUE_FILES
    box.stop()


def test_topics_with_queues_lists_what_has_messages(box):
    store = box.open()
    box.send("B", 1)
    box.send("A", 3)
    box.send("B", 0)
    assert store.topics_with_queues() == {"A": [3], "B": [0, 1]}


def test_a_deleted_topic_begins_again_at_zero(box):
    store = box.open()
    for _ in range(3):
        box.send("Gone", 0, b"old")
    box.checkpoint()
    box.put("Gone", 0, b"on its way")
    store.delete_topic("Gone")
    box.flush()
    assert store.topics_with_queues() == {}
    assert box.send("Gone", 0, b"new")[1] == 0
    box.tick()
    box.checkpoint()
    assert box.bodies("Gone") == [b"new"]


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("tidy", [True, False])
def test_a_deleted_topic_does_not_come_back(box, end, tidy):
    store = box.open()
    for _ in range(3):
        box.send("Gone", 0, b"old")
        box.send("Kept", 0, b"kept")
    if tidy:
        box.checkpoint()
    store.delete_topic("Gone")
    if tidy:
        box.tick()
    box.send("Gone", 0, b"new")
    getattr(box, end)()
    box.open()
    assert box.bodies("Gone") == [b"new"]
    assert len(box.bodies("Kept")) == 3
