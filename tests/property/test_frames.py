"""Frames and headers under any input: a value, "need more" or one kind of error."""

from __future__ import annotations

import struct
from typing import get_args, get_type_hints

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import BadHeader, ProtocolError
from penstock.wire import headers
from penstock.wire.codes import Language
from penstock.wire.command import Command, decode_command, encode_command
from penstock.wire.dialect import DialectError, dumps, loads
from penstock.wire.frame import FrameDecoder, FrameError
from penstock.wire.headers import HeaderStruct, base

HEADER_TYPES = [
    getattr(headers, name) for name in headers.__all__ if name not in ("HeaderStruct", "RpcHeader")
]
I32 = st.integers(-(2**31), 2**31 - 1)
I16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
EXT = st.dictionaries(TEXT.filter(bool), TEXT, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | I32 | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def frames_of(decoder: FrameDecoder, data: bytes) -> tuple[list[bytes], bool]:
    try:
        return decoder.feed(data), False
    except FrameError as error:
        return error.frames, True


@given(st.lists(st.binary(max_size=40), max_size=6), st.binary(max_size=12), st.data())
def test_however_a_stream_is_cut_the_frames_are_the_same(
    contents: list[bytes], tail: bytes, data: st.DataObject
) -> None:
    stream = b"".join(struct.pack(">i", len(content)) + content for content in contents) + tail
    expected = frames_of(FrameDecoder(), stream)
    assert expected[0][: len(contents)] == contents
    decoder = FrameDecoder()
    frames: list[bytes] = []
    failed = False
    position = 0
    while position < len(stream) and not failed:
        step = data.draw(st.integers(1, max(1, len(stream) - position)))
        more, failed = frames_of(decoder, stream[position : position + step])
        frames += more
        position += step
    assert (frames, failed) == expected


@given(
    I16,
    I32,
    I32,
    I16,
    st.none() | TEXT,
    EXT,
    st.binary(max_size=50),
    st.booleans(),
    st.sampled_from(Language),
)
def test_any_command_survives_in_both_encodings(
    code: int,
    opaque: int,
    flag: int,
    version: int,
    remark: str | None,
    ext: dict[str, str],
    body: bytes,
    binary: bool,
    language: Language,
) -> None:
    frame = encode_command(
        code,
        opaque,
        flag=flag,
        version=version,
        remark=remark,
        ext=ext,
        body=body,
        binary=binary,
        language=language,
    )
    (content,) = FrameDecoder().feed(frame)
    command = decode_command(content)
    assert (command.code, command.opaque, command.flag, command.version) == (code, opaque, flag, version)
    assert command.language is language
    assert (command.remark or None) == (remark or None)
    assert command.ext == ext
    assert (command.body or b"") == body


def check_reading(command: Command) -> None:
    """Whatever was decoded, asking for its header gives one or a BadHeader."""
    for header_type in (headers.SendHeaderV2, headers.PullHeader, headers.RegisterBrokerHeader):
        try:
            header = command.header(header_type)
        except BadHeader:
            pass
        else:
            for value in header.to_ext().values():
                value.encode()
    try:
        ext = command.ext
    except BadHeader:
        return
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in ext.items())


@settings(max_examples=300)
@given(st.binary(max_size=120))
@example(b'\0\0\0\x20{"code":310,"extFields":{"a":"\xff"}}')
def test_any_bytes_are_a_command_or_a_protocol_error(frame: bytes) -> None:
    try:
        command = decode_command(frame)
    except ProtocolError:
        return
    check_reading(command)


@settings(max_examples=200)
@given(st.integers(0, 1), st.data())
def test_a_damaged_frame_is_a_command_or_a_protocol_error(binary: int, data: st.DataObject) -> None:
    ext = {
        "a": "g",
        "b": "topic",
        "c": "d",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": "x\x01y\x02",
    }
    frame = bytearray(encode_command(310, 1, ext=ext, body=b"body", binary=bool(binary))[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        command = decode_command(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
    except ProtocolError:
        return
    check_reading(command)


@settings(max_examples=200)
@given(JSON, st.sampled_from([10, 11, 105, 310, 320]))
def test_ext_fields_of_any_shape_are_read_or_refused(ext: object, code: int) -> None:
    head = b'{"code":%d,"extFields":%b}' % (code, dumps(ext))
    check_reading(decode_command(struct.pack(">i", len(head)) + head))


def values_for(annotation: object) -> st.SearchStrategy[object]:
    if annotation == base.I32:
        return I32
    if annotation == base.I64:
        return st.integers(-(2**63), 2**63 - 1)
    if isinstance(annotation, type):
        return {str: TEXT, bool: st.booleans()}[annotation]
    wanted, none = get_args(annotation)
    assert none is type(None)
    return st.none() | values_for(wanted)


def headers_of(header_type: type[HeaderStruct]) -> st.SearchStrategy[HeaderStruct]:
    hints = get_type_hints(header_type, include_extras=True)
    return st.builds(header_type, **{name: values_for(hints[name]) for name in header_type.__struct_fields__})


@settings(max_examples=200)
@given(st.sampled_from(HEADER_TYPES).flatmap(headers_of), st.booleans())
def test_every_header_survives_in_both_encodings(header: HeaderStruct, binary: bool) -> None:
    header_type = type(header)
    ext = header.to_ext()
    if binary and not all(ext.values()):
        return  # an empty value does not survive there
    command = decode_command(encode_command(310, 1, ext=header, binary=binary)[4:])
    assert command.ext == ext
    assert command.header(header_type) == header


@settings(max_examples=200)
@given(JSON)
def test_the_dialect_reads_what_it_writes(value: object) -> None:
    assert loads(dumps(value)) == without_null_members(value)
    assert loads(dumps({1: value})) == without_null_members({"1": value})


def without_null_members(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_null_members(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_null_members(item) for item in value]
    return value


@settings(max_examples=300)
@given(st.text(alphabet='{}[]:,"$ref.\\u01ae- \ntrue', max_size=60) | TEXT)
def test_any_text_is_a_value_or_a_dialect_error(text: str) -> None:
    try:
        loads(text)
    except DialectError:
        pass
