import pytest

from penstock.message.record import split_records
from penstock.message.tags import tag_code
from penstock.store.results import GetStatus

LIST = list(GetStatus)


def outcome(result):
    return result.status, result.next_offset, result.min_offset, result.max_offset, result.count


@pytest.fixture
def ten(box):
    """Queue 0 of T with offsets 0 to 9, in one queue file."""
    box.open(commit_log_file_size=65_536)
    for number in range(10):
        box.put(body=b"%d" % number)
    box.flush()
    return box


@pytest.mark.behaviour("STO-2")
def test_an_unknown_or_empty_queue_has_no_message(box):
    store = box.open()
    assert outcome(store.get("T", 0, 0, 32)) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, 0)
    assert outcome(store.get("T", 0, 7, 32)) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, 0)
    box.put()  # not flushed
    assert outcome(store.get("T", 0, 7, 32)) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, 0)
    assert GetStatus.NO_MATCHED_LOGIC_QUEUE in GetStatus, "reserved: missing queues count as empty ones"


@pytest.mark.behaviour("STO-2")
def test_offsets_outside_the_queue_lead_back_into_it(ten):
    get = ten.store.get
    assert outcome(get("T", 0, 10, 32)) == (GetStatus.OFFSET_OVERFLOW_ONE, 10, 0, 10, 0)
    assert outcome(get("T", 0, 11, 32)) == (GetStatus.OFFSET_OVERFLOW_BADLY, 10, 0, 10, 0)
    assert outcome(get("T", 0, -1, 32)) == (GetStatus.OFFSET_TOO_SMALL, 0, 0, 10, 0)


@pytest.mark.behaviour("STO-2", "STO-3")
def test_a_slave_without_offset_check_leaves_wrong_offsets_alone(ten):
    get = ten.store.get
    for offset in (11, -1):
        assert get("T", 0, offset, 32, correct_offsets=False).next_offset == offset
    assert get("Other", 0, 5, 32, correct_offsets=False).next_offset == 5


@pytest.mark.behaviour("STO-2")
def test_found_messages_are_whole_records_in_order(ten):
    result = ten.store.get("T", 0, 3, 4)
    assert outcome(result) == (GetStatus.FOUND, 7, 0, 10, 4)
    assert len(result.parts) == 1, "neighbours are one slice"
    assert result.bytes == len(result.parts[0])
    assert ten.bodies() == [b"%d" % number for number in range(10)]


def test_records_of_other_queues_in_between_are_cut_out(box):
    store = box.open()
    for number in range(9):
        box.put("T", number % 3, b"%d" % number)
    box.flush()
    result = store.get("T", 1, 0, 32)
    assert (result.count, len(result.parts)) == (3, 3)
    assert box.bodies("T", 1) == [b"1", b"4", b"7"]


def test_asking_for_none_gives_one(ten):
    assert ten.store.get("T", 0, 0, 0).count == 1


@pytest.mark.parametrize("queues", [1, 2])
def test_one_answer_holds_as_many_messages_as_were_asked_for(box, queues):
    store = box.open(commit_log_file_size=1 << 20, consume_queue_file_entries=1000)
    for number in range(100 * queues):
        box.put(queue_id=number % queues)
    box.flush()
    assert outcome(store.get("T", 0, 0, 32)) == (GetStatus.FOUND, 32, 0, 100, 32)
    found = store.get("T", 0, 20, 70)
    assert outcome(found) == (GetStatus.FOUND, 90, 0, 100, 70)
    assert [r.queue_offset for r in split_records(b"".join(found.parts))] == list(range(20, 90))


def test_one_answer_holds_at_most_256_kib_but_always_one_message(box):
    store = box.open(commit_log_file_size=1 << 21)
    for size in (150_000, 150_000, 100_000, 300_000, 10):
        box.put(body=bytes(size))
    box.flush()
    counts = []
    offset = 0
    while (result := store.get("T", 0, offset, 32)).status == GetStatus.FOUND:
        counts.append(result.count)
        offset = result.next_offset
    assert counts == [1, 2, 1, 1]


