from __future__ import annotations

from penstock.wire.acl import sign, signature


def test_the_documented_signature_is_computed() -> None:
    ext = {"topic": "TopicTest", "a": "1", "Zed": "z"}
    sign(ext, b"body", "rocketmq2", "12345678")
    assert ext["AccessKey"] == "rocketmq2"
    assert ext["Signature"] == "7bKwPiGB1xMJGSnHARI3LF9NGp0="


def test_signing_again_gives_the_same_signature() -> None:
    ext = {"topic": "T"}
    sign(ext, None, "key", "secret", token="token")
    first = ext["Signature"]
    sign(ext, None, "key", "secret", token="token")
    assert ext["Signature"] == first
    assert ext["SecurityToken"] == "token"


def test_keys_are_ordered_by_utf16_units() -> None:
    # U+FF5E comes after U+1F600 there, because the latter begins with the unit D83D
    assert signature({"\uff5e": "b", "\U0001f600": "a"}, None, "s") == signature({"x": "ab"}, None, "s")
