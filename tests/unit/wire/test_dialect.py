from __future__ import annotations

import json
import math
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.message.queue import MessageQueue
from penstock.wire.dialect import DialectError, ObjectKey, dumps, loads

QUEUE_TEXT = '{"brokerName":"b","queueId":0,"topic":"T"}'
QUEUE_KEY = ObjectKey.of({"topic": "T", "queueId": 0, "brokerName": "b"})

# ---- reading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{0:"x",1:"y"}}', {"a": {"0": "x", "1": "y"}}),
        ('{"a":{"0":"x"}}', {"a": {"0": "x"}}),
        (
            '{ -1 : [ 1 , 2.5 , -3e2 , true , false , null , "s" ] }',
            {"-1": [1, 2.5, -300.0, True, False, None, "s"]},
        ),
        (f'{{"t":{{{QUEUE_TEXT}:5}}}}', {"t": {QUEUE_KEY: 5}}),
        (
            f'{{{QUEUE_TEXT}:{{0:1}},{{"topic":"U"}}:2}}',
            {QUEUE_KEY: {"0": 1}, ObjectKey.of({"topic": "U"}): 2},
        ),
        ('{0:"\\u4e2d\\n\\/ é"}', {"0": "中\n/ é"}),
        ('{0:"\x01tab\t"}', {"0": "\x01tab\t"}),
        ("{0:{},1:[]}", {"0": {}, "1": []}),
        (" [ 1 ] ", [1]),
    ],
)
def test_the_dialect_is_read(text: str, value: Any) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
        ('[{"x":1},{"$ref":"$[0]"}]', [{"x": 1}, {"x": 1}]),
        ('{"a":[{"x":[7]}],"b":{"$ref":"$.a[0].x"}}', {"a": [{"x": [7]}], "b": [7]}),
        ('{"b":{"$ref":"$.a"},"a":{"$ref":"$.c"},"c":{}}', {"a": {}, "b": {}, "c": {}}),
        (
            '{"b":{"$ref":"$.a.x"},"a":{"$ref":"$.c"},"c":{"x":{"y":1}}}',
            {"b": {"y": 1}, "a": {"x": {"y": 1}}, "c": {"x": {"y": 1}}},
        ),
        ('{"t":{"a.b":{"x":1}},"r":{"$ref":"$.t.a\\\\.b"}}', {"t": {"a.b": {"x": 1}}, "r": {"x": 1}}),
        ('{"t":{3:{"x":1}},"r":{"$ref":"$.t[3]"}}', {"t": {"3": {"x": 1}}, "r": {"x": 1}}),
        ('{"a":{"$ref":"$.n","more":1}}', {"a": {"$ref": "$.n", "more": 1}}),
        (
            f'{{"mqPopTable":{{{QUEUE_TEXT}:1}},"mqTable":{{{{"$ref":"$.mqPopTable.null"}}:2}}}}',
            {"mqPopTable": {QUEUE_KEY: 1}, "mqTable": {QUEUE_KEY: 2}},
        ),
        (
            f'{{"t":{{{QUEUE_TEXT}:1}},"q":{{"$ref":"$.t.null"}}}}',
            {"t": {QUEUE_KEY: 1}, "q": {"brokerName": "b", "queueId": 0, "topic": "T"}},
        ),
        (f'{{"q":{QUEUE_TEXT},"t":{{{{"$ref":"$.q"}}:1}}}}', {"q": QUEUE_KEY.members(), "t": {QUEUE_KEY: 1}}),
    ],
)
def test_references_are_resolved(text: str, value: Any) -> None:
    assert loads(text) == value


def test_a_lone_surrogate_becomes_a_character_that_can_be_sent_on() -> None:
    assert loads('{0:"x\\ud800"}') == {"0": "x?"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"   ",
        b"{",
        b"{0",
        b"{0:",
        b"{0:1",
        b"{0:1,",
        b"{0:1,}",
        b"{0 1}",
        b"[1",
        b"[1,]",
        b"[1 2]",
        b"{0:1} x",
        b"{0:'x'}",
        b"{a:1}",
        b"{0:NaN}",
        b'{0:"\\q"}',
        b'{0:"open',
        b'{{"a":[1]}:1}',
        b"{0:\xff}",
        b"\xff",
        b"{" * 1000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":{"$ref":"$.a"}}',
        b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
        b'{"a":{"$ref":"$.b.x"},"b":{"$ref":"$.a.y"}}',
        b'{"a":{"b":{"$ref":"$"}}}',
        b'{"a":{"$ref":"$.nowhere"}}',
        b'{"a":{"$ref":"$[9]"}}',
        b'{"a":{"$ref":".."}}',
        b'{"a":{"$ref":"$a"}}',
        b'{"a":[1],"b":{{"$ref":"$.a"}:1}}',
    ],
)
def test_other_text_is_refused_with_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        loads(data)
    assert isinstance(caught.value, PenstockError)
    assert isinstance(caught.value, ValueError)


def test_references_cannot_blow_a_small_body_up() -> None:
    doubling = ",".join(f'"k{n}":[{{"$ref":"$.k{n - 1}"}},{{"$ref":"$.k{n - 1}"}}]' for n in range(1, 40))
    with pytest.raises(DialectError, match="too large"):
        loads('{"k0":[1],' + doubling + "}")


# ---- writing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": None, "c": [None, True]}, '{"b":1,"c":[null,true]}'),
        ({"t": {10: "x", 9: "y"}}, '{"t":{9:"y",10:"x"}}'),
        ({MessageQueue("T", "b", 0): {"x": 1}}, '{{"brokerName":"b","queueId":0,"topic":"T"}:{"x":1}}'),
        ([MessageQueue("T", "b", 0)], '[{"brokerName":"b","queueId":0,"topic":"T"}]'),
        ({QUEUE_KEY: 1}, '{{"brokerName":"b","queueId":0,"topic":"T"}:1}'),
        ({}, "{}"),
        ([], "[]"),
        ({"a": None}, "{}"),
        ({"text": 'a"\\\n\x01/é中'}, '{"text":"a\\"\\\\\\n\\u0001/é中"}'),
        ({"bits": b"\x01\x02"}, '{"bits":"AQI="}'),
        ({1: 1, "a": 2}, '{1:1,"a":2}'),
        ({"set": {5}}, '{"set":[5]}'),
    ],
)
def test_values_are_written_as_java_writes_them(value: Any, text: str) -> None:
    assert dumps(value).decode() == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (0.8, "0.8"),
        (0.020002400288034565, "0.020002400288034565"),
        (100.0, "100.0"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (1e10, "1.0E10"),
        (12345678.5, "1.23456785E7"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (-2.5e-10, "-2.5E-10"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (math.nan, "null"),
        (math.inf, "null"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert dumps(value).decode() == text
    if math.isfinite(value):
        assert float(text) == value


def test_standard_json_has_quoted_keys_and_only_ascii() -> None:
    text = dumps({0: "a/中\U0001f600\x7f", "é": 1}, int_keys_bare=False, ascii_only=True).decode()
    assert text == '{"0":"a\\/\\u4E2D\\uD83D\\uDE00\x7f","\\u00E9":1}'
    assert json.loads(text) == {"0": "a/中\U0001f600\x7f", "é": 1}


def test_a_value_that_has_no_form_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="object"):
        dumps({"a": object()})
