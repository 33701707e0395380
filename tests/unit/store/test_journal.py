import errno

import pytest


def notes(store):
    return [payload for _, payload in store.journal.replayed]


def test_an_entry_is_durable_with_the_group_it_was_noted_in(box):
    store = box.open()
    position = store.journal.append(3, b"alone")
    assert position > store.durable
    box.flush()
    assert position <= store.durable
    box.put()
    position = store.journal.append(4, b"with a message")
    assert position > store.durable
    box.flush()
    assert position == store.end == store.durable
    box.kill()
    box.disk.crash()
    assert box.open().journal.replayed == [(3, b"alone"), (4, b"with a message")]


def test_an_entry_that_was_not_flushed_is_gone(box):
    store = box.open()
    store.journal.append(1, b"kept")
    box.flush()
    store.journal.append(1, b"lost")
    box.kill()
    assert notes(box.open()) == [b"kept"]


@pytest.mark.parametrize("cut", range(1, 15))
def test_a_torn_tail_is_cut_at_the_first_bad_entry(box, cut):
    store = box.open()
    for payload in (b"one", b"two", b"three"):
        store.journal.append(1, payload)
    box.flush()
    box.kill()
    (name,) = [name for name in box.files() if "journal-" in name]
    whole = box.disk.read_bytes(name)
    box.disk.write_bytes(name, whole[:-cut])
    store = box.open()
    assert notes(store) == [b"one", b"two"]
    store.journal.append(1, b"four")
    box.flush()
    box.kill()
    assert notes(box.open()) == [b"one", b"two", b"four"]


def test_a_changed_byte_ends_the_journal_there(box):
    store = box.open()
    for payload in (b"one", b"two", b"three"):
        store.journal.append(1, payload)
    box.flush()
    box.kill()
    (name,) = [name for name in box.files() if "journal-" in name]
    box.disk.write_bytes(name, box.disk.read_bytes(name).replace(b"two", b"tvo"))
    assert notes(box.open()) == [b"one"]


def test_entries_continue_only_the_snapshot_they_belong_to(box):
    store = box.open()
    assert store.journal.replayed_for("first") == []
    store.journal.append(1, b"after first")
    box.flush()
    store.journal.restart("second")
    store.journal.append(1, b"after second")
    box.flush()
    box.kill()
    journal = box.open().journal
    assert journal.replayed_for("second") == [(1, b"after second")]
    assert journal.replayed_for("first") == [(1, b"after first"), (1, b"after second")]
    assert journal.replayed_for("of another broker") == []


def test_after_a_foreign_snapshot_new_entries_continue_that_one(box):
    store = box.open()
    store.journal.replayed_for("ours")
    store.journal.append(1, b"old")
    box.flush()
    box.kill()
    store = box.open()
    assert store.journal.replayed_for("theirs") == []
    store.journal.append(1, b"new")
    box.flush()
    box.kill()
    assert box.open().journal.replayed_for("theirs") == [(1, b"new")]


def test_restarting_with_the_same_snapshot_loses_nothing(box):
    store = box.open()
    store.journal.replayed_for("same")
    store.journal.append(1, b"one")
    box.flush()
    store.journal.restart("same")
    store.journal.append(1, b"two")
    box.flush()
    box.kill()
    assert box.open().journal.replayed_for("same") == [(1, b"one"), (1, b"two")]


def test_old_generations_are_deleted(box):
    store = box.open()
    for number in range(6):
        store.journal.restart(f"snapshot {number}")
        store.journal.append(1, b"%d" % number)
        box.flush()
    assert len([name for name in box.files() if "journal-" in name]) == 2
    box.stop()
    assert box.open().journal.replayed_for("snapshot 5") == [(1, b"5")]


def test_entries_waiting_at_a_restart_move_to_the_new_generation(box):
    store = box.open()
    store.journal.append(1, b"waiting")
    store.journal.restart("next")
    box.flush()
    box.kill()
    assert box.open().journal.replayed_for("next") == [(1, b"waiting")]


@pytest.mark.parametrize("restart", [False, True])
def test_entries_of_a_failed_group_never_come_back(box, restart):
    store = box.open()
    store.journal.replayed_for("s")
    store.journal.append(1, b"kept")
    box.flush()
    store.journal.append(1, b"failed" * 100)
    if restart:
        store.journal.restart("s2")
    before = store.durable
    box.disk.error = errno.EIO
    box.flush()
    assert (store.durable, store.end) == (before, before)
    box.disk.error = None
    box.tick(2_000)
    assert store.writable
    store.journal.append(1, b"later")
    box.flush()
    box.kill()
    journal = box.open().journal
    if restart:
        assert journal.replayed_for("s2") == [(1, b"later")]
    assert journal.replayed_for("s") == [(1, b"kept"), (1, b"later")]


def test_an_entry_that_grows_is_durable_with_all_that_was_added_to_it(box):
    store = box.open()
    content = []

    def finish():
        store.journal.append(1, b"".join(content))

    position = store.journal.grow(finish)
    content += [b"a", b"b"]
    assert position == store.end > store.durable
    flush = store.take_flush()
    content[:] = [b"c"]
    later = store.journal.grow(finish)
    flush.run()
    store.flushed(flush)
    assert position <= store.durable < later
    box.flush()
    assert later <= store.durable
    box.kill()
    assert notes(box.open()) == [b"ab", b"c"]


def test_an_entry_that_grows_while_a_group_fails_is_not_taken_for_durable(box):
    store = box.open()
    store.journal.append(1, b"failed")
    flush = store.take_flush()
    store.journal.grow(lambda: store.journal.append(1, b"grown"))
    store.flushed(flush, OSError(errno.EIO, "no"))
    assert store.end > store.durable
    box.tick(2_000)
    box.flush()
    assert store.end == store.durable
    box.kill()
    assert notes(box.open()) == [b"grown"]
