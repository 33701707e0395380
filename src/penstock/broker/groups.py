"""Subscription groups: their settings, their creation on first use, and what they may not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock import limits
from penstock.broker.persistence import Kind, Note, members, other_members, read_version, unknown_members
from penstock.broker.settings import BrokerSettings
from penstock.errors import IllegalName
from penstock.message.names import check_group, is_system_group
from penstock.wire.bodies import DataVersion, SubscriptionGroupConfig

PREDEFINED = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
TOOLS_GROUP = "TOOLS_CONSUMER"
FORBID_PULL = 4
"""Bit of the forbidden table that stops a group from pulling a topic."""


class Groups:
    """name → SubscriptionGroupConfig. Configs are never changed in place: a change is a new object."""

    file_name = "subscriptionGroup.json"
    prompt = True

    def __init__(self, settings: BrokerSettings, note: Note, *, now_ms: int) -> None:
        self.table: dict[str, SubscriptionGroupConfig] = {
            name: SubscriptionGroupConfig(group_name=name) for name in PREDEFINED
        }
        self.forbidden: dict[str, dict[str, int]] = {}
        self.data_version = DataVersion(timestamp=now_ms)
        self.dirty = False
        self._settings = settings
        self._note = note
        self._unknown: dict[str, dict[str, Any]] = {}
        self._other_members: dict[str, Any] = {}

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """A plain look: creates nothing."""
        return self.table.get(name)

    def find(self, name: str, now_ms: int) -> SubscriptionGroupConfig | None:
        """The lookup of pulls, heartbeats and send-backs: an unknown group is created where allowed."""
        config = self.table.get(name)
        if config is not None:
            return config
        if not (self._settings.auto_create_subscription_group or is_system_group(name)):
            return None
        if len(self.table) >= limits.GROUPS_PER_BROKER:
            return None
        try:
            check_group(name)
        except IllegalName:
            return None
        config = SubscriptionGroupConfig(group_name=name)
        self.put(config, now_ms)
        return config

    def put(self, config: SubscriptionGroupConfig, now_ms: int) -> int:
        """Creates or replaces; tells the journal position at which that is durable."""
        self.table[config.group_name] = config
        self._touch(now_ms)
        return self._note(Kind.GROUP, msgspec.json.encode(members(config)))

    def delete(self, name: str, now_ms: int) -> int | None:
        """The journal position, or None if there was no such group. Its forbidden entries go too."""
        forbidden = self.forbidden.pop(name, None)
        if self.table.pop(name, None) is None and forbidden is None:
            return None
        self._unknown.pop(name, None)
        self._touch(now_ms)
        return self._note(Kind.GROUP_DELETED, name.encode())

    def forbidden_bits(self, group: str, topic: str) -> int:
        topics = self.forbidden.get(group)
        return topics.get(topic, 0) if topics else 0

    def set_forbidden(self, group: str, topic: str, bits: int, now_ms: int) -> int:
        """Only this topic's entry changes; tells the journal position."""
        self._set_forbidden(group, topic, bits)
        self._touch(now_ms)
        return self._note(Kind.FORBIDDEN, msgspec.json.encode((group, topic, bits)))

    def _set_forbidden(self, group: str, topic: str, bits: int) -> None:
        topics = self.forbidden.setdefault(group, {})
        if bits:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
            if not topics:
                del self.forbidden[group]

    def _touch(self, now_ms: int) -> None:
        self.data_version = self.data_version.next(now_ms)
        self.dirty = True

    # ---- the file -------------------------------------------------------------------------------

    def load(self, saved: Mapping[str, Any]) -> None:
        entries = saved.get("subscriptionGroupTable") or {}
        configs = {
            name: msgspec.convert({**entry, "groupName": name}, SubscriptionGroupConfig, strict=False)
            for name, entry in entries.items()
        }
        forbidden = {
            group: {topic: int(bits) for topic, bits in topics.items()}
            for group, topics in (saved.get("forbiddenTable") or {}).items()
        }
        self.data_version = read_version(saved, self.data_version)
        self.table.update(configs)
        self.forbidden = forbidden
        unknown = {name: unknown_members(entry, SubscriptionGroupConfig) for name, entry in entries.items()}
        self._unknown = {name: found for name, found in unknown.items() if found}
        self._other_members = other_members(saved, "dataVersion", "subscriptionGroupTable", "forbiddenTable")

    def snapshot(self) -> dict[str, Any]:
        return {
            **self._other_members,
            "dataVersion": self.data_version,
            "forbiddenTable": self.forbidden,
            "subscriptionGroupTable": {
                name: {**self._unknown.get(name, {}), **members(config)}
                for name, config in self.table.items()
            },
        }

    def replay(self, kind: int, payload: bytes) -> bool:
        if kind == Kind.GROUP:
            config = msgspec.json.decode(payload, type=SubscriptionGroupConfig, strict=False)
            self.table[config.group_name] = config
        elif kind == Kind.GROUP_DELETED:
            self.table.pop(payload.decode(), None)
            self.forbidden.pop(payload.decode(), None)
        elif kind == Kind.FORBIDDEN:
            self._set_forbidden(*msgspec.json.decode(payload, type=tuple[str, str, int]))
        else:
            return False
        self.data_version = self.data_version.next(self.data_version.timestamp)
        self.dirty = True
        return True
