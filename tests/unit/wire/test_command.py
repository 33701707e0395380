from __future__ import annotations

import json
import struct

import pytest

from penstock.errors import BadHeader, InvalidArgument, MessageTooLarge, ProtocolError
from penstock.wire.codes import PROTOCOL_VERSION, Language, RequestCode, ResponseCode
from penstock.wire.command import (
    ONEWAY_FLAG,
    Command,
    decode_command,
    encode_command,
    encode_head,
    encode_request,
    encode_response,
    encode_response_head,
)
from penstock.wire.headers import (
    GetRouteinfoByTopicHeader,
    PullHeader,
    SendHeader,
    SendHeaderV2,
    SendResponseHeader,
)
from penstock.wire.headers.base import HeaderStruct

ROUTE_JSON = bytes.fromhex(
    "0000008700000083"
    "7b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f70696354657374227d2c22666c6167223a30"
    "2c226c616e6775616765223a224a415641222c226f7061717565223a312c2273657269616c697a655479706543757272656e74525043"
    "223a224a534f4e222c2276657273696f6e223a3437397d"
)
ROUTE_BINARY = bytes.fromhex(
    "0000002d 01000029 0069 00 01df 00000001 00000000 00000000"
    "00000014 0005 746f706963 00000009 546f70696354657374"
)
EMPTY_RESPONSE = bytes.fromhex("00000019 01000015 0000 00 01df 00000007 00000001 00000000 00000000")

SEND = SendHeaderV2(
    "group", "topic", "TBW102", 4, 1, 0, 1_794_793_096_452, 7, "KEYS\x01k\x02", 0, False, None, False
)


def json_frame(text: str | bytes, body: bytes = b"") -> bytes:
    head = text.encode() if isinstance(text, str) else text
    return struct.pack(">i", len(head)) + head + body


@pytest.mark.parametrize(("frame", "binary"), [(ROUTE_JSON, False), (ROUTE_BINARY, True)])
def test_the_documented_route_request_is_read_and_written(frame: bytes, binary: bool) -> None:
    command = decode_command(frame[4:])
    assert (command.code, command.version, command.opaque, command.flag) == (105, 479, 1, 0)
    assert command.language is Language.JAVA
    assert command.binary is binary
    assert command.body is None
    assert command.header(GetRouteinfoByTopicHeader).topic == "TopicTest"
    again = encode_command(
        105, 1, ext={"topic": "TopicTest"}, binary=binary, language=Language.JAVA, version=479
    )
    assert again == frame


def test_the_documented_binary_response_is_written() -> None:
    frame = encode_command(0, 7, flag=1, binary=True, language=Language.JAVA, version=479)
    assert frame == EMPTY_RESPONSE
    assert decode_command(frame[4:]).is_response


@pytest.mark.parametrize("binary", [False, True])
def test_everything_that_was_encoded_is_decoded(binary: bool) -> None:
    ext = {"plain": "1", "text": 'quote " slash \\ newline \n and 中文 \x01\x02'}
    frame = encode_command(
        310, -5, flag=ONEWAY_FLAG, remark="日本 \t", ext=ext, body=b"\0body", binary=binary, version=99
    )
    command = decode_command(memoryview(frame)[4:])
    assert (command.code, command.opaque, command.version) == (310, -5, 99)
    assert command.is_oneway
    assert not command.is_response
    assert command.remark == "日本 \t"
    assert command.ext == ext
    assert command.body == b"\0body"
    assert command.language is Language.PYTHON


@pytest.mark.parametrize("code", [310, 320, 325])
@pytest.mark.parametrize("binary", [False, True])
def test_a_send_header_survives_in_both_encodings(code: int, binary: bool) -> None:
    command = decode_command(encode_command(code, 1, ext=SEND, body=b"x", binary=binary)[4:])
    assert command.header(SendHeaderV2) == SEND
    assert command.ext == SEND.to_ext()


def test_the_head_and_the_body_make_the_whole_frame() -> None:
    whole = encode_command(11, 3, ext={"a": "b"}, body=b"body")
    assert encode_head(11, 3, ext={"a": "b"}, body_size=4) + b"body" == whole


