import struct

import pytest

from penstock.store.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from penstock.testing.fault_disk import FaultDisk


def test_a_missing_checkpoint_knows_nothing():
    assert load_checkpoint(FaultDisk(1)) == Checkpoint(0, 0, 0, None)


def test_a_saved_checkpoint_has_apaches_size_and_fields():
    disk = FaultDisk(1)
    save_checkpoint(disk, Checkpoint(10_000, 9_000, 5, 77, 3))
    data = disk.read_bytes("checkpoint")
    assert len(data) == 4096
    assert struct.unpack_from(">qqqqq", data) == (10_000, 9_000, 5, 0, 0)
    assert load_checkpoint(disk) == Checkpoint(10_000, 9_000, 5, 77, 3)
    assert load_checkpoint(disk).min_ms == 6_000


@pytest.mark.parametrize("at", [7, 15, 23])
def test_our_position_does_not_count_once_another_broker_has_written_its_times(at):
    disk = FaultDisk(1)
    save_checkpoint(disk, Checkpoint(10, 10, 10, 77))
    data = bytearray(disk.read_bytes("checkpoint"))
    data[at] = 11
    disk.write_bytes("checkpoint", bytes(data))
    assert load_checkpoint(disk).position is None


@pytest.mark.parametrize("size", [0, 10, 24, 260, 299])
def test_a_short_file_is_no_error(size):
    disk = FaultDisk(1)
    save_checkpoint(disk, Checkpoint(10, 10, 10, 77))
    disk.write_bytes("checkpoint", disk.read_bytes("checkpoint")[:size])
    assert load_checkpoint(disk).position is None


def test_the_checkpoint_never_claims_what_is_not_on_the_medium(box):
    store = box.open()
    box.send()
    assert load_checkpoint(box.disk).position == 0
    box.checkpoint()
    first = store.max_physical_offset
    time_ms = store.visible_ms
    assert load_checkpoint(box.disk) == Checkpoint(time_ms, time_ms, 0, first, 1)
    box.send()
    box.tick(61_000)  # the work of the next one is handed out, but never run
    jobs = store.tick(box.now_ms)
    assert load_checkpoint(box.disk).position == first
    assert jobs