def test_one_answer_comes_from_one_queue_file(box):
    store = box.open(commit_log_file_size=65_536, consume_queue_file_entries=10)
    for _ in range(25):
        box.put()
    box.flush()
    assert [store.get("T", 0, offset, 32).next_offset for offset in (0, 7, 10, 20)] == [10, 10, 20, 25]


@pytest.mark.behaviour("STO-6")
def test_the_tag_hash_in_the_queue_filters_before_the_log_is_read(ten):
    for tag in ("a", "b", "a", "c"):
        ten.put("Tagged", 0, tag.encode(), props={"TAGS": tag})
    ten.flush()
    wanted = {tag_code("a"), tag_code("c")}
    result = ten.store.get("Tagged", 0, 0, 32, wanted.__contains__)
    assert outcome(result) == (GetStatus.FOUND, 4, 0, 4, 3)
    assert len(result.parts) == 2, "the first, and the last two side by side"


@pytest.mark.behaviour("STO-2", "STO-6")
def test_no_match_moves_on_behind_what_was_looked_at(ten):
    result = ten.store.get("T", 0, 4, 32, lambda code: False)
    assert outcome(result) == (GetStatus.NO_MATCHED_MESSAGE, 10, 0, 10, 0)


def test_a_filtered_pull_looks_at_no_more_than_800_entries(box):
    store = box.open(commit_log_file_size=1 << 20, consume_queue_file_entries=3000)
    for _ in range(1000):
        box.put(body=b"")
    box.flush()
    assert store.get("T", 0, 0, 32, lambda code: False).next_offset == 800
    assert store.get("T", 0, 800, 32, lambda code: False).next_offset == 1000


def test_a_record_filter_sees_each_record(ten):
    result = ten.store.get("T", 0, 0, 32, None, lambda record: bytes(record.body) in (b"3", b"4", b"9"))
    assert outcome(result) == (GetStatus.FOUND, 10, 0, 10, 3)
    assert len(result.parts) == 2


def fill_segments(box, count):
    for number in range(count):
        box.send(body=b"%04d" % number + bytes(900))


@pytest.mark.behaviour("STO-2")
def test_messages_whose_log_file_is_gone_are_passed_over(box):
    store = box.open(consume_queue_file_entries=6)
    fill_segments(box, 10)  # four records a segment
    store.log.forget(0)
    assert outcome(store.get("T", 0, 0, 32)) == (GetStatus.FOUND, 6, 0, 10, 2)
    store.log.forget(4096)
    assert outcome(store.get("T", 0, 1, 32)) == (GetStatus.MESSAGE_WAS_REMOVING, 6, 0, 10, 0)
    assert outcome(store.get("T", 0, 6, 32)) == (GetStatus.FOUND, 10, 0, 10, 2)


@pytest.mark.behaviour("STO-2")
def test_a_queue_file_that_is_gone_leads_to_the_next_one(box):
    store = box.open(commit_log_file_size=65_536)
    for _ in range(200):
        box.put(body=b"")
    box.flush()
    box.checkpoint()
    box.disk.remove("consumequeue/T/0/" + "0" * 20)
    assert outcome(store.get("T", 0, 3, 32)) == (GetStatus.OFFSET_FOUND_NULL, 10, 0, 200, 0)
    assert store.get("T", 0, 3, 32, correct_offsets=False).next_offset == 3
    assert store.get("T", 0, 10, 32).status == GetStatus.FOUND


def test_entries_read_the_same_from_memory_and_from_files(box):
    store = box.open(commit_log_file_size=1 << 20, consume_queue_file_entries=64)
    for number in range(400):
        box.put(body=b"", props={"TAGS": str(number)})
    box.flush()
    before = store.entries("T", 0, 0, 500)
    assert len(before) == 400
    box.checkpoint()
    queue = store.queues["T", 0]
    assert (queue.written, queue.synced, len(queue.tail) // 20) == (400, 400, 128)
    assert store.entries("T", 0, 0, 500) == before
    for offset in (0, 63, 64, 250, 271, 272, 399):
        assert store.entries("T", 0, offset, 40) == before[offset : offset + 40]
        assert store.get("T", 0, offset, 1).count == 1