@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_has_the_opaque_and_the_encoding_of_its_request(binary: bool) -> None:
    request = decode_command(encode_command(11, 77, binary=binary)[4:])
    frame = encode_response(request, ResponseCode.PULL_NOT_FOUND, "nothing", {"minOffset": "0"}, b"abc")
    answer = decode_command(frame[4:])
    assert (answer.code, answer.opaque, answer.flag, answer.remark) == (19, 77, 1, "nothing")
    assert (answer.binary, answer.version, answer.language) == (binary, PROTOCOL_VERSION, Language.PYTHON)
    assert answer.ext == {"minOffset": "0"}
    assert answer.body == b"abc"
    general = encode_command(
        19, 77, flag=1, remark="nothing", ext={"minOffset": "0"}, body=b"abc", binary=binary
    )
    assert frame == general
    assert encode_response_head(request, 19, "nothing", {"minOffset": "0"}, 3) + b"abc" == frame


def test_a_json_header_has_its_keys_in_alphabetical_order() -> None:
    frame = encode_command(105, 1, remark="r", ext={"topic": "T"}, language=Language.JAVA, version=479)
    assert frame[8:] == (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":1,"remark":"r",'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )


# ---- tolerance -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ('"GO"', Language.GO),
        ("9", Language.GO),
        ('"9"', Language.OTHER),
        ('"KLINGON"', Language.OTHER),
        ("99", Language.OTHER),
        ("null", Language.OTHER),
    ],
)
def test_the_language_may_be_a_name_a_number_or_unknown(language: str, expected: Language) -> None:
    assert decode_command(json_frame(f'{{"code":1,"language":{language}}}')).language is expected


def test_a_binary_header_may_have_an_unknown_language() -> None:
    frame = bytearray(ROUTE_BINARY[4:])
    frame[6] = 200
    assert decode_command(bytes(frame)).language is Language.OTHER


def test_numbers_may_come_as_strings_and_unknown_keys_are_ignored() -> None:
    command = decode_command(
        json_frame(
            '{ "code" : "105", "opaque":"7","flag":"1","version":"500","zzz":[1,{"a":null}],"extFields":{}}'
        )
    )
    assert (command.code, command.opaque, command.flag, command.version) == (105, 7, 1, 500)


@pytest.mark.parametrize("text", ['{"code":1}', '{"code":1,"extFields":null}', '{"code":1,"extFields":{}}'])
def test_ext_fields_may_be_missing_null_or_empty(text: str) -> None:
    command = decode_command(json_frame(text))
    assert command.ext == {}
    with pytest.raises(BadHeader, match="topic"):
        command.header(GetRouteinfoByTopicHeader)


@pytest.mark.parametrize("code", [10, 310, 11])
def test_ext_values_of_other_types_become_text_and_null_is_absent(code: int) -> None:
    text = '{"i":3,"f":1.50,"b":true,"n":null,"o":{"x":[1]},"big":123456789012345678901234567890,"s":"t"}'
    ext = decode_command(json_frame(f'{{"code":{code},"extFields":{text}}}')).ext
    assert ext == {
        "i": "3",
        "f": "1.50",
        "b": "true",
        "o": '{"x":["1"]}',
        "big": "123456789012345678901234567890",
        "s": "t",
    }


def test_typed_fields_accept_other_types_too() -> None:
    head = (
        '{"code":310,"extFields":{"a":17,"b":"topic","c":"d","d":4,"e":"+1","f":0,"g":"1","h":0,"i":null,'
        '"j":null,"k":"no","m":"TRUE","unknown":[1]}}'
    )
    header = decode_command(json_frame(head)).header(SendHeaderV2)
    assert header == SendHeaderV2("17", "topic", "d", 4, 1, 0, 1, 0, batch=True)


def test_an_empty_value_in_a_binary_header_counts_as_missing() -> None:
    frame = encode_command(310, 1, ext=SEND.to_ext() | {"i": ""}, binary=True)
    command = decode_command(frame[4:])
    assert command.ext["i"] == ""
    assert command.header(SendHeaderV2).properties is None


