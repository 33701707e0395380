"""All index files together: records that wait to be indexed, the file that grows, queries over all files."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.errors import StoreDamaged
from penstock.message.hashing import Key, KeyHasher
from penstock.store.disk import Disk
from penstock.store.index import DIRECTORY, IndexFile, index_file_size
from penstock.store.results import Arrival
from penstock.store.settings import StoreSettings

BACKLOG_KEYS: Final = 20_000
"""Keys that may wait to be indexed; past this whoever adds one pays for it, so memory stays bounded."""
COMMIT_ENTRIES: Final = 250_000
"""Entries kept in memory before a commit: each commit writes nearly all slots, so fewer write less."""


class KeyIndex:
    def __init__(self, disk: Disk, settings: StoreSettings) -> None:
        self._disk = disk
        self._slots = settings.index_slots
        self._capacity = settings.index_entries
        self.enabled = settings.index_enabled
        self.files: list[IndexFile] = []
        """Oldest first. Only the last one grows; full ones before it may still wait for their commit."""
        self._backlog: deque[Arrival] = deque()
        self._backlog_keys = 0
        self._hasher = KeyHasher()

    def check(self) -> list[str]:
        """Names of the index files, all of the right size. Changes nothing."""
        names = [name for name in self._disk.list_dir(DIRECTORY) if name.isdecimal()]
        wanted = index_file_size(self._slots, self._capacity)
        for name in names:
            size = self._disk.file_size(f"{DIRECTORY}/{name}")
            if size not in (0, wanted):
                raise StoreDamaged(
                    f"{self._disk.name}/{DIRECTORY}/{name} has {size} bytes where {wanted} are expected: set "
                    "maxHashSlotNum and maxIndexNum to what the directory was written with, or delete the "
                    "directory index (key queries then miss older messages)"
                )
        return names

    def load(self, names: list[str]) -> None:
        for name in names:
            if self._disk.file_size(f"{DIRECTORY}/{name}") == 0:
                self._disk.remove(f"{DIRECTORY}/{name}")
            else:
                file = self._new_file(name)
                file.load()
                self.files.append(file)

    def discard_after(self, time_ms: int) -> None:
        """Throw away files with entries newer than this: a stranger's crash may have left them torn."""
        self._discard([file for file in self.files if file.end_ms > time_ms])

    def discard_from(self, position: int) -> None:
        """Throw away files that know records at or behind this position: the log does not have them."""
        self._discard([file for file in self.files if file.count > 1 and file.end_offset >= position])

    def _discard(self, files: list[IndexFile]) -> None:
        for file in reversed(files):
            self.forget(file)
            self._disk.remove(file.path)
        if files:
            self._disk.sync_dir(DIRECTORY)

    def roll_back(self) -> None:
        """Undo commits of ours that a crash cut short."""
        for file in self.files:
            if not file.full:
                file.roll_back()

    def forget(self, file: IndexFile) -> None:
        self.files.remove(file)
        file.close()

    # ---- adding ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> Arrival | None:
        """The first record that is not in yet; None if all are."""
        return self._backlog[0] if self._backlog else None

    @property
    def full_ms(self) -> int:
        """End time of the newest full file that is on disk as a whole."""
        return max((file.end_ms for file in self.files if file.full and not file.uncommitted), default=0)

    def add(self, arrivals: list[Arrival]) -> None:
        """Records that became durable, in the order of the log."""
        if self.enabled:
            self._backlog += arrivals
            self._backlog_keys += sum([len(arrival.keys) for arrival in arrivals])
            if self._backlog_keys > BACKLOG_KEYS:
                self.catch_up(self._backlog_keys - BACKLOG_KEYS)

    def catch_up(self, limit: int | None = None) -> None:
        """Index the records that wait, at most this many keys."""
        backlog = self._backlog
        topics: list[str] = []
        keys: list[Key] = []
        hashes: list[int] = []
        positions: list[int] = []
        times: list[int] = []
        limit = self._backlog_keys if limit is None else limit
        while backlog and len(positions) < limit:
            arrival = backlog.popleft()
            queue, _, _, store_ms, position, _, _, names, places = arrival
            count = len(names)
            if count == 1 and places is None:
                topics.append(queue.topic)
                keys.append(names[0])
                positions.append(position)
                times.append(store_ms)
                continue
            places = places if places is not None else [position] * count
            room = limit - len(positions)
            if count > room:
                rest, rest_places = names[room:], places[room:]
                backlog.appendleft(
                    arrival._replace(keys=rest, key_positions=rest_places, physical_offset=rest_places[0])
                )
                names, places, count = names[:room], places[:room], room
            if topics:
                hashes += self._hasher.hash_all(topics, keys)
                topics, keys = [], []
            if names:
                hashes += self._hasher.hash_batch(queue.topic, names)
            positions += places
            times += [store_ms] * count
        hashes += self._hasher.hash_all(topics, keys)
        self._backlog_keys -= len(hashes)
        self._insert(hashes, positions, times)

    def insert(self, topic: str, keys: Sequence[str], physical_offset: int, store_ms: int) -> None:
        last = self._growing
        if last is not None and physical_offset < last.end_offset:
            return  # recovery goes over records that are in already
        count = len(keys)
        hashes = self._hasher.hash_all([topic] * count, keys)
        self._insert(hashes, [physical_offset] * count, [store_ms] * count)

    def _insert(self, hashes: list[int], positions: list[int], times: list[int]) -> None:
        done = 0
        while done < len(hashes):
            file = self._growing
            if file is None or file.full:
                file = self._begin_file(times[done])
            end = done + file.room
            file.insert(hashes[done:end], positions[done:end], times[done:end])
            done = end

    @property
    def _growing(self) -> IndexFile | None:
        return self.files[-1] if self.files else None

    def _begin_file(self, store_ms: int) -> IndexFile:
        last = self._growing
        moment = time.localtime(store_ms // 1000)
        name = int(f"{time.strftime('%Y%m%d%H%M%S', moment)}{store_ms % 1000:03d}")
        if last is not None:
            name = max(name, int(last.path.rpartition("/")[2]) + 1)
        file = self._new_file(f"{name:017d}")
        if last is not None:
            file.begin_ms = file.end_ms = last.end_ms
            file.begin_offset = file.end_offset = last.end_offset
        self.files.append(file)
        return file

    def _new_file(self, name: str) -> IndexFile:
        return IndexFile(self._disk, f"{DIRECTORY}/{name}", self._slots, self._capacity)

    # ---- asking ---------------------------------------------------------------------------------

    def find(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Positions, ascending, of records that may carry the key: hashes are compared, not keys."""
        self.catch_up()
        (key_hash,) = self._hasher.hash_all([topic], [key])
        found: list[int] = []
        for file in reversed(self.files):
            if file.count > 1 and file.begin_ms <= end_ms and file.end_ms >= begin_ms:
                found += file.find(key_hash, limit - len(found), begin_ms, end_ms)
            if file.begin_ms < begin_ms or len(found) >= limit:
                break
        return sorted(set(found))

    # ---- to disk --------------------------------------------------------------------------------

    def to_commit(self, least: int = 1) -> list[IndexFile]:
        """Files with at least so many entries that are in memory only; full ones always, oldest first."""
        return [file for file in self.files if file.uncommitted >= (1 if file.full else least)]

    def release_memory(self) -> None:
        for file in self.files:
            file.release_memory()

    def close(self) -> None:
        for file in self.files:
            file.close()
