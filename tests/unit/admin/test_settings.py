from __future__ import annotations

import pytest

from penstock.admin.topics import TopicSettings, is_internal, parse_perm, perm_text, update_header
from penstock.errors import IllegalName, InvalidArgument
from penstock.wire.bodies import TopicConfig


def test_a_new_topic_takes_the_defaults() -> None:
    config = TopicSettings(perm=4).applied_to(None, "orders")
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (8, 8, 4)


def test_what_is_not_said_stays_as_it_is() -> None:
    stored = TopicConfig("orders", 3, 4, 6, "MULTI_TAG", 1, True, {"message.type": "FIFO"})
    changed = TopicSettings(read_queues=5).applied_to(stored, "orders")
    assert changed == TopicConfig("orders", 5, 4, 6, "MULTI_TAG", 1, True, {"message.type": "FIFO"})


def test_an_illegal_name_is_found_before_anything_is_sent() -> None:
    with pytest.raises(IllegalName):
        TopicSettings().applied_to(None, "no good")


def test_attribute_changes_become_signed_text() -> None:
    header = update_header(TopicConfig("orders"), {"+a": "1", "-b": ""})
    assert header.attributes == "+a=1,-b"


@pytest.mark.parametrize(("perm", "text"), [(0, "---"), (2, "-W-"), (6, "RW-"), (7, "RWX")])
def test_permissions_as_text(perm: int, text: str) -> None:
    assert perm_text(perm) == text
    assert parse_perm(text) == parse_perm(text.lower()) == parse_perm(str(perm)) == perm


@pytest.mark.parametrize("text", ["", "8", "RR", "Q", "rw x", "-1"])
def test_what_is_no_permission(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_perm(text)


@pytest.mark.parametrize(
    ("name", "internal"),
    [("orders", False), ("%RETRY%g", True), ("%DLQ%g", True), ("b", True), ("c_REPLY_TOPIC", True)],
)
def test_topics_that_brokers_made(name: str, internal: bool) -> None:
    assert is_internal(name, {"b", "c"}) is internal
