"""The real disk and the one in memory behave alike as long as nothing goes wrong."""

import errno
import os
from pathlib import Path

import pytest

from penstock.errors import StoreError, StoreLocked
from penstock.store.disk import RealDisk
from penstock.testing.fault_disk import SECTOR, Crash, FaultDisk


@pytest.fixture(params=["real", "fault"])
def disk(request, tmp_path):
    return RealDisk(tmp_path) if request.param == "real" else FaultDisk(1)


def test_a_created_file_has_its_size_at_once_and_is_zeros(disk):
    disk.make_dirs("a/b")
    file = disk.open("a/b/c", size=5000, create=True)
    assert (file.size, disk.file_size("a/b/c")) == (5000, 5000)
    assert bytes(file.read(0, 5000)) == bytes(5000)
    file.write(4990, b"0123456789")
    assert bytes(file.read(4988, 12)) == b"\0\x000123456789"
    file.close()
    again = disk.open("a/b/c", size=9, create=True)
    assert again.size == 5000, "only a new file gets the size"
    assert disk.list_dir("a/b") == ["c"]
    assert disk.list_dir("a/b/none") == []
    again.close()


def test_a_missing_file_is_not_found(disk):
    with pytest.raises(FileNotFoundError):
        disk.open("none")
    with pytest.raises(FileNotFoundError):
        disk.read_bytes("none")
    with pytest.raises(FileNotFoundError):
        disk.remove("none")


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 70_000, 99_999])
def test_clearing_leaves_the_size_and_what_is_before(disk, offset):
    file = disk.open("f", size=100_000, create=True)
    file.write(0, b"x" * 10_000)
    file.write(69_990, b"y" * 30_010)
    before = bytes(file.read(0, 100_000))
    file.clear(offset)
    assert file.size == 100_000
    assert bytes(file.read(0, 100_000)) == before[:offset] + bytes(100_000 - offset)
    file.close()


def test_files_are_renamed_over_others_and_removed(disk):
    disk.write_bytes("a", b"1")
    disk.write_bytes("b", b"2")
    disk.rename("a", "b")
    assert (disk.exists("a"), disk.read_bytes("b")) == (False, b"1")
    disk.remove("b")
    assert not disk.exists("b")


def test_a_tree_is_removed_with_all_in_it(disk):
    for name in ("t/0/a", "t/0/b", "t/1/c", "tt/0/d"):
        disk.make_dirs(name.rpartition("/")[0], sync=False)
        disk.write_bytes(name, b"x")
    disk.remove_tree("t")
    disk.remove_tree("t")
    assert not disk.exists("t")
    disk.remove_tree("tt/0/d")
    assert not disk.exists("tt/0/d")


@pytest.mark.parametrize("count", [1, 100])
def test_many_files_are_synced_at_once(disk, count):
    names = [f"d{number}/f" for number in range(count)]
    for name in names:
        disk.make_dirs(name[:-2], sync=False)
        disk.open(name, size=10, create=True).close()
    disk.sync_paths([*names, "d0/none"])
    if isinstance(disk, FaultDisk):
        disk.crash()
        assert [disk.file_size(name) for name in names] == [10] * count


def test_what_was_read_does_not_stay_resident_and_is_still_readable(tmp_path):
    disk = RealDisk(tmp_path)
    data = bytes(range(256)) * 4096
    disk.write_bytes("large", data)
    file = disk.open("large")
    view = file.read(0, len(data))
    assert bytes(view) == data
    assert resident_bytes(f"{tmp_path}/large") == len(data)
    file.release_memory()
    assert resident_bytes(f"{tmp_path}/large") == 0
    assert bytes(view) == data
    file.close()


def resident_bytes(path):
    """Of the map of a file, as the kernel tells."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.endswith(path)]
    (resident,) = [line for line in lines[at : at + 10] if line.startswith("Rss:")]
    return int(resident.split()[1]) * 1024


def test_usage_tells_total_and_free_bytes(disk):
    total, free = disk.usage()
    assert 0 < free <= total


def test_the_lock_is_exclusive_until_released(disk, tmp_path):
    disk.lock("lock")
    other = RealDisk(tmp_path) if isinstance(disk, RealDisk) else disk
    with pytest.raises(StoreLocked, match="lock is locked"):
        other.lock("lock")
    disk.unlock()
    other.lock("lock")
    assert disk.read_bytes("lock") == b"lock"
    other.unlock()


def test_a_data_directory_that_cannot_be_used_is_a_store_error(make_box, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"file/?: Not a directory; give a data directory"):
        make_box(RealDisk(tmp_path / "file")).open()
    with pytest.raises(StoreError, match="Not a directory"):
        make_box(RealDisk(tmp_path / "file" / "below")).open()


# ---- the faults ---------------------------------------------------------------------------------


def crashed(seed):
    """A synced stretch of 'a', then an unsynced one of 'b' over six sectors, then a crash."""
    disk = FaultDisk(seed)
    disk.write_bytes("f", b"a" * 6 * SECTOR)
    disk.open("f").write(0, b"b" * 6 * SECTOR)
    disk.crash()
    return disk.read_bytes("f")


def test_unsynced_writes_are_kept_lost_or_torn_by_sectors():
    seen = {crashed(seed) for seed in range(200)}
    assert b"a" * 6 * SECTOR in seen
    assert b"b" * 6 * SECTOR in seen
    assert len(seen) > 10
    for content in seen:
        assert all(len(set(content[at : at + SECTOR])) == 1 for at in range(0, len(content), SECTOR))


def test_the_seed_decides_everything():
    assert [crashed(seed) for seed in range(50)] == [crashed(seed) for seed in range(50)]


def test_synced_writes_are_never_lost():
    for seed in range(50):
        disk = FaultDisk(seed)
        file = disk.open("d/f", size=4096, create=True)
        file.write(100, b"x" * 3000)
        file.sync()
        disk.sync_dir("d")
        disk.crash()
        assert disk.read_bytes("d/f") == bytes(100) + b"x" * 3000 + bytes(996)


def test_names_are_lost_without_a_sync_of_their_directory():
    outcomes = set()
    for seed in range(50):
        disk = FaultDisk(seed)
        disk.write_bytes("old", b"1")
        disk.rename("old", "new")
        file = disk.open("extra", create=True)
        file.sync()
        disk.crash()
        outcomes.add((disk.exists("old"), disk.exists("new"), disk.exists("extra")))
    assert outcomes == {(True, False, False), (False, True, False), (False, True, True)}, (
        "in order, or not at all"
    )


def test_a_crash_comes_at_its_operation_and_ends_all_that_follow():
    disk = FaultDisk(1)
    file = disk.open("f", create=True)
    disk.crash_at = disk.operations + 2
    file.write(0, b"1")
    for _ in range(2):
        with pytest.raises(Crash):
            file.sync()
    disk.crash()
    disk.write_bytes("g", b"2")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_writes_fail_with_the_error_that_is_set(number):
    disk = FaultDisk(1)
    file = disk.open("f", create=True)
    disk.error = number
    for act in (lambda: file.write(0, b"12"), file.sync, lambda: disk.write_bytes("g", b"")):
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            act()
        assert caught.value.errno == number
    assert file.read(0, 9) == b"1", "a write may fail half-way"
