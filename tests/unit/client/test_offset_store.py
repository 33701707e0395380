from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.client.offset_store import LocalOffsetStore, RemoteOffsetStore
from penstock.errors import PenstockError, RequestTimeout, StoreDamaged
from penstock.message.queue import MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


class Backend:
    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.error: PenstockError | None = None

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        if self.error is not None:
            raise self.error
        return self.offsets.get(queue)

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        if self.error is not None:
            raise self.error
        self.offsets[queue] = offset


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def remote(backend: Backend) -> RemoteOffsetStore:
    return RemoteOffsetStore("g", backend)


@pytest.fixture
def local(tmp_path: Path) -> LocalOffsetStore:
    return LocalOffsetStore(str(tmp_path), "1.2.3.4@DEFAULT", "g")


@pytest.mark.behaviour("CON-8")
def test_increase_only_never_moves_an_offset_back(remote: RemoteOffsetStore) -> None:
    remote.update(Q0, 10, increase_only=True)
    remote.update(Q0, 5, increase_only=True)
    assert remote.memory(Q0) == 10
    remote.update(Q0, 5, increase_only=False)
    assert remote.memory(Q0) == 5


def test_a_frozen_offset_takes_no_updates_until_it_is_removed(remote: RemoteOffsetStore) -> None:
    remote.freeze(Q0, 50)
    remote.update(Q0, 99, increase_only=True)
    remote.update(Q0, 1, increase_only=False)
    assert remote.memory(Q0) == 50
    remote.remove(Q0)
    remote.update(Q0, 99, increase_only=True)
    assert remote.memory(Q0) == 99


@pytest.mark.behaviour("START-5")
def test_loading_the_remote_store_reads_nothing_and_a_queue_is_read_when_asked_for(
    remote: RemoteOffsetStore, backend: Backend
) -> None:
    backend.offsets[Q0] = 7
    remote.load()
    assert remote.table() == {}
    assert asyncio.run(remote.stored(Q0)) == 7
    assert remote.memory(Q0) == 7
    assert asyncio.run(remote.stored(Q1)) is None


def test_an_unknown_stored_offset_is_an_error_not_an_absent_one(
    remote: RemoteOffsetStore, backend: Backend
) -> None:
    backend.error = RequestTimeout("no answer")
    with pytest.raises(RequestTimeout):
        asyncio.run(remote.stored(Q0))


def test_persisting_survives_a_broker_that_does_not_answer(
    remote: RemoteOffsetStore, backend: Backend
) -> None:
    remote.update(Q0, 3, increase_only=True)
    backend.error = RequestTimeout("no answer")
    asyncio.run(remote.persist([Q0]))
    assert remote.memory(Q0) == 3


@pytest.mark.scenario(55)
def test_the_periodic_persist_writes_owned_queues_and_forgets_the_others(
    remote: RemoteOffsetStore, backend: Backend
) -> None:
    remote.update(Q0, 3, increase_only=True)
    remote.update(Q1, 4, increase_only=True)
    asyncio.run(remote.persist_only({Q0}))
    assert backend.offsets == {Q0: 3}
    assert remote.table() == {Q0: 3}


def test_persisting_some_queues_keeps_the_others_in_memory(
    remote: RemoteOffsetStore, backend: Backend
) -> None:
    remote.update(Q0, 3, increase_only=True)
    remote.update(Q1, 4, increase_only=True)
    asyncio.run(remote.persist([Q0]))
    assert remote.table("T") == {Q0: 3, Q1: 4}
    assert remote.table("other") == {}


@pytest.mark.behaviour("START-5")
def test_a_local_store_reads_back_what_an_earlier_one_wrote(local: LocalOffsetStore, tmp_path: Path) -> None:
    local.update(Q0, 12, increase_only=True)
    asyncio.run(local.persist([Q0, Q1]))
    again = LocalOffsetStore(str(tmp_path), "1.2.3.4@DEFAULT", "g")
    again.load()
    assert again.table() == {Q0: 12}
    assert asyncio.run(again.stored(Q0)) == 12
    assert local.path == tmp_path / "1.2.3.4@DEFAULT" / "g" / "offsets.json"


def test_a_local_file_has_queues_as_keys_so_that_other_clients_can_read_it(local: LocalOffsetStore) -> None:
    local.update(Q0, 12, increase_only=True)
    asyncio.run(local.persist([Q0]))
    assert local.path.read_text() == '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}}'


def test_writing_keeps_entries_of_other_queues(local: LocalOffsetStore, tmp_path: Path) -> None:
    local.update(Q0, 1, increase_only=True)
    asyncio.run(local.persist([Q0]))
    other = LocalOffsetStore(str(tmp_path), "1.2.3.4@DEFAULT", "g")
    other.update(Q1, 2, increase_only=True)
    asyncio.run(other.persist([Q1]))
    local.load()
    assert local.table() == {Q0: 1, Q1: 2}


@pytest.mark.scenario(56)
def test_a_damaged_offset_file_is_replaced_by_its_backup(local: LocalOffsetStore, tmp_path: Path) -> None:
    for offset in (1, 2):
        local.update(Q0, offset, increase_only=True)
        asyncio.run(local.persist([Q0]))
    local.path.write_text("{ damaged")
    again = LocalOffsetStore(str(tmp_path), "1.2.3.4@DEFAULT", "g")
    again.load()
    assert again.table() == {Q0: 1}


def test_a_damaged_backup_stops_the_start_and_says_which_file(local: LocalOffsetStore) -> None:
    local.path.parent.mkdir(parents=True)
    local.path.write_text("")
    local.path.with_name("offsets.json.bak").write_text("nonsense")
    with pytest.raises(StoreDamaged, match=r"offsets\.json\.bak"):
        local.load()


def test_no_file_at_all_is_an_empty_store(local: LocalOffsetStore) -> None:
    local.load()
    assert local.table() == {}