def test_the_last_of_two_equal_keys_wins_in_a_binary_header() -> None:
    entry = struct.pack(">h1si1s", 1, b"k", 1, b"1") + struct.pack(">h1si1s", 1, b"k", 1, b"2")
    head = struct.pack(">hBhiiii", 1, 0, 0, 0, 0, 0, len(entry)) + entry
    assert decode_command(struct.pack(">i", 1 << 24 | len(head)) + head).ext == {"k": "2"}


def test_a_binary_code_is_a_signed_short() -> None:
    frame = encode_command(-1000, 1, binary=True)
    assert decode_command(frame[4:]).code == -1000


def test_a_peer_cannot_plant_ext_fields_past_the_header() -> None:
    head = b'{"code":310,"extFields":{"a":"x"},"!ext":{"AccessKey":"admin"}}'
    with pytest.raises(ProtocolError):
        decode_command(json_frame(head))


@pytest.mark.parametrize("code", [105, 310])
def test_names_of_our_own_in_a_header_change_nothing_of_it(code: int) -> None:
    frame = encode_command(code, 1, ext={**SEND.to_ext(), "topic": "T"})
    planted = frame[8:-1] + b',"!head":"Ym9vbQ==","!binary":true}'
    command = decode_command(json_frame(planted))
    assert command.header(GetRouteinfoByTopicHeader).topic == "T"
    assert command.header(SendHeaderV2) == SEND
    assert command.ext["topic"] == "T"


@pytest.mark.parametrize("fields", ['"nextBeginOffset":"5"', '"msgId":"A","queueId":"1","queueOffset":"7"'])
def test_an_answer_that_begins_like_a_sends_may_be_any(fields: str) -> None:
    head = '{"code":0,"extFields":{"MSG_REGION":"r",' + fields + '},"flag":1,"opaque":3}'
    command = decode_command(json_frame(head))
    expected = {"MSG_REGION": "r"} | json.loads("{" + fields + "}")
    assert (command.code, command.opaque, command.ext) == (0, 3, expected)
    if "msgId" in expected:
        assert command.header(SendResponseHeader) == SendResponseHeader("A", 1, 7, region="r")
    else:
        assert bad(command, SendResponseHeader).field == "msgId"


def test_a_header_of_another_type_can_be_asked_for() -> None:
    command = decode_command(encode_command(310, 1, ext=SEND)[4:])
    with pytest.raises(BadHeader, match="producerGroup"):
        command.header(SendHeader)
    command = decode_command(encode_command(310, 1, ext={**SEND.to_ext(), "topic": "T"})[4:])
    assert command.header(GetRouteinfoByTopicHeader).topic == "T"


# ---- refusal -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\5{}",
        b"\2\0\0\2{}",
        b"\xff\0\0\2{}",
        json_frame(""),
        json_frame("{"),
        json_frame("[]"),
        json_frame("null"),
        json_frame("{}"),
        json_frame('{"code":null}'),
        json_frame('{"code":"x"}'),
        json_frame('{"code":NaN}'),
        json_frame('{"code":1,"opaque":2147483648}'),
        json_frame('{"code":1,"remark":"\\ud800"}'),
        json_frame(b'{"code":1,"remark":"\xff"}'),
        json_frame('{"code":310,"extFields":{"a":' + "[" * 100_000),
        json_frame('{"code":310,"extFields":' + "[" * 100_000 + "]" * 100_000 + "}"),
        json_frame('{"code":1,"zzz":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}"),
        b"\1\0\0\x14" + bytes(20),
        b"\1\0\0\x15" + bytes(13) + b"\0\0\0\1" + bytes(4),
        b"\1\0\0\x15" + bytes(13) + b"\xff\xff\xff\xff" + bytes(4),
        b"\1\0\0\x15" + bytes(17) + b"\0\0\0\1",
        b"\1\0\0\x16" + bytes(17) + b"\0\0\0\1" + b"k",
        b"\1\0\0\x1b" + bytes(17) + b"\0\0\0\6" + b"\0\7" + bytes(4),
        b"\1\0\0\x1c" + bytes(17) + b"\0\0\0\7" + b"\0\1k\0\0\0\7",
        b"\1\0\0\x1d" + bytes(17) + b"\0\0\0\x08" + b"\0\1k\0\0\0\1\xff",
    ],
)
def test_bytes_that_are_no_header_are_a_protocol_error(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(frame)


@pytest.mark.parametrize("ext", [b"[1]", b'"text"', b"7", b'{"topic":"\xff"}', b'{"topic":1e999}'])
def test_ext_fields_that_cannot_be_read_are_a_bad_header_or_text(ext: bytes) -> None:
    command = decode_command(json_frame(b'{"code":105,"extFields":' + ext + b"}"))
    if b"1e999" in ext:
        assert command.header(GetRouteinfoByTopicHeader).topic == "1e999"
    else:
        with pytest.raises(BadHeader, match="extFields"):
            command.header(GetRouteinfoByTopicHeader)


def test_a_frame_over_the_limit_is_not_encoded() -> None:
    with pytest.raises(MessageTooLarge):
        encode_head(310, 1, body_size=16 * 1024 * 1024)


def test_a_code_that_a_binary_header_would_cut_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="200050"):
        encode_command(RequestCode.POP_MESSAGE, 1, binary=True)


