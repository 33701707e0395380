import json

import pytest

from penstock.errors import StoreDamaged
from penstock.store.config_files import ConfigFiles
from penstock.testing.fault_disk import Crash, FaultDisk


def test_a_file_that_was_never_saved_is_none():
    files = ConfigFiles(FaultDisk(1))
    assert files.load("topics.json") is None
    assert files.load("topics.json", json.loads) is None


def test_saving_keeps_the_version_before_as_bak():
    disk = FaultDisk(1)
    files = ConfigFiles(disk)
    files.save("topics.json", b"1")
    files.save("topics.json", b"2")
    assert files.load("topics.json") == b"2"
    assert disk.read_bytes("config/topics.json.bak") == b"1"


@pytest.mark.parametrize("broken", [b"", b"{", None])
def test_a_bad_or_missing_file_gives_way_to_its_bak(broken):
    disk = FaultDisk(1)
    files = ConfigFiles(disk)
    files.save("topics.json", b"1")
    files.save("topics.json", b"2")
    if broken is None:
        disk.remove("config/topics.json")
    else:
        disk.write_bytes("config/topics.json", broken)
    assert files.load("topics.json", json.loads) == 1
    files.save("topics.json", b"3")
    assert disk.read_bytes("config/topics.json.bak") == b"1", "the bad file must not replace the good one"


def test_a_first_file_that_is_empty_counts_as_none():
    disk = FaultDisk(1)
    disk.write_bytes("config/topics.json", b"")
    assert ConfigFiles(disk).load("topics.json", json.loads) is None


def test_a_bad_file_without_bak_is_an_error_that_names_it_and_changes_nothing():
    disk = FaultDisk(1)
    disk.write_bytes("config/topics.json", b"{")
    with pytest.raises(StoreDamaged, match=r"config/topics\.json cannot be read.*repair it, or delete it"):
        ConfigFiles(disk).load("topics.json", json.loads)
    assert disk.read_bytes("config/topics.json") == b"{"


def test_a_check_says_what_loading_would_and_changes_nothing():
    disk = FaultDisk(1)
    files = ConfigFiles(disk)
    files.check("topics.json", json.loads)
    disk.write_bytes("config/topics.json", b"{")
    with pytest.raises(StoreDamaged):
        files.check("topics.json", json.loads)
    disk.write_bytes("config/topics.json.bak", b"1")
    files.check("topics.json", json.loads)
    assert disk.read_bytes("config/topics.json") == b"{"


def test_a_bad_bak_is_an_error_that_names_it_and_changes_nothing():
    disk = FaultDisk(1)
    disk.write_bytes("config/topics.json", b"{")
    disk.write_bytes("config/topics.json.bak", b"[")
    with pytest.raises(
        StoreDamaged, match=r"config/topics\.json\.bak cannot be read.*repair it, or delete it"
    ):
        ConfigFiles(disk).load("topics.json", json.loads)
    assert disk.read_bytes("config/topics.json") == b"{"
    assert disk.read_bytes("config/topics.json.bak") == b"["


def test_after_a_crash_at_any_point_the_old_or_the_new_version_is_loaded():
    for seed in range(200):
        disk = FaultDisk(seed)
        files = ConfigFiles(disk)
        saved = 0
        disk.crash_at = seed % 23 + 1
        try:
            for number in range(1, 9):
                files.save("offsets.json", b"[%d]" % number)
                saved = number
        except Crash:
            pass
        disk.crash()
        found = ConfigFiles(disk).load("offsets.json", json.loads)
        assert (found[0] if found else 0) in (saved, saved + 1)
