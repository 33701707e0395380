"""Users and access control lists."""

from __future__ import annotations

from msgspec import field

from penstock.wire.bodies.base import Body, Part


class UserInfo(Body):
    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class AclEntry(Part):
    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class AclPolicy(Part):
    policy_type: str | None = None
    entries: list[AclEntry] | None = None


class AclInfo(Body):
    subject: str | None = None
    policies: list[AclPolicy] = field(default_factory=list)
