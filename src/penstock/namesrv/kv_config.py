"""Small shared settings by namespace and key, kept in one file. Order topics live here, too."""

from __future__ import annotations

from typing import Final, Protocol

from msgspec import field

from penstock.wire.bodies import Body

FILE_NAME: Final = "kvConfig.json"
ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""Namespace whose keys are topics and whose values say which brokers hold how many of their queues."""


class Files(Protocol):
    """Named files that are replaced whole."""

    def load(self, name: str) -> bytes | None: ...

    def save(self, name: str, data: bytes) -> None: ...


class _KvFile(Body):
    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KvConfig:
    def __init__(self, files: Files) -> None:
        self._files = files
        data = files.load(FILE_NAME)
        self._table = _KvFile.decode(data).config_table if data else {}

    def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value
        self._save()

    def delete(self, namespace: str, key: str) -> None:
        """The namespace stays, even without keys."""
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self._save()

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        return self._table.get(namespace)

    def _save(self) -> None:
        self._files.save(FILE_NAME, _KvFile(self._table).encode())
