"""One request or response: decoding a frame, typed access to its header, and encoding.

Decoding is the hottest path of a server. A JSON header is decoded by msgspec straight into the Command, whose
ext fields stay raw until somebody wants them as a typed header (one more pass, no dictionary) or as a
dictionary. For the busiest requests the typed header comes out of the same pass.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Raw, field

from penstock.errors import BadHeader, InvalidArgument, MessageTooLarge, ProtocolError
from penstock.limits import MAX_FRAME_BYTES
from penstock.wire.codes import PROTOCOL_VERSION, Language
from penstock.wire.headers.base import I32, H, HeaderStruct, codec_of
from penstock.wire.headers.consume import PullHeader
from penstock.wire.headers.send import SendHeaderV2, SendResponseHeader

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

Ext = Mapping[str, str] | HeaderStruct

_NO_EXT: Final = Raw(b"{}")
_TWO_INTS: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_BINARY_HEAD: Final = struct.Struct(">hBhii")
_LANGUAGES: Final[Mapping[str | int | None, Language]] = {
    **{language.name: language for language in Language},
    **{language.value: language for language in Language},
}
_LANGUAGE_NAMES: Final = {language: language.name.encode() for language in Language}
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)  # all that msgspec may raise
_quote: Final = msgspec.json.Encoder().encode


class ExtFields(dict[str, str]):
    """A class of our own, so that no JSON value can pass for the decoded ext fields of a Command."""

    __slots__ = ()


class Command(msgspec.Struct, kw_only=True, gc=False):
    """A decoded frame. JSON headers are decoded straight into it, hence the wire names.

    Names with a "!" are not of the protocol: a peer that used them could only change how itself is answered.
    """

    code: I32
    version: I32 = 0
    opaque: I32 = 0
    flag: I32 = 0
    remark: str | None = None
    body: bytes | None = field(default=None, name="!body")
    binary: bool = field(default=False, name="!binary")
    raw_language: str | int | None = field(default=None, name="language")
    raw_ext: Raw = field(default=_NO_EXT, name="extFields")
    known_ext: ExtFields | None = field(default=None, name="!ext")
    one_pass_head: ClassVar[bytes | None] = None

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY_FLAG != 0

    @property
    def language(self) -> Language:
        """Language of the sender; one we do not know counts as OTHER."""
        return _LANGUAGES.get(self.raw_language, Language.OTHER)

    @property
    def ext(self) -> dict[str, str]:
        """All ext fields; raises BadHeader if they cannot be read."""
        ext = self.known_ext
        if ext is None:
            head = self.one_pass_head
            ext = self.known_ext = _read_ext(self.raw_ext if head is None else _decode_any(head).raw_ext)
        return ext

    def header(self, header_type: type[H]) -> H:
        """The ext fields as a typed header; raises BadHeader naming the field that is missing or wrong."""
        raw: Any = self.raw_ext
        if type(raw) is header_type:
            return raw
        codec = codec_of(header_type)
        if self.binary:
            # a binary header cannot tell an empty value from a missing one; readers take it for missing
            return codec.from_ext({key: value for key, value in self.ext.items() if value})
        if self.one_pass_head is not None:
            return codec.from_ext(self.ext)
        try:
            return codec.decode(raw)
        except _UNREADABLE:
            return codec.from_ext(self.ext)


def _read_ext(raw: Raw) -> ExtFields:
    """Values that are not strings become text; null means absent."""
    try:
        return ExtFields(_decode_ext(raw))
    except _UNREADABLE:
        pass
    try:
        value = json.loads(bytes(raw), parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        raise BadHeader("extFields", "extFields cannot be read") from None
    if value is None:
        return ExtFields()
    if not isinstance(value, dict):
        raise BadHeader("extFields", "extFields must be an object")
    return ExtFields(
        (key, item if isinstance(item, str) else json.dumps(item, separators=(",", ":"), ensure_ascii=False))
        for key, item in value.items()
        if item is not None
    )


_decode_ext: Final = msgspec.json.Decoder(dict[str, str]).decode
_read_word: Final = _INT.unpack_from
_decode_any: Final = msgspec.json.Decoder(Command, strict=False).decode


def _one_pass(header_type: type[HeaderStruct]) -> Callable[[bytes], Any]:
    """A decoder of Commands whose raw_ext is the typed header at once."""
    ext = ("raw_ext", header_type, field(name="extFields"))
    head = ("one_pass_head", bytes | None, field(default=None, name="!head"))  # set after decoding, always
    command_type = msgspec.defstruct("Command", [ext, head], bases=(Command,), kw_only=True, gc=False)
    return msgspec.json.Decoder(command_type, strict=False).decode


_PREFIX: Final = 12
_ONE_PASS: Final[Mapping[bytes, Callable[[bytes], Any]]] = {
    b'{"code":310,': _one_pass(SendHeaderV2),
    b'{"code":320,': _one_pass(SendHeaderV2),
    b'{"code":11,"': _one_pass(PullHeader),
}
"""By the first bytes of a header as Java clients write it; other spellings take the general way."""
_SEND_REPLY: Final = b'{"code":0,"extFields":{"MSG_REGION":'
"""What no other answer begins with, and a send's answer as `SendReplyWriter` writes it."""
_decode_send_reply: Final = _one_pass(SendResponseHeader)


