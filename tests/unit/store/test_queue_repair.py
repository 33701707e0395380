import pytest

from penstock.testing.fault_disk import Crash


def queue_file(number, topic="T"):
    return f"consumequeue/{topic}/0/{number * 200:020d}"


@pytest.fixture
def filled(box):
    """Sixty messages of two topics in turn: three queue files for each; stopped cleanly."""
    box.open()
    for number in range(60):
        box.send("T" if number % 2 else "U", body=b"%04d" % number, props={"TAGS": f"t{number}"})
    box.stop()
    return box


def bodies(topic):
    return [b"%04d" % number for number in range(60) if (number % 2 == 1) == (topic == "T")]


@pytest.mark.parametrize("lost", [[0], [1], [0, 1]])
def test_lost_files_come_back_byte_by_byte(filled, lost, caplog):
    before = filled.files()
    for topic in ("T", "U"):
        for number in lost:
            filled.disk.remove(queue_file(number, topic))
    filled.open()
    for topic in ("T", "U"):
        assert filled.bodies(topic) == bodies(topic)
        assert filled.store.min_offset(topic, 0) == 0
    filled.stop()
    after = filled.files()
    assert {name: after[name] for name in after if name.startswith("consumequeue")} == {
        name: before[name] for name in before if name.startswith("consumequeue")
    }
    assert caplog.text.count("was missing and was built again") == 2 * len(lost)


def test_what_the_log_no_longer_holds_is_not_in_the_rebuilt_file(box):
    """The log begins in the middle of the lost file."""
    store = box.open()
    for number in range(26):
        box.send(body=b"%04d" % number + bytes(900))
    box.checkpoint()
    box.stop()
    for start in (0, 4096, 8192):
        box.disk.remove(f"commitlog/{start:020d}")
    box.disk.remove(queue_file(1))
    store = box.open()
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (12, 26)
    assert [body[:4] for body in box.bodies()] == [b"%04d" % number for number in range(12, 26)]


def test_a_queue_that_begins_late_is_left_as_it_is(filled):
    """Another broker may number a queue from anywhere; nothing is missing there."""
    filled.open()
    filled.store.delete_topic("T")
    filled.tick()
    queue = filled.store.add_queue("T", 0)
    queue.begin_at(20)
    filled.send("T", body=b"late")
    filled.stop()
    before = filled.files()
    filled.open()
    assert (filled.store.min_offset("T", 0), filled.store.max_offset("T", 0)) == (20, 21)
    filled.stop()
    names = [name for name in filled.files() if name.startswith("consumequeue/T/")]
    assert names == [name for name in before if name.startswith("consumequeue/T/")] == [queue_file(2)]


def test_a_crash_in_the_middle_of_it_leaves_the_gap_and_the_next_start_fills_it(filled):
    filled.disk.remove(queue_file(0))
    filled.disk.remove(queue_file(1))
    filled.disk.sync_dir("consumequeue/T/0")
    crashes = 0
    for operations in range(1, 200):
        filled.disk.crash_at = filled.disk.operations + operations
        try:
            filled.open()
        except Crash:
            crashes += 1
            filled.disk.crash()
            continue
        break
    assert crashes > 5
    assert filled.bodies() == bodies("T")


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_queue_that_lost_all_its_files_comes_back(box, caplog, end, trimmed):
    store = box.open()
    for number in range(26):
        box.send("T" if number % 2 else "U", body=b"%04d" % number + bytes(900))
    box.send("Empty", sys_flag=4)  # a prepared message: in the log, in no queue
    box.checkpoint()
    getattr(box, end)()
    if trimmed:
        for start in (0, 4096):
            box.disk.remove(f"commitlog/{start:020d}")
    for number in (0, 1):
        box.disk.remove(queue_file(number))
    store = box.open()
    first = 8 if trimmed else 0
    expected = {topic: [n for n in range(first, 26) if (n % 2 == 1) == (topic == "T")] for topic in "TU"}
    for topic, numbers in expected.items():
        assert [int(body[:4]) for body in box.bodies(topic)] == numbers
        assert (store.min_offset(topic, 0), store.max_offset(topic, 0)) == (first // 2, 13)
    assert "the files of 1 queues are missing" in caplog.text
    box.stop()
    caplog.clear()
    box.open()
    assert not caplog.text, "it was said, and done, once"


def test_a_topic_that_was_deleted_is_not_taken_for_lost(filled, caplog):
    filled.open()
    filled.checkpoint()
    filled.store.delete_topic("T")
    filled.tick()
    filled.kill()
    filled.open()
    assert filled.bodies("T") == []
    assert not caplog.text
