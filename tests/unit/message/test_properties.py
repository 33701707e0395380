from __future__ import annotations

import pytest

from penstock.message.properties import (
    RESERVED,
    Key,
    decode_properties,
    drop_property,
    encode_properties,
    find_property,
    find_property_bytes,
    properties_damaged,
)


def test_properties_encode_as_in_java(table):
    for row in table("properties")["encode"]:
        properties = {name: value for name, value in row["properties"].items() if value is not None}
        assert encode_properties(properties) == row["encoded"], row


def test_properties_decode_as_in_java(table):
    for row in table("properties")["decode"]:
        assert decode_properties(row["text"] or "") == row["decoded"], row


def test_properties_are_dropped_as_in_java(table):
    for row in table("properties")["delete"]:
        assert drop_property(row["text"], row["name"]) == row["result"], row


def test_reserved_names_are_those_of_the_reference(table):
    assert sorted(RESERVED) == table("properties")["reservedNames"]


def test_names_that_users_may_set_are_not_reserved():
    assert Key.SHARDING_KEY not in RESERVED
    assert Key.TRANSACTION_ID not in RESERVED


def test_of_two_pieces_with_one_name_the_last_with_a_value_counts():
    assert find_property("a\x011\x02a\x012\x02a\x01\x02", "a") == "2"


def test_a_name_is_found_only_as_a_whole():
    text = "xTAGS\x01wrong\x02b\x01TAGS\x01wrong\x02TAGS\x01right"
    assert find_property(text, "TAGS") == "right"
    assert find_property_bytes(text.encode(), b"TAGS") == b"right"
    assert find_property_bytes(text.encode(), b"AGS") is None


@pytest.mark.parametrize("key", ["", "a\x01b", "b\x02c", "\x02"])
def test_a_key_that_no_piece_can_have_is_not_found(key):
    text = "\x01v\x02a\x01b\x01v\x02c\x01v\x02"
    assert find_property(text, key) is None
    assert decode_properties(drop_property(text, key)) == decode_properties(text)


def test_a_lost_tail_or_sector_shows_as_damage_but_a_zero_in_a_value_does_not():
    whole = b"a\x01x\0y\x02b\x01" + b"z" * 2000 + b"\x02"
    assert not properties_damaged(whole, 0, len(whole))
    assert not properties_damaged(b"", 0, 0)
    assert properties_damaged(whole[:-20] + bytes(20), 0, len(whole))
    assert properties_damaged(whole[:600] + bytes(512) + whole[1112:], 0, len(whole))
