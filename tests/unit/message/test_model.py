from __future__ import annotations

import zlib

import pytest

from penstock.errors import CorruptRecord, IllegalName, InvalidArgument
from penstock.message.ids import pack_host
from penstock.message.model import Message, ReceivedMessage
from penstock.message.properties import Key
from penstock.message.queue import MessageQueue
from penstock.message.record import RecordView, encode_record
from penstock.message.sysflag import COMPRESSED, ZLIB


def received(*, body: bytes = b"hello", properties: bytes = b"", sys_flag: int = 0, v6: bool = False):
    data = encode_record(
        topic=b"%RETRY%g",
        queue_id=3,
        flag=5,
        queue_offset=42,
        physical_offset=1024,
        sys_flag=sys_flag,
        born_ms=1_000,
        born_host=pack_host("2001:db8::1" if v6 else "10.0.0.1", 54321),
        store_ms=2_000,
        store_host=pack_host("10.0.0.2", 10911),
        reconsume_times=2,
        prepared_offset=7,
        body=body,
        properties=properties,
    )
    return ReceivedMessage(RecordView(data), "broker-a")


def test_a_message_carries_tag_keys_and_delay_as_properties():
    message = Message(
        "orders", b"x", tag="paid", keys=["17", "18"], properties={"colour": "red"}, delay_level=3, flag=-1
    )
    assert message.properties == {
        "colour": "red",
        "TAGS": "paid",
        "KEYS": "17 18",
        "DELAY": "3",
        "WAIT": "true",
    }
    assert (message.topic, message.body, message.flag) == ("orders", b"x", -1)
    assert (message.tag, message.keys, message.delay_level) == ("paid", ["17", "18"], 3)
    assert message.user_properties == {"colour": "red"}
    assert message.message_id is None
    assert repr(message) == "<Message orders unsent: 1 bytes>"


def test_a_plain_message_has_nothing_of_these():
    message = Message("orders", bytearray(b"x"))
    assert message.properties == {"WAIT": "true"}
    assert (message.tag, message.keys, message.delay_level) == (None, [], 0)
    assert message.body == b"x"
    assert Message("orders", b"x", wait_stored=False).properties == {"WAIT": "false"}


def test_one_key_may_be_given_as_text():
    assert Message("orders", b"x", keys="17").keys == ["17"]


def test_times_of_delivery_become_timer_properties():
    assert Message("orders", b"x", delay_ms=1500).properties[Key.TIMER_DELAY_MS] == "1500"
    assert (
        Message("orders", b"x", deliver_at_ms=1_700_000_000_000).properties[Key.TIMER_DELIVER_MS]
        == "1700000000000"
    )


def test_the_properties_of_a_message_are_its_own():
    given = {"colour": "red"}
    message = Message("orders", b"x", properties=given)
    message.properties[Key.UNIQ_KEY] = "ID"
    assert given == {"colour": "red"}
    assert message.message_id == "ID"
    assert repr(message) == "<Message orders ID: 1 bytes>"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"body": "text"}, "must be bytes, not str"),
        ({"body": None}, "must be bytes, not NoneType"),
        ({"flag": 2**31}, "does not fit 32 bits"),
        ({"tag": " "}, "the tag must be text that is not blank"),
        ({"tag": "a\x02b"}, "separator"),
        ({"keys": ["a b"]}, "contains a blank"),
        ({"keys": "a b"}, "contains a blank"),
        ({"keys": [""]}, "the key must be text that is not blank"),
        ({"keys": [17]}, "the key must be text"),
        ({"properties": {"": "x"}}, "a property name must be"),
        ({"properties": {1: "x"}}, "a property name must be"),
        ({"properties": {"a": " "}}, "the property a must be text that is not blank"),
        ({"properties": {"a": 1}}, "the property a must be text"),
        ({"properties": {"a\x01": "x"}}, "separator"),
        ({"properties": {"a": "x\x02"}}, "separator"),
        ({"properties": {"TAGS": "x"}}, "TAGS is reserved"),
        ({"tag": "cut \ud83d"}, "the tag .* half of a surrogate pair"),
        ({"keys": ["\udcff"]}, "half of a surrogate pair"),
        ({"properties": {"a": "\udcff"}}, "the property a .* half of a surrogate pair"),
        ({"properties": {"\udcff": "a"}}, "half of a surrogate pair"),
        ({"topic": None}, "topic must be text, not None"),
        ({"delay_level": "3"}, "a whole number, not '3'"),
        ({"delay_level": -1}, "must not be negative"),
        ({"delay_level": 1, "delay_ms": 5}, "give one of"),
    ],
)
def test_what_is_not_allowed_is_refused_with_a_reason(arguments, text):
    with pytest.raises(InvalidArgument, match=text):
        Message(**{"topic": "orders", "body": b"x", **arguments})


def test_an_illegal_topic_is_refused():
    with pytest.raises(IllegalName, match="contains illegal characters"):
        Message("no blanks", b"x")


def test_a_received_message_shows_its_record():
    message = received(
        properties=b"TAGS\x01paid\x02KEYS\x01a b\x02UNIQ_KEY\x01UID\x02p\x01v\x02DELAY\x012\x02"
    )
    assert message.topic == "%RETRY%g"
    assert message.body == b"hello"
    assert message.queue == MessageQueue("%RETRY%g", "broker-a", 3)
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (3, 42, 1024)
    assert (message.born_ms, message.born_host) == (1_000, "10.0.0.1:54321")
    assert (message.store_ms, message.store_host) == (2_000, "10.0.0.2:10911")
    assert (message.flag, message.reconsume_times, message.prepared_offset) == (5, 2, 7)
    assert (message.tag, message.keys, message.delay_level) == ("paid", ["a", "b"], 2)
    assert message.user_properties == {"p": "v"}
    assert message.message_id == "UID"
    assert message.offset_message_id == "0A00000200002A9F0000000000000400"
    assert message.store_size == message.record.size


def test_without_a_unique_key_the_offset_id_is_the_id():
    assert received().message_id == "0A00000200002A9F0000000000000400"


def test_ipv6_hosts_are_shown_in_brackets():
    assert received(v6=True).born_host == "[2001:db8::1]:54321"


def test_a_compressed_body_is_shown_plain():
    message = received(body=zlib.compress(b"hello" * 100), sys_flag=COMPRESSED | ZLIB)
    assert message.body == b"hello" * 100
    assert message.body is message.body
    with pytest.raises(CorruptRecord):
        _ = received(body=b"not zlib", sys_flag=COMPRESSED | ZLIB).body


def test_properties_are_decoded_once():
    message = received(properties=b"a\x01b\x02")
    message.properties["MIN_OFFSET"] = "0"
    assert message.properties == {"a": "b", "MIN_OFFSET": "0"}


def test_a_client_may_restore_the_topic_while_the_queue_stays():
    message = received()
    message.topic = "orders"
    message.reconsume_times += 1
    assert message.topic == "orders"
    assert message.queue.topic == "%RETRY%g"
    assert message.reconsume_times == 3


def test_a_received_message_has_a_short_text():
    assert (
        repr(received(properties=b"UNIQ_KEY\x01UID\x02"))
        == "<ReceivedMessage UID from %RETRY%g broker-a 3, offset 42>"
    )


def test_messages_are_equal_by_identity_only():
    assert received() != received()
    assert Message("orders", b"x") != Message("orders", b"x")