def decode_command(frame: bytes | bytearray | memoryview) -> Command:
    """Decode a frame without its length field; raises ProtocolError and nothing else."""
    if type(frame) is not bytes:
        return _decode_collected(frame)
    size = len(frame)
    if size < 4:
        raise ProtocolError(f"frame of {size} bytes has no header")
    word: int = _read_word(frame)[0]
    if 0 <= word <= size - 4:  # the encoding in the top byte is 0, and the header fits
        end = word + 4
        head = frame[4:end]
        decode = _ONE_PASS.get(head[:_PREFIX])
        if decode is None and head.startswith(_SEND_REPLY):
            decode = _decode_send_reply
        try:
            if decode is None:
                command = _decode_any(head)
            else:
                try:
                    command = decode(head)
                    command.one_pass_head = head
                except msgspec.ValidationError:
                    command = _decode_any(head)  # header() will find the field to blame
        except _UNREADABLE as error:
            raise ProtocolError(f"JSON header cannot be read: {error}") from None
    else:
        end = (word & 0xFFFFFF) + 4
        if end > size:
            raise ProtocolError(f"header of {end - 4} bytes does not fit in a frame of {size}")
        if word >> 24 != 1:
            raise ProtocolError(f"unknown header encoding {word >> 24 & 0xFF}")
        command = _decode_binary(frame[4:end])
    if end < size:
        command.body = frame[end:]
    return command


def _decode_collected(frame: bytes | bytearray | memoryview) -> Command:
    """One that came in pieces, so it may be large: its body is copied just once."""
    end = (_read_word(frame)[0] & 0xFFFFFF) + 4 if len(frame) >= 4 else 0
    with memoryview(frame) as view:
        command = decode_command(bytes(view[:end]))
        if end < len(view):
            command.body = bytes(view[end:])
    return command


def _decode_binary(head: bytes) -> Command:
    size = len(head)
    if size < 21:
        raise ProtocolError(f"binary header of {size} bytes is too short")
    code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(head)
    (remark_size,) = _INT.unpack_from(head, 13)
    remark_end = 17 + remark_size
    if remark_size < 0 or remark_end + 4 > size:
        raise ProtocolError(f"remark of {remark_size} bytes does not fit in a header of {size}")
    (ext_size,) = _INT.unpack_from(head, remark_end)
    position = remark_end + 4
    end = position + ext_size
    if ext_size < 0 or end > size:
        raise ProtocolError(f"ext fields of {ext_size} bytes do not fit in a header of {size}")
    try:
        remark = head[17:remark_end].decode() if remark_size else None
        ext = _decode_binary_ext(head, position, end)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"binary header is not UTF-8: {error}") from None
    return Command(
        code=code,
        version=version,
        opaque=opaque,
        flag=flag,
        remark=remark,
        binary=True,
        raw_language=language,
        known_ext=ext,
    )


def _decode_binary_ext(head: bytes, position: int, end: int) -> ExtFields:
    """A later duplicate of a key wins."""
    ext = ExtFields()
    while position < end:
        if position + 2 > end:
            raise ProtocolError("ext field is cut off in its key length")
        (key_size,) = _SHORT.unpack_from(head, position)
        value_at = position + 2 + key_size
        if key_size < 0 or value_at + 4 > end:
            raise ProtocolError(f"ext key of {key_size} bytes does not fit")
        (value_size,) = _INT.unpack_from(head, value_at)
        value_end = value_at + 4 + value_size
        if value_size < 0 or value_end > end:
            raise ProtocolError(f"ext value of {value_size} bytes does not fit")
        if key_size:
            ext[head[position + 2 : value_at].decode()] = head[value_at + 4 : value_end].decode()
        position = value_end
    return ext


