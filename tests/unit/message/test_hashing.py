from __future__ import annotations

import pytest

from penstock.message.hashing import KeyHasher, extend_hash, java_hash, key_hash, slot_hash


def test_texts_hash_as_in_java(table):
    for row in table("hashes")["strings"]:
        assert java_hash(row["text"]) == row["hashCode"], row


def test_index_keys_hash_as_in_java(table):
    for row in table("hashes")["indexKeys"]:
        assert key_hash(row["key"]) == row["indexKeyHash"], row


def test_index_hash_is_never_negative():
    assert java_hash("polygenelubricants") == -(2**31)
    assert slot_hash(-(2**31)) == 0
    assert slot_hash(-5) == 5
    assert slot_hash(2**31 - 1) == 2**31 - 1


@pytest.mark.parametrize(
    "text", ["", "x", "TopicTest#k1", "名前😀", "a" * 512, "a" * 513, "é" * 6000, "z" * 9000]
)
@pytest.mark.parametrize("prefix", ["", "orders#", "名#"])
def test_a_hash_can_be_built_on_that_of_a_prefix(prefix, text):
    assert extend_hash(java_hash(prefix), text) == java_hash(prefix + text)


def test_lone_surrogates_hash_as_one_unit():
    assert java_hash("\ud83d") == 0xD83D


@pytest.mark.parametrize("topic", ["orders", "名", ""])
def test_a_stream_of_keys_hashes_as_each_key_alone(topic):
    hasher = KeyHasher()
    texts = [f"7F0000012F0C18B4AAC2{number:012X}" for number in range(0, 3 * KeyHasher.REMEMBERED, 7)]
    texts += ["", "x", "ab", "abc", "abcd", "名前😀", "a" * 511, "a" * 512, "a" * 513, "lygenelubricants"]
    for text in texts * 2:
        assert hasher.hash_all([topic], [text])[0] == key_hash(f"{topic}#{text}"), text


def test_the_one_hash_without_a_positive_twin_becomes_zero_in_a_stream_too():
    rest = (-(2**31) - java_hash("t#") * 31**7) % 2**32
    key = "".join(chr(rest // 31**power % 31) for power in range(6, -1, -1))
    assert java_hash("t#" + key) == -(2**31)
    assert KeyHasher().hash_all(["t"], [key]) == [0]


@pytest.mark.parametrize("topic", ["orders", "名"])
@pytest.mark.parametrize(
    "keys",
    [
        [b"7F0000012F0C18B4AAC2%012X" % number for number in range(4000, 4100)],
        [b"7F0000012F0C18B4AAC2%012X" % number for number in range(4090, 4100)],  # beyond three digits
        [b"abc001", b"abcabc002"],
        [b"abc001", b"abc02"],
        [b"abc001", "abc002"],
        ["abc001", "abc002"],
        [b"abc001", b"abc001abc002"],
        [b"abc001", b"abc002ab", b"c003"],
        [b"abc001", "abc\u00e902".encode()],
        [b"001", b"002"],
        [b"", b""],
    ],
)
def test_a_batch_hashes_as_its_keys_do(topic, keys):
    hasher = KeyHasher()
    hasher.hash_all([topic] * 3, [b"xyz001", b"xyz002", b"xyz003"])
    one_by_one = KeyHasher().hash_all([topic] * len(keys), keys)
    for _ in range(2):  # the second time all parts are known
        assert hasher.hash_batch(topic, keys) == one_by_one
