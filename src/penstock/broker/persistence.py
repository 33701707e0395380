"""How the broker's tables survive: JSON files that Apache reads, and journal entries in between.

A change is journaled in the same group commit as the messages around it, so it is durable when its reply
goes out. The files are snapshots of the tables, written every few seconds. A journal generation names the
snapshot that it continues by the content of consumerOffset.json, which every broker rewrites all the time:
where another broker has used the directory meanwhile, our old entries do not apply any more and are left
out. Replaying an entry that a file already has changes nothing, so a crash at any point is harmless.

What Apache has no file for is saved beside the journal, before consumerOffset.json: then a crash in between
leaves the older snapshot in force, whose entries are all replayed.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.broker.settings import BrokerSettings
from penstock.store.config_files import ConfigFiles
from penstock.store.journal import DIRECTORY as OWN_DIRECTORY
from penstock.store.journal import Journal
from penstock.store.store import Store
from penstock.wire import dialect
from penstock.wire.bodies import DataVersion

log = logging.getLogger("penstock.broker")

FIRST_SAVE_MS = 10_000
PROMPT_SAVE_MS = 1_000
"""Changes of topics and groups are in their files this soon, for whoever opens the directory next."""
RETRY_MS = 1_000
SAVED_BYTES_PER_MS = 4_000
"""Large tables are saved less often: what changes in between is in the journal anyway."""
_PRETTY_BYTES = 1 << 20
"""Larger files are not indented: nobody reads them, and it costs time."""


class Kind(IntEnum):
    """Journal entry kinds. Numbers are on disk: never reuse one."""

    OFFSET = 1
    OFFSETS_DROPPED = 2
    TOPIC = 3
    TOPIC_DELETED = 4
    GROUP = 5
    GROUP_DELETED = 6
    FORBIDDEN = 7
    DELAY_PROGRESS = 8
    SNAPSHOT = 9
    """The first entry of a generation; it says nothing, but its position tells when the generation exists."""
    LEASED = 10
    LEASE_RELEASED = 11
    LEASE_CHANGED = 12
    LEASES_DROPPED = 13
    ORDER_INFO = 14
    REQUEST_MODE = 15


Note = Callable[[int, bytes], int]
"""Journals (kind, payload) and tells the position at which it will be durable."""


class Notes:
    """Journal entries that later requests rely on: lost with a failed flush, they are noted again.

    A topic made by a send that failed stays in memory, and the next send to it must not be confirmed
    before the topic is durable.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: deque[tuple[int, int, bytes]] = deque()

    def add(self, kind: int, payload: bytes) -> int:
        position = self._journal.append(kind, payload)
        self._waiting.append((position, kind, payload))
        return position

    def durable(self, position: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            waiting.popleft()

    def lost(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, kind, payload in waiting:
            self.add(kind, payload)


class ConfigTable(Protocol):
    """A table that is saved as one configuration file."""

    file_name: str
    prompt: bool
    """Whether a change should be in the file soon."""
    dirty: bool

    def load(self, saved: Mapping[str, Any]) -> None:
        """Raises ValueError and changes nothing if the content is not this table's."""

    def snapshot(self) -> dict[str, Any]: ...

    def replay(self, kind: int, payload: bytes) -> bool:
        """False for a kind that is not this table's."""


class OwnTable(Protocol):
    """A table that only this broker reads, in a form of its own."""

    file_name: str
    prompt: bool
    dirty: bool

    def load(self, saved: bytes) -> None:
        """Raises ValueError and changes nothing if the content is not this table's."""

    def snapshot(self) -> Iterator[bytes]:
        """In portions, each made quickly. What changes between two of them may be in it or not: the journal
        tells of it, and its entries are all replayed."""

    def replay(self, kind: int, payload: bytes) -> bool: ...


Table = ConfigTable | OwnTable


class Persistence:
    def __init__(
        self,
        store: Store,
        tables: Sequence[ConfigTable],
        settings: BrokerSettings,
        run_job: Callable[[Callable[[], None]], None],
        *,
        own_tables: Sequence[OwnTable] = (),
        now_ms: int,
    ) -> None:
        """Loads the tables. The last of them is the one whose file names the snapshot."""
        self._store = store
        self._own_files = ConfigFiles(store.disk, OWN_DIRECTORY)
        self._tables: Sequence[Table] = (*own_tables, *tables)
        self._saved_bytes = 0
        self._settings = settings
        self._run_job = run_job
        self._last_save_ms = now_ms + FIRST_SAVE_MS - settings.flush_consumer_offset_interval
        self._last_prompt_ms = now_ms - PROMPT_SAVE_MS
        self._save: _Save | None = None
        self._snapshot_id = ""
        for own in own_tables:
            self._own_files.load(own.file_name, own.load)
        for table in tables:
            self._snapshot_id = store.config.load(table.file_name, table_parser(table)) or ""
        entries = store.journal.replayed_for(self._snapshot_id)
        for kind, payload in entries:
            if kind != Kind.SNAPSHOT and not any(table.replay(kind, payload) for table in self._tables):
                log.warning("a journal entry of kind %d is not known to this version and was left out", kind)
        self._continued_at = store.journal.append(Kind.SNAPSHOT, b"")
        """Position at which the journal continues the newest snapshot. Until then no other may be taken:
        its generation would replace one that never existed, and the files on disk would have none."""
        self._behind = bool(entries)
        """Whether the files may be several generations old: then they must be new before one begins."""
        if self._behind:
            self._catch_up(now_ms)

    def tick(self, now_ms: int) -> None:
        if self._save is not None:
            if not self._save.started:
                self._prepare(self._save)
                return
            if not self._save.finished:
                return
            if self._save.error is not None:
                # Only this very snapshot may be tried again: the journal has moved on to continue it.
                if now_ms >= self._last_save_ms + RETRY_MS:
                    log.error("the tables could not be saved: %s", self._save.error)
                    self._last_save_ms = now_ms
                    self._start(self._save)
                return
            self._save = None
        if self._behind and now_ms >= self._last_save_ms + RETRY_MS:
            self._catch_up(now_ms)
        if self._behind or self._store.durable < self._continued_at:
            return
        dirty = [table for table in self._tables if table.dirty]
        rest_ms = self._saved_bytes // SAVED_BYTES_PER_MS
        interval_ms = max(self._settings.flush_consumer_offset_interval, rest_ms)
        prompt_ms = max(PROMPT_SAVE_MS, rest_ms)
        if dirty and (
            now_ms >= self._last_save_ms + interval_ms
            or (now_ms >= self._last_prompt_ms + prompt_ms and any(table.prompt for table in dirty))
        ):
            self._last_save_ms = max(self._last_save_ms, now_ms)
            self._last_prompt_ms = now_ms
            # Its files go out when the journal has all that they tell: a crash between two of them must not
            # leave one that is ahead of the others and of the journal.
            self._save = self._take(dirty)

    def _catch_up(self, now_ms: int) -> None:
        """Saves at once: so no entry comes between the snapshot and the generation that continues it."""
        save = self._render(self._tables)
        save.run()
        if save.error is not None:
            log.error("the tables could not be saved: %s", save.error)
            self._last_save_ms = now_ms
            return
        self._behind = False
        self._continue(save)

    def _take(self, tables: Sequence[Table]) -> _Save:
        save = self._render(tables)
        self._continue(save)
        return save

    def _render(self, tables: Sequence[Table]) -> _Save:
        """Tables of our own may be large and are not copied yet."""
        save = _Save()
        for table in tables:
            table.dirty = False
            content = table.snapshot()
            if isinstance(content, dict):
                data = render_config(content)
                save.files.append(_File(self._store.config, table.file_name, [data], iter(())))
            else:
                save.files.append(_File(self._own_files, table.file_name, [], content))
        return save

    def _continue(self, save: _Save) -> None:
        """The journal begins anew behind these files."""
        last = save.files[-1]
        if last.name == self._tables[-1].file_name:
            self._snapshot_id = snapshot_id(last.data)
        self._store.journal.restart(self._snapshot_id)
        self._continued_at = self._store.journal.append(Kind.SNAPSHOT, b"")

    def _prepare(self, save: _Save) -> None:
        """One portion more; then the journal must have all that was copied."""
        if not save.complete:
            save.copy_portion()
            if save.complete:
                self._saved_bytes = save.size
                self._continued_at = self._store.end
        if save.complete and self._store.durable >= self._continued_at:
            self._start(save)

    def _start(self, save: _Save) -> None:
        save.started = True
        save.finished = False
        self._run_job(save.run)

    def journal_lost(self) -> None:
        """Entries were cut off with a failed flush: what they said must reach the files instead."""
        for table in self._tables:
            table.dirty = True
        self._continued_at = self._store.journal.append(Kind.SNAPSHOT, b"")

    def close(self, now_ms: int) -> None:
        """Saves everything, here and now. No entry can follow, so the journal need not continue it.

        Where that fails, the files of the last snapshot and the journal still tell the whole story.
        """
        save = self._render(self._tables)
        save.run()
        if save.error is not None:
            log.error("the tables could not be saved: %s", save.error)


class _File(NamedTuple):
    folder: ConfigFiles
    name: str
    portions: list[bytes]
    rest: Iterator[bytes]
    """Portions that are yet to be copied."""

    @property
    def data(self) -> bytes:
        return b"".join(self.portions)


class _Save:
    """Files on their way to the disk, possibly on another thread."""

    def __init__(self) -> None:
        self.files: list[_File] = []
        self.complete = False
        self.started = False
        self.finished = False
        self.error: OSError | None = None

    @property
    def size(self) -> int:
        return sum(len(portion) for file in self.files for portion in file.portions)

    def copy_portion(self) -> None:
        for file in self.files:
            portion = next(file.rest, None)
            if portion is not None:
                file.portions.append(portion)
                return
        self.complete = True

    def run(self) -> None:
        try:
            for file in self.files:
                file.portions.extend(file.rest)
                file.folder.save(file.name, file.data)
            self.error = None
        except OSError as error:
            self.error = error
        finally:
            self.finished = True


def snapshot_id(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def table_parser(table: ConfigTable) -> Callable[[bytes], str]:
    """Loads a file's content into its table; tells the content's id."""

    def parse(data: bytes) -> str:
        content = read_object(data)
        try:
            table.load(content)
        except (msgspec.ValidationError, AttributeError, TypeError) as error:
            raise ValueError(str(error)) from None
        return snapshot_id(data)

    return parse


def read_object(data: bytes) -> dict[str, Any]:
    content = dialect.loads(data)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def render_config(value: Mapping[str, Any]) -> bytes:
    """Standard JSON: Apache's reader takes it, and so do people and their tools."""
    data = msgspec.json.encode(value)
    return msgspec.json.format(data, indent=1) if len(data) <= _PRETTY_BYTES else data


def read_version(saved: Mapping[str, Any], fallback: DataVersion) -> DataVersion:
    """The data version of a saved file; old files have none."""
    value = saved.get("dataVersion")
    return msgspec.convert(value, DataVersion, strict=False) if isinstance(value, dict) else fallback


def other_members(saved: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """Members of a file that are not ours; they are written back as they were."""
    return {key: value for key, value in saved.items() if key not in known}


def unknown_members(saved: Mapping[str, Any], known: type[msgspec.Struct]) -> dict[str, Any]:
    """The same for one entry of a table."""
    return other_members(saved, *(name for _, name in _field_names(known)))


def members(value: msgspec.Struct) -> dict[str, Any]:
    """Members that are not null under their wire names, defaults included, as Apache writes them."""
    shown = {}
    for attribute, name in _field_names(type(value)):
        content = getattr(value, attribute)
        if content is not None:
            shown[name] = members(content) if isinstance(content, msgspec.Struct) else content
    return shown


@functools.cache
def _field_names(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Attribute and wire name of each field. Remembered: asking costs more than the rest of a snapshot."""
    return [(field.name, field.encode_name) for field in msgspec.structs.fields(kind)]
