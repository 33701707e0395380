from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument
from penstock.message.tags import parse_subscription, tag_code


def test_tag_codes_are_those_of_the_reference(table):
    for row in table("hashes")["strings"]:
        assert tag_code(row["text"]) == row["tagsCode"], row
    assert tag_code(None) == 0


def test_subscriptions_parse_as_in_java(table):
    for row in table("hashes")["subscriptions"]:
        expected = row["result"]
        if "error" in expected:
            with pytest.raises(InvalidArgument, match="no tag"):
                parse_subscription("T", row["expression"])
        else:
            subscription = parse_subscription("T", row["expression"])
            assert subscription.expression == expected["subString"]
            assert subscription.tags == set(expected["tagsSet"])
            assert subscription.codes == set(expected["codeSet"])


@pytest.mark.parametrize("expression", ["*", "", None])
def test_a_subscription_to_all_matches_everything(expression):
    subscription = parse_subscription("T", expression)
    assert subscription.matches_tag(None)
    assert subscription.matches_tag("a")
    assert subscription.matches_code(0)
    assert subscription.matches_code(17)


def test_a_subscription_to_tags_matches_those_only():
    subscription = parse_subscription("T", "Aa || b")
    assert subscription.matches_tag("Aa")
    assert not subscription.matches_tag("BB")
    assert not subscription.matches_tag(None)
    assert subscription.matches_code(tag_code("BB"))  # same code as Aa: the client looks again
    assert not subscription.matches_code(tag_code("c"))
    assert not subscription.matches_code(0)
