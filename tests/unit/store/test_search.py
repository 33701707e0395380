import pytest


@pytest.fixture
def timed(box):
    """Store times +0, +10, +10, +10, +20 on offsets 0 to 4."""
    store = box.open(commit_log_file_size=65_536)
    start = box.now_ms
    for step in (0, 10, 10, 10, 20):
        box.now_ms = start + step
        box.send()
    return lambda ms, upper=False: store.offset_by_time("T", 0, start + ms, upper)


@pytest.mark.parametrize(
    ("ms", "lower", "upper"),
    [(-1, 0, 0), (0, 0, 0), (5, 1, 0), (10, 1, 3), (11, 4, 3), (20, 4, 4), (21, 5, 4)],
)
def test_an_offset_is_found_by_store_time(timed, ms, lower, upper):
    assert timed(ms) == lower
    assert timed(ms, True) == upper


def test_an_unknown_or_empty_queue_gives_zero(box):
    store = box.open()
    assert store.offset_by_time("T", 0, 5) == 0
    box.put()
    assert store.offset_by_time("T", 0, 5, upper=True) == 0


def test_where_all_messages_are_gone_the_minimum_is_the_answer(box):
    store = box.open()
    for _ in range(9):
        box.send(body=bytes(900))
    box.send("Other", 0, bytes(900))
    store.log.forget(0)
    store.log.forget(4096)
    store.queues["T", 0].min_offset = 9
    for upper in (False, True):
        assert store.offset_by_time("T", 0, -1, upper) == 9
        assert store.offset_by_time("T", 0, box.now_ms + 1, upper) == 9


def test_store_times_of_messages_queues_and_store(box):
    store = box.open()
    assert (store.earliest_time("T", 0), store.store_time("T", 0, 0), store.earliest_store_time()) == (
        -1,
        -1,
        -1,
    )
    start = box.now_ms
    box.send("Other")
    box.now_ms += 5
    box.send()
    box.now_ms += 5
    box.send(born_host=bytes(20))
    assert store.earliest_store_time() == start
    assert store.earliest_time("T", 0) == start + 5
    assert [store.store_time("T", 0, offset) for offset in (-1, 0, 1, 2)] == [-1, start + 5, start + 10, -1]


def test_a_record_is_read_only_at_its_start(box):
    store = box.open()
    first, _ = box.send(body=b"one")
    second, _ = box.send(body=b"two")
    end = store.max_physical_offset
    found = [at for at in range(-1, end + 200) if store.read_record(at) is not None]
    assert found == [first, second]
    box.put(body=b"three")
    assert store.read_record(end) is None, "not flushed yet"
