"""A store on a disk in memory, and short ways to use it."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.message.record import RecordView, split_records
from penstock.store.dispatch import keys_of, tag_code_of
from penstock.store.results import Arrival, GetStatus
from penstock.store.settings import StoreSettings
from penstock.store.store import Store
from penstock.testing.fault_disk import FaultDisk

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
SMALL = {
    "commit_log_file_size": 4096,
    "consume_queue_file_entries": 10,
    "index_slots": 20,
    "index_entries": 50,
}


class Harness:
    """One directory, opened and stopped in any way."""

    def __init__(self, disk: Any) -> None:
        self.disk = disk
        self.now_ms = 1_700_000_000_000
        self.settings = dict(SMALL)
        self.delay_level_ms: Callable[[int], int] | None = None
        self.store: Store = None  # type: ignore[assignment]

    def open(self, **settings: Any) -> Store:
        self.settings |= settings
        if isinstance(self.disk, FaultDisk):
            self.disk.now_ms = self.now_ms
        self.store = Store.open(
            self.disk,
            StoreSettings(**self.settings),
            store_host=HOST,
            delay_level_ms=self.delay_level_ms,
            now_ms=self.now_ms,
        )
        return self.store

    def put(
        self, topic: str = "T", queue_id: int = 0, body: bytes = b"body", **fields: Any
    ) -> tuple[int, int]:
        """Append without flushing."""
        properties = "".join(
            f"{key}\x01{value}\x02" for key, value in fields.pop("props", {}).items()
        ).encode()
        return self.store.append(
            topic,
            queue_id,
            fields.get("flag", 0),
            fields.get("sys_flag", 0),
            fields.get("born_ms", self.now_ms - 5),
            fields.get("born_host", HOST),
            fields.get("reconsume_times", 0),
            fields.get("prepared_offset", 0),
            body,
            properties,
            fields.get("tag_code", tag_code_of(properties)),
            tuple(keys_of(properties)),
            self.now_ms,
        )

    def flush(self) -> list[Arrival]:
        flush = self.store.take_flush()
        if flush is None:
            return []
        try:
            flush.run()
        except OSError as error:
            return self.store.flushed(flush, error)
        return self.store.flushed(flush)

    def send(self, *arguments: Any, **fields: Any) -> tuple[int, int]:
        placed = self.put(*arguments, **fields)
        self.flush()
        return placed

    def tick(self, later_ms: int = 0, times: int = 1) -> None:
        """Let time pass and do all work that becomes due."""
        self.now_ms += later_ms
        if isinstance(self.disk, FaultDisk):
            self.disk.now_ms = self.now_ms
        for _ in range(times):
            for job in self.store.tick(self.now_ms):
                job()

    def checkpoint(self) -> None:
        """Enough ticks for a whole checkpoint."""
        self.tick(61_000)
        self.tick(times=5)

    def stop(self) -> None:
        self.store.close(self.now_ms)

    def kill(self) -> None:
        """End without any farewell; nothing that was written is lost."""
        self.disk.unlock()

    def records(self, topic: str = "T", queue_id: int = 0) -> list[RecordView]:
        offset = self.store.min_offset(topic, queue_id)
        found: list[RecordView] = []
        while (result := self.store.get(topic, queue_id, offset, 32)).status == GetStatus.FOUND:
            found += split_records(b"".join(result.parts))
            offset = result.next_offset
        return found

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        return [bytes(record.body) for record in self.records(topic, queue_id)]

    def files(self) -> dict[str, bytes]:
        """The whole directory, to see whether it changed."""
        found = {}

        def walk(path: str) -> None:
            for name in self.disk.list_dir(path):
                inner = f"{path}/{name}" if path else name
                try:
                    found[inner] = self.disk.read_bytes(inner)
                except (FileNotFoundError, IsADirectoryError):
                    walk(inner)

        walk("")
        return found


@pytest.fixture
def box() -> Harness:
    return Harness(FaultDisk(1))


@pytest.fixture
def make_box() -> Callable[[Any], Harness]:
    return Harness
