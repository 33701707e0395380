import errno

import pytest

from penstock.errors import StoreFull
from penstock.store.batches import MixedBatch


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("size", [10, 900, 3000])
def test_a_group_that_cannot_be_written_is_undone_as_a_whole(box, number, size):
    store = box.open()
    for _ in range(3):
        box.send(body=b"kept")
    end = store.max_physical_offset
    box.disk.error = number
    box.put(body=bytes(size))
    flush = store.take_flush()
    box.put(body=b"appended meanwhile")
    store.journal.append(1, b"noted meanwhile")
    with pytest.raises(OSError, match=r"\w+") as caught:
        flush.run()
    assert store.flushed(flush, caught.value) == []
    assert (store.writable, store.take_flush(), store.durable) == (False, None, store.end)
    assert store.max_physical_offset == end
    with pytest.raises(StoreFull, match=f"fault-disk: {caught.value.strerror}"):
        box.put()
    with pytest.raises(StoreFull):
        store.append_batch("T", 0, 0, 0, bytes(8), 0, MixedBatch([(0, b"", b"")]), box.now_ms)
    assert box.bodies() == [b"kept"] * 3, "reads go on"

    box.tick(1_500)
    assert not store.writable, "as long as the disk fails"
    box.disk.error = None
    box.tick(1_500)
    assert store.writable
    assert box.send(body=b"after") == (end, 3)
    box.kill()
    box.open()
    assert box.bodies() == [b"kept"] * 3 + [b"after"]


def test_nothing_of_a_failed_group_comes_back_after_a_crash(box):
    box.open()
    box.send(body=b"kept")
    for _ in range(8):
        box.put(body=b"failed" + bytes(900))
    flush = box.store.take_flush()
    box.disk.crash_at = None
    flush.write()  # all of it is in the files, then the sync fails
    box.store.flushed(flush, OSError(errno.EIO, "sync failed"))
    box.kill()
    box.open()
    assert box.bodies() == [b"kept"]


def test_writes_stay_refused_while_space_is_short(box):
    store = box.open()
    box.send()
    box.disk.error = errno.ENOSPC
    box.disk.free_bytes = 4096
    box.put()
    box.flush()
    box.disk.error = None
    box.tick(2_000)
    assert not store.writable
    box.disk.free_bytes = box.disk.total_bytes
    box.tick(2_000)
    assert store.writable


def test_above_the_warning_mark_writes_are_refused_until_use_is_below_the_lower_one(box):
    store = box.open()
    box.send()
    total = box.disk.total_bytes
    for free, writable in ((11, True), (9, False), (12, False), (14, False), (16, True)):
        box.disk.free_bytes = total * free // 100
        box.tick(2_000)
        assert store.writable is writable, f"{free} % free"
        assert box.bodies() == [b"body"]
    assert store.used_ratio == 0.85, "rounded up, as the protocol does"


def test_background_work_that_fails_refuses_writes_and_is_done_later(box):
    store = box.open(commit_log_file_size=65_536)
    for _ in range(30):
        box.put(props={"KEYS": "k"})
    box.flush()
    box.disk.error = errno.ENOSPC
    box.tick(61_000)
    box.tick()
    assert not store.writable
    assert len(box.bodies()) == 30
    box.disk.error = None
    box.tick(2_000, times=6)
    assert store.writable
    assert store.queues["T", 0].synced == 30
    assert store.index.to_commit() == []


def test_a_stop_on_a_full_disk_leaves_the_abort_mark(box):
    box.open()
    box.send(body=b"kept")
    box.disk.error = errno.ENOSPC
    box.put(body=b"refused")
    box.stop()
    assert box.disk.exists("abort")
    box.disk.error = None
    box.open()
    assert box.bodies() == [b"kept"]
    box.disk.error = errno.ENOSPC
    box.stop()
    assert box.disk.exists("abort"), "the queues are not on disk"
