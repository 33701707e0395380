"""Signing a request with an access key."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, MutableMapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"


def sign(
    ext: MutableMapping[str, str],
    body: bytes | memoryview | None,
    access_key: str,
    secret_key: str,
    token: str | None = None,
) -> None:
    """Add credentials and signature to the ext fields; nothing may be added to them afterwards."""
    ext[ACCESS_KEY] = access_key
    if token is not None:
        ext[SECURITY_TOKEN] = token
    ext[SIGNATURE] = signature(ext, body, secret_key)


def signature(ext: Mapping[str, str], body: bytes | memoryview | None, secret_key: str) -> str:
    """The signature over all ext fields, in Java's order of their keys, and the body."""
    keys = sorted((key for key in ext if key != SIGNATURE), key=lambda key: key.encode("utf-16-be"))
    digest = hmac.new(secret_key.encode(), digestmod=hashlib.sha1)
    digest.update("".join(ext[key] for key in keys).encode())
    if body:
        digest.update(body)
    return base64.b64encode(digest.digest()).decode()