def encode_head(
    code: int,
    opaque: int,
    *,
    flag: int = 0,
    remark: str | None = None,
    ext: Ext | None = None,
    body_size: int = 0,
    binary: bool = False,
    language: Language = Language.PYTHON,
    version: int = PROTOCOL_VERSION,
) -> bytes:
    """A frame up to its body, for bodies that are sent without copying."""
    if binary:
        return framed(_encode_binary(code, opaque, flag, remark, ext, language, version), body_size, 1)
    head = (
        b'{"code":%d%b,"flag":%d,"language":"%b","opaque":%d%b,"serializeTypeCurrentRPC":"JSON","version":%d}'
        % (
            code,
            b"" if ext is None else b',"extFields":' + _encode_json_ext(ext),
            flag,
            _LANGUAGE_NAMES[language],
            opaque,
            b"" if remark is None else b',"remark":' + _quote(remark),
            version,
        )
    )
    return framed(head, body_size, 0)


def _too_large(length: int) -> MessageTooLarge:
    return MessageTooLarge(f"a frame of {length + 4} bytes is over the limit of {MAX_FRAME_BYTES}")


def framed(head: bytes, body_size: int, encoding: int) -> bytes:
    """An encoded header with the two lengths before it; `encoding` is 0 for JSON and 1 for binary."""
    size = len(head)
    length = 4 + size + body_size
    if length > MAX_FRAME_BYTES - 4:
        raise _too_large(length)
    return _TWO_INTS.pack(length, encoding << 24 | size) + head


_REQUEST: Final = (
    b'{"code":%%d,"extFields":%%b,"flag":%%d,"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON",'
    b'"version":%d}' % PROTOCOL_VERSION
)


def encode_request(code: int, opaque: int, flag: int, header: Ext, body: bytes | memoryview) -> bytes:
    """As `encode_command`, in fewer steps, for what a client sends most: a request with a header."""
    head = _REQUEST % (code, _encode_json_ext(header), flag, opaque)
    size = len(head)
    length = 4 + size + len(body)
    if length > MAX_FRAME_BYTES - 4:
        raise _too_large(length)
    return b"".join((_TWO_INTS.pack(length, size), head, body))


def encode_command(
    code: int,
    opaque: int,
    *,
    flag: int = 0,
    remark: str | None = None,
    ext: Ext | None = None,
    body: bytes | memoryview = b"",
    binary: bool = False,
    language: Language = Language.PYTHON,
    version: int = PROTOCOL_VERSION,
) -> bytes:
    """A whole frame with its length field."""
    head = encode_head(
        code,
        opaque,
        flag=flag,
        remark=remark,
        ext=ext,
        body_size=len(body),
        binary=binary,
        language=language,
        version=version,
    )
    return b"".join((head, body)) if body else head


_RESPONSE: Final = (
    b'{"code":%%d%%b,"flag":%d,"language":"PYTHON","opaque":%%d%%b,"serializeTypeCurrentRPC":"JSON","version":%d}'
    % (RESPONSE_FLAG, PROTOCOL_VERSION)
)


def encode_response_head(
    request: Command, code: int, remark: str | None = None, ext: Ext | None = None, body_size: int = 0
) -> bytes:
    """An answer up to its body, in the encoding that the request used."""
    if request.binary:
        return encode_head(
            code, request.opaque, flag=RESPONSE_FLAG, remark=remark, ext=ext, body_size=body_size, binary=True
        )
    head = _RESPONSE % (
        code,
        b"" if ext is None else b',"extFields":' + _encode_json_ext(ext),
        request.opaque,
        b"" if remark is None else b',"remark":' + _quote(remark),
    )
    return framed(head, body_size, 0)


def encode_response(
    request: Command,
    code: int,
    remark: str | None = None,
    ext: Ext | None = None,
    body: bytes | memoryview = b"",
) -> bytes:
    """A whole answer."""
    head = encode_response_head(request, code, remark, ext, len(body))
    return b"".join((head, body)) if body else head


def _encode_json_ext(ext: Ext) -> bytes:
    return ext.json_ext() if isinstance(ext, HeaderStruct) else _quote(ext)


def _encode_binary(
    code: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext: Ext | None,
    language: Language,
    version: int,
) -> bytes:
    fields = ext.to_ext() if isinstance(ext, HeaderStruct) else ext or {}
    parts: list[bytes] = []
    try:
        for key, value in fields.items():
            raw_key = key.encode()
            raw_value = value.encode()
            parts += (_SHORT.pack(len(raw_key)), raw_key, _INT.pack(len(raw_value)), raw_value)
        raw_ext = b"".join(parts)
        raw_remark = remark.encode() if remark else b""
        return b"".join(
            (
                _BINARY_HEAD.pack(code, language, version, opaque, flag),
                _INT.pack(len(raw_remark)),
                raw_remark,
                _INT.pack(len(raw_ext)),
                raw_ext,
            )
        )
    except struct.error as error:
        raise InvalidArgument(f"code {code} cannot travel in a binary header: {error}") from None
