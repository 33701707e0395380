"""Hooks that the client itself hangs on every request: namespace, stream marker, signature."""

from __future__ import annotations

from penstock.client.config import ClientSettings
from penstock.transport.client import RpcHook
from penstock.wire.acl import sign
from penstock.wire.command import Command


class _Marks:
    """Fields that every request of a client carries."""

    def __init__(self, fields: dict[str, str]) -> None:
        self._fields = fields

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes | memoryview) -> None:
        ext.update(self._fields)

    def after_response(self, address: str, code: int, ext: dict[str, str], response: Command) -> None:
        return


class AclHook:
    """Signs requests with an access key and its secret."""

    def __init__(self, access_key: str, secret_key: str, security_token: str = "") -> None:
        self._access_key = access_key
        self._secret_key = secret_key
        self._security_token = security_token

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes | memoryview) -> None:
        sign(ext, bytes(body), self._access_key, self._secret_key, self._security_token or None)

    def after_response(self, address: str, code: int, ext: dict[str, str], response: Command) -> None:
        return


def hooks_for(settings: ClientSettings, *, stream: bool) -> list[RpcHook]:
    """The signature comes last: it covers every field."""
    hooks: list[RpcHook] = []
    marks: dict[str, str] = {}
    if settings.namespace:
        marks |= {"nsd": "true", "ns": settings.namespace}
    if stream:
        marks["ReqT"] = "0"
    if marks:
        hooks.append(_Marks(marks))
    hooks += settings.rpc_hooks
    if settings.access_key:
        hooks.append(AclHook(settings.access_key, settings.secret_key, settings.security_token))
    return hooks
