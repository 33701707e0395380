"""Property files as Java reads them."""

from __future__ import annotations

import pytest

from penstock.wire.properties_text import format_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=1\nb=2\n", {"a": "1", "b": "2"}),
        ("a = 1\r\nb:2\rc 3", {"a": "1", "b": "2", "c": "3"}),
        ("# note\n ! note\n\n  a=1", {"a": "1"}),
        ("a=one \\\n   two", {"a": "one two"}),
        ("a=ends\\\\\nb=2", {"a": "ends\\", "b": "2"}),
        ("a\\=b=c=d", {"a=b": "c=d"}),
        ("path=c:\\\\x\\ty", {"path": "c:\\x\ty"}),
        ("a=\\u4e2d", {"a": "中"}),
        ("key", {"key": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("a=cut\\", {"a": "cut"}),
        ("", {}),
    ],
)
def test_text_is_read_by_the_rules_of_java(text, properties):
    assert parse_properties(text) == properties


def test_settings_are_shown_sorted_one_to_a_line():
    assert format_properties({"b": "2 3", "a": "1"}) == "a=1\nb=2 3\n"
