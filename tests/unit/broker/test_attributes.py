from __future__ import annotations

import pytest

from penstock.broker.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, merge, parse
from penstock.errors import InvalidArgument


def test_text_is_parsed_into_signed_changes() -> None:
    assert parse("+a=1, -b ,+c=x=y") == {"+a": "1", "-b": "", "+c": "x=y"}
    assert parse("") == parse(None) == {}


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("a=1", "add/alter attribute format is wrong: a"),
        ("+a", "add/alter attribute format is wrong: +a"),
        ("-a=1", "delete attribute format is wrong: -a=1"),
        ("+a=1,+a=2", "key duplication: +a"),
    ],
)
def test_text_that_is_no_change_is_refused(text: str, remark: str) -> None:
    with pytest.raises(InvalidArgument, match="^" + remark.replace("+", r"\+")):
        parse(text)


def test_changes_are_merged_into_what_is_there() -> None:
    stored = {"message.type": "NORMAL", "reserve.time": "5"}
    changes = {"+message.type": "FIFO", "-reserve.time": ""}
    assert merge(TOPIC_ATTRIBUTES, "topic", stored, changes) == {"message.type": "FIFO"}
    assert stored == {"message.type": "NORMAL", "reserve.time": "5"}


@pytest.mark.parametrize(
    ("stored", "changes", "remark"),
    [
        (None, {"+foo": "1"}, "unsupported key: foo"),
        (
            None,
            {"-message.type": ""},
            "only add attribute is supported while creating topic. key: message.type",
        ),
        ({}, {"-message.type": ""}, "attempt to delete a nonexistent key: message.type"),
        ({}, {"+queue.type": "SimpleCQ"}, "attempt to update an unchangeable attribute. key: queue.type"),
        ({}, {"message.type": "FIFO"}, "add/alter attribute format is wrong: message.type"),
        (
            {"message.type": "FIFO"},
            {"+message.type": "FIFO", "-message.type": ""},
            "alter duplication key. key: message.type",
        ),
        (None, {"+message.type": "ODD"}, "message.type=ODD: expected one of"),
        (None, {"+cleanup.policy": "COMPACTION"}, "cleanup.policy=COMPACTION: expected one of DELETE"),
        (None, {"+reserve.time": "-2"}, "reserve.time=-2: expected a number"),
        (None, {"+reserve.time": "9" * 30}, "expected a number"),
        (None, {"+reserve.time": "x"}, "expected a number"),
    ],
)
def test_changes_that_break_the_rules_are_refused(
    stored: dict[str, str] | None, changes: dict[str, str], remark: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        merge(TOPIC_ATTRIBUTES, "topic", stored, changes)
    assert remark in str(caught.value)


def test_an_unchangeable_attribute_may_be_repeated() -> None:
    stored = {"queue.type": "SimpleCQ"}
    assert merge(TOPIC_ATTRIBUTES, "topic", stored, {"+queue.type": "SimpleCQ"}) == stored


def test_groups_have_their_own_attributes() -> None:
    assert merge(GROUP_ATTRIBUTES, "group", None, {"+priority.factor": "50"}) == {"priority.factor": "50"}
    with pytest.raises(InvalidArgument):
        merge(GROUP_ATTRIBUTES, "group", None, {"+priority.factor": "101"})