def bad(command: Command, header_type: type[HeaderStruct]) -> BadHeader:
    with pytest.raises(BadHeader) as caught:
        command.header(header_type)
    return caught.value


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("e", "abc", ["queueId", "32-bit", "'abc'"]),
        ("e", "1.5", ["queueId", "32-bit"]),
        ("e", "2147483648", ["queueId", "32-bit"]),
        ("e", " 1", ["queueId"]),
        ("e", "\u0661", ["queueId"]),
        ("g", "9223372036854775808", ["bornTimestamp", "64-bit"]),
        ("g", "9" * 5000, ["bornTimestamp", "64-bit"]),
        ("l", "x", ["maxReconsumeTimes"]),
    ],
)
def test_a_bad_number_is_named_with_what_was_expected(
    binary: bool, field: str, value: str, words: list[str]
) -> None:
    command = decode_command(encode_command(310, 1, ext=SEND.to_ext() | {field: value}, binary=binary)[4:])
    error = bad(command, SendHeaderV2)
    assert error.field == field
    assert len(str(error)) < 300
    for word in words:
        assert word in str(error)


@pytest.mark.parametrize("field", ["a", "b", "c", "d", "e", "f", "g", "h"])
def test_a_missing_field_is_named(field: str) -> None:
    ext = SEND.to_ext()
    del ext[field]
    error = bad(decode_command(encode_command(310, 1, ext=ext)[4:]), SendHeaderV2)
    assert error.field == field
    assert "missing" in str(error)


def test_an_empty_number_in_a_json_header_is_a_bad_header() -> None:
    ext = {"consumerGroup": "g", "topic": "t", "queueId": ""}
    assert bad(decode_command(encode_command(11, 1, ext=ext)[4:]), PullHeader).field == "queueId"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("TRUE", True),
        ("false", False),
        ("yes", False),
        ("", False),
        ("0", False),
        ("1", True),
    ],
)
def test_a_flag_is_true_in_any_case_and_as_1_which_java_peers_take_for_false(
    text: str, expected: bool
) -> None:
    for code in (310, 325):
        command = decode_command(encode_command(code, 1, ext=SEND.to_ext() | {"m": text})[4:])
        assert command.header(SendHeaderV2).batch is expected


@pytest.mark.parametrize("text", ["5.0", "5e0"])
def test_a_whole_number_written_as_a_fraction_is_taken_which_java_peers_refuse(text: str) -> None:
    command = decode_command(encode_command(310, 1, ext=SEND.to_ext() | {"e": text})[4:])
    assert command.header(SendHeaderV2).queue_id == 5


@pytest.mark.parametrize("header", [SEND, {"topic": '100 % "north"'}, {}])
@pytest.mark.parametrize("body", [b"", b"body", memoryview(b"body")])
def test_the_quick_request_is_the_general_one_byte_for_byte(header, body):
    assert encode_request(310, 77, 2, header, body) == encode_command(310, 77, flag=2, ext=header, body=body)


def test_the_quick_request_has_the_same_limit():
    with pytest.raises(MessageTooLarge):
        encode_request(310, 1, 0, {}, memoryview(bytes(16 * 1024 * 1024)))
