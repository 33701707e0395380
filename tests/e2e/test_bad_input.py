"""Whatever arrives on a connection, it harms that connection at most, and every request gets its answer."""

from __future__ import annotations

import json
import logging
import random
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import limits
from penstock.testing import RunningBroker, broker
from penstock.wire import headers
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command, decode_command, encode_command
from penstock.wire.frame import FrameDecoder

PAIRS = Path(__file__).parents[1] / "golden" / "wire"
ONEWAY = 2
BODY_LIMIT = 4 << 20
WAIT_S = 30.0


class Wire:
    """One plain connection."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
        self._decoder = FrameDecoder()
        self._answers: list[Command] = []

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # the other side may rightly have hung up in the middle

    def receive(self) -> Command | None:
        """The next answer; None when the other side closes."""
        while not self._answers:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._answers += [decode_command(frame) for frame in self._decoder.feed(data)]
        return self._answers.pop(0)

    def answer_to(self, opaque: int) -> Command:
        """Requests that the broker sends meanwhile are passed over."""
        while (command := self.receive()) is not None:
            if command.is_response and command.opaque == opaque:
                return command
        raise AssertionError("the connection was closed instead of an answer")

    def ask(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", **how: Any) -> Command:
        self.send(encode_command(code, 7, ext=ext, body=body, **how))
        return self.answer_to(7)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker() as running:
        yield running


@pytest.fixture(scope="module")
def neighbour(running: RunningBroker) -> Iterator[Wire]:
    """A connection that is there all the time and does nothing wrong."""
    with Wire(running.address) as wire:
        yield wire


@pytest.fixture
def wire(running: RunningBroker) -> Iterator[Wire]:
    with Wire(running.address) as wire:
        yield wire


@pytest.fixture(autouse=True)
def _unharmed(running: RunningBroker, neighbour: Wire, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After each test the broker serves others, and it saw no bug of its own."""
    yield
    serves(neighbour)
    assert bugs(caplog) == []


def serves(wire: Wire) -> None:
    sent = wire.ask(310, send_fields("good"), b"x")
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    offset = int(sent.ext["queueOffset"])
    assert wire.ask(11, pull_fields("good", offset)).code == ResponseCode.SUCCESS


def bugs(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Bad input of clients is not an error of the broker."""
    return [
        f"{record.getMessage()}: {record.exc_text or record.exc_info}"
        for record in caplog.records
        if record.levelno >= logging.ERROR
    ]


def send_fields(topic: str, **changes: str) -> dict[str, str]:
    values = ("p", topic, "TBW102", "4", "0", "0", "1", "0", "", "0", "false")
    return {**dict(zip("abcdefghijk", values, strict=True)), "m": "false", **changes}


def pull_fields(topic: str, offset: int = 0, **changes: str) -> dict[str, str]:
    fields = {"consumerGroup": "g", "topic": topic, "queueId": "0", "queueOffset": str(offset)}
    fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    return {**fields, "subscription": "*", "subVersion": "0", "expressionType": "TAG", **changes}


# ---- frames -----------------------------------------------------------------------------------------

GOOD = encode_command(RequestCode.GET_BROKER_CONFIG, 1)


def frame(head: bytes, kind: int = 0) -> bytes:
    return struct.pack(">ii", 4 + len(head), kind << 24 | len(head)) + head


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", limits.MAX_FRAME_BYTES) + b"x" * 100_000, id="oversized"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="as large as can be"),
        pytest.param(struct.pack(">i", -2), id="negative length"),
        pytest.param(struct.pack(">i", 0), id="empty"),
        pytest.param(struct.pack(">i", 3) + b"abc", id="shorter than a header length"),
        pytest.param(struct.pack(">ii", 20, 2_000) + b"x" * 16, id="header longer than the frame"),
        pytest.param(struct.pack(">ii", 20, -1) + b"x" * 16, id="negative header length"),
        pytest.param(frame(b""), id="empty header"),
        pytest.param(frame(b"{"), id="cut JSON"),
        pytest.param(frame(b"[" * 100_000), id="nested JSON"),
        pytest.param(frame(b"[1]"), id="JSON that is no object"),
        pytest.param(frame(b"{}"), id="no code"),
        pytest.param(frame(b'{"code":"send"}'), id="code that is no number"),
        pytest.param(frame(b'{"code":99999999999}'), id="code that is too large"),
        pytest.param(frame(b'{"code":28,"opaque":[]}'), id="opaque that is no number"),
        pytest.param(frame(b'{"code":28,"remark":"\xff"}'), id="not UTF-8"),
        pytest.param(frame(b'{"code":28,"extFields":{"a":"\\ud800"}}'), id="half a character"),
        pytest.param(frame(b"x" * 30, kind=1), id="binary header of nonsense"),
        pytest.param(frame(b"x", kind=1), id="binary header that is cut"),
        pytest.param(frame(b'{"code":28}', kind=3), id="unknown header encoding"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="another protocol"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS where there is none"),
    ],
)
def test_a_malformed_frame_closes_its_connection_after_the_requests_before_it(
    running: RunningBroker, data: bytes
) -> None:
    for address in (running.address, running.name_server):
        with Wire(address) as wire:
            wire.send(GOOD + data)
            answer = wire.receive()
            assert answer is not None
            assert answer.opaque == 1
            assert wire.receive() is None


@pytest.mark.parametrize("cut", [1, 3, 4, 7, 8, 40, -1])
def test_a_frame_that_is_cut_by_the_end_of_the_connection_is_forgotten(
    running: RunningBroker, cut: int
) -> None:
    topic = f"cut{cut}"
    with Wire(running.address) as wire:
        wire.send(GOOD + encode_command(310, 2, ext=send_fields(topic), body=b"x" * 100)[:cut])
        wire.socket.shutdown(socket.SHUT_WR)
        answer = wire.receive()
        assert answer is not None
        assert answer.opaque == 1
        assert wire.receive() is None
    with Wire(running.address) as wire:
        assert wire.ask(351, {"topic": topic}).code == ResponseCode.TOPIC_NOT_EXIST


def test_half_sent_frames_hold_up_nobody(running: RunningBroker, neighbour: Wire) -> None:
    large = struct.pack(">i", limits.MAX_FRAME_BYTES - 4)
    wires = [Wire(running.address) for _ in range(50)]
    for number, wire in enumerate(wires):
        wire.send(GOOD[: number % len(GOOD)] if number % 2 else large + b"x" * 1000)
    serves(neighbour)
    for wire in wires:
        wire.socket.close()


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_bytes_harm_only_their_connection(
    running: RunningBroker, neighbour: Wire, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["bytes", "frame", "json", "binary", "damaged"]))
    noise = data.draw(st.binary(max_size=200))
    if kind == "damaged":
        noise = bytearray(encode_command(310, 2, ext=send_fields("damaged"), body=b"x" * 20))
        for at, value in data.draw(
            st.lists(st.tuples(st.integers(0, len(noise) - 1), st.integers(0, 255)), max_size=4)
        ):
            noise[at] = value
    elif kind != "bytes":
        noise = struct.pack(">i", len(noise)) + noise if kind == "frame" else frame(noise, kind == "binary")
    caplog.clear()
    with Wire(data.draw(st.sampled_from([running.address, running.name_server]))) as wire:
        wire.send(GOOD + bytes(noise))
        wire.socket.shutdown(socket.SHUT_WR)
        while wire.receive() is not None:
            pass
    serves(neighbour)
    assert bugs(caplog) == []


# ---- requests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, -1, 9, 99_999, 2**31 - 1])
@pytest.mark.parametrize("where", ["address", "name_server"])
def test_an_unknown_request_code_is_named(running: RunningBroker, code: int, where: str) -> None:
    with Wire(getattr(running, where)) as wire:
        answer = wire.ask(code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert str(code) in (answer.remark or "")
        assert wire.ask(RequestCode.GET_BROKER_CONFIG).opaque == 7


HEADERS: dict[int, tuple[type[headers.HeaderStruct], dict[str, str]]] = {
    10: (
        headers.SendHeader,
        {"producerGroup": "p", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
        | {"queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "reconsumeTimes": "0"},
    ),
    310: (headers.SendHeaderV2, send_fields("t")),
    320: (headers.SendHeaderV2, send_fields("t", m="true")),
    11: (headers.PullHeader, pull_fields("t")),
    361: (headers.PullHeader, pull_fields("t")),
    12: (
        headers.QueryMessageHeader,
        {"topic": "t", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"},
    ),
    14: (headers.QueryConsumerOffsetHeader, {"consumerGroup": "g", "topic": "t", "queueId": "0"}),
    15: (
        headers.UpdateConsumerOffsetHeader,
        {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "0"},
    ),
    29: (headers.SearchOffsetByTimestampHeader, {"topic": "t", "queueId": "0", "timestamp": "0"}),
    30: (headers.GetMaxOffsetHeader, {"topic": "t", "queueId": "0"}),
    33: (headers.ViewMessageByIdHeader, {"offset": "0"}),
    36: (headers.ConsumerSendMsgBackHeader, {"offset": "0", "group": "g", "delayLevel": "0"}),
    321: (headers.QueryConsumeQueueHeader, {"topic": "t", "queueId": "0", "index": "0", "count": "1"}),
}


def faults() -> Iterator[Any]:
    """Every field that a request must have, left out; every number, ill-typed."""
    for code, (kind, fields) in HEADERS.items():
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            if field.required:
                yield pytest.param(
                    code, {k: v for k, v in fields.items() if k != name}, name, id=f"{code} no {name}"
                )
            if name in fields and fields[name].isdecimal():
                for value in ("many", "1.5", str(1 << 63), *[""] * field.required):
                    yield pytest.param(code, {**fields, name: value}, name, id=f"{code} {name}={value}")


@pytest.mark.parametrize(("code", "fields", "name"), list(faults()))
def test_a_missing_or_ill_typed_header_field_is_named(
    wire: Wire, code: int, fields: dict[str, str], name: str
) -> None:
    for binary in (False, True):
        answer = wire.ask(code, fields, b"x", binary=binary)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f'"{name}"' in (answer.remark or "")


@pytest.mark.parametrize("ext", ["1", "[]", '"x"', '{"queueId":{"a":[1]}}', '{"topic":null}'])
def test_ext_fields_of_another_kind_are_refused_by_an_answer(wire: Wire, ext: str) -> None:
    for code in HEADERS:
        wire.send(frame(b'{"code":%d,"opaque":9,"extFields":%b}' % (code, ext.encode())))
        answer = wire.answer_to(9)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../../etc", "a\0b", "ünïcode", "x" * 128, "a\nb", "{}"])
def test_an_illegal_topic_name_is_refused_and_creates_nothing(
    running: RunningBroker, wire: Wire, name: str
) -> None:
    answer = wire.ask(310, send_fields(name), b"x")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "topic" in (answer.remark or "").lower()
    fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
    fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
    assert wire.ask(17, fields).code != ResponseCode.SUCCESS
    assert wire.ask(11, pull_fields(name)).code == ResponseCode.TOPIC_NOT_EXIST
    assert not (running.data_dir / "consumequeue" / name).is_file()
    assert wire.ask(30, {"topic": name, "queueId": "0"}).ext["offset"] == "0"


@pytest.mark.parametrize("group", ["", "a b", "a/b", "x" * 300, "g\0"])
def test_an_illegal_group_name_is_refused(wire: Wire, group: str) -> None:
    body = json.dumps({"groupName": group}).encode()
    answer = wire.ask(200, None, body)
    assert answer.code != ResponseCode.SUCCESS
    assert "group" in (answer.remark or "").lower()
    answer = wire.ask(11, pull_fields("good", consumerGroup=group))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert group in (answer.remark or "")


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 50_000, b"{0:" * 50_000, b'{"a":' + b"9" * 100_000 + b"}"]
)
def test_a_body_of_endless_nesting_or_digits_is_refused_in_few_words(wire: Wire, body: bytes) -> None:
    for code in (25, 34, 41, 200):
        answer = wire.ask(code, None, body)
        assert answer.code != ResponseCode.SUCCESS
        assert 0 < len(answer.remark or "") < 2_100


def test_over_long_bodies_and_properties_are_refused_and_the_longest_are_taken(wire: Wire) -> None:
    assert wire.ask(310, send_fields("long"), b"x" * BODY_LIMIT).code == ResponseCode.SUCCESS
    for fields, body in (
        (send_fields("long"), b"x" * (BODY_LIMIT + 1)),
        (send_fields("long", i="k\x01" + "v" * 32_767), b"x"),
        (send_fields("long", i="k\x01" + "ü" * 16_400), b"x"),
    ):
        answer = wire.ask(310, fields, body)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "length" in (answer.remark or "")
    assert wire.ask(30, {"topic": "long", "queueId": "0"}).ext["offset"] == "1"


@pytest.mark.parametrize(
    "body",
    [b"x", b"\0\0\0\1", struct.pack(">iiiii", 24, 0, 0, 0, -1), struct.pack(">iiiii", 1 << 30, 0, 0, 0, 9)],
)
def test_a_damaged_batch_is_refused_as_a_whole(wire: Wire, body: bytes) -> None:
    answer = wire.ask(320, send_fields("batch", m="true"), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "batch" in (answer.remark or "")
    assert wire.ask(30, {"topic": "batch", "queueId": "0"}).ext["offset"] == "0"


def test_unknown_topics_and_queues_are_named(wire: Wire) -> None:
    serves(wire)
    unknown, nothing, queue = (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUCCESS,
        ResponseCode.INVALID_PARAMETER,
    )
    cases = [
        (310, send_fields("nowhere", c="no-pattern"), unknown, "nowhere"),
        (310, send_fields("good", e="99"), queue, "99"),
        (11, pull_fields("nowhere"), unknown, "nowhere"),
        (11, pull_fields("good", queueId="99"), queue, "99"),
        (11, pull_fields("good", queueId="-1"), queue, "-1"),
        (
            15,
            {"consumerGroup": "g", "topic": "nowhere", "queueId": "0", "commitOffset": "1"},
            unknown,
            "nowhere",
        ),
        (30, {"topic": "nowhere", "queueId": "5"}, nothing, ""),
    ]
    for code, fields, expected, text in cases:
        answer = wire.ask(code, fields, b"x")
        assert answer.code == expected, (code, fields, answer.remark)
        assert text in (answer.remark or "")


def test_a_pull_outside_a_queue_is_told_where_to_go_on(wire: Wire) -> None:
    for _ in range(3):
        assert wire.ask(310, send_fields("three"), b"x").code == ResponseCode.SUCCESS
    for offset, code, remark, following in (
        (3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        (4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (1 << 62, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (-(1 << 63), ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ):
        answer = wire.ask(11, pull_fields("three", offset))
        assert (answer.code, answer.remark) == (code, remark), offset
        assert answer.ext["nextBeginOffset"] == str(following)
    assert wire.ask(33, {"offset": "1"}).code == ResponseCode.SYSTEM_ERROR


# ---- anything ---------------------------------------------------------------------------------------

UNTOUCHED = {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.DELETE_TOPIC_IN_BROKER}
"""They may rightly switch off, or delete, what the others need."""
SUSPEND = 2


def recorded() -> dict[int, list[Command]]:
    """Requests of real clients, by code."""
    data = (PAIRS / "pairs.bin").read_bytes()
    found: dict[int, list[Command]] = {}
    for pair in json.loads((PAIRS / "pairs.json").read_text()):
        if pair["from"] == "client":
            start, size = pair["request"]["offset"], pair["request"]["size"]
            command = decode_command(data[start + 4 : start + size])
            found.setdefault(command.code, []).append(command)
    return found


RECORDED = recorded()
CODES = sorted({*RECORDED, *RequestCode} - UNTOUCHED)
NUMBERS = ("0", "1", "-1", "2", "32", "2147483647", "-2147483648", "9223372036854775807", "9" * 20, "1.5", "")
WORDS = (
    "good",
    "g",
    "TBW102",
    "*",
    "TAG",
    "SQL92",
    "true",
    "SCHEDULE_TOPIC_XXXX",
    "%RETRY%g",
    "%DLQ%g",
    "1@2;3",
)
ODD_WORDS = (
    "",
    " ",
    "../x",
    "a/b",
    "||",
    "a" * 300,
    "null",
    "a@b",
    "\x01\x02",
    "ü\0",
    "DELAY\x01x\x02",
    "KEYS\x01a b",
)
BODIES = (b"", b"{}", b"[]", b"null", b"1", b'"x"', b'{"table":1}', b'{"mqSet":[null]}', b"a=b\nc", b"\xff\0")


def header_fields(code: int) -> list[tuple[str, bool]]:
    """Names of the fields that a request of this code has, and whether they are numbers."""
    name = RequestCode(code).name.title().replace("_", "") if code in iter(RequestCode) else ""
    kind = HEADERS[code][0] if code in HEADERS else getattr(headers, f"{name}Header", None)
    if kind is None:
        return [("topic", False), ("group", False), ("consumerGroup", False), ("queueId", True)]
    return [(field.encode_name, "ge=" in str(field.type)) for field in msgspec.structs.fields(kind)]


def strange_request(code: int, rng: random.Random) -> tuple[dict[str, str], bytes]:
    """A recorded request with something changed, or one that is made up."""
    body = rng.choice(BODIES)
    if code in RECORDED and rng.random() < 0.5:
        original = rng.choice(RECORDED[code])
        fields, body = dict(original.ext), original.body or b""
        if body and rng.random() < 0.3:
            at = rng.randrange(len(body))
            body = body[:at] + rng.randbytes(rng.randint(0, 4)) + body[at + rng.randint(0, 4) :]
    else:
        names = header_fields(code)
        fields = {name: rng.choice(NUMBERS[:5] if number else WORDS) for name, number in names}
    for name in rng.sample(sorted(fields), min(len(fields), rng.randint(0, 3))):
        if rng.random() < 0.3:
            del fields[name]
        else:
            fields[name] = rng.choice((*NUMBERS, *WORDS, *ODD_WORDS))
    return fields, body


def waits(code: int, fields: dict[str, str]) -> bool:
    """Whether the request is a pull that may rightly wait for messages."""
    flags = fields.get("sysFlag", "0")
    return code in (11, 361) and flags.lstrip("+-").isdecimal() and bool(int(flags) & SUSPEND)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**64), server=st.sampled_from(["address", "address", "name_server"]))
def test_any_request_is_answered_once_and_breaks_nothing(
    running: RunningBroker, caplog: pytest.LogCaptureFixture, seed: int, server: str
) -> None:
    """One of each code, asked for an answer and then as a oneway request."""
    rng = random.Random(seed)
    frames, unanswered = [], {}
    for code in CODES:
        fields, body = strange_request(code, rng)
        binary = code < 32_768 and rng.random() < 0.5
        frames.append(encode_command(code, code, ext=fields, body=body, binary=binary))
        frames.append(encode_command(code, -code, ext=fields, body=body, flag=ONEWAY))
        if not waits(code, fields):
            unanswered[code] = (fields, body)
    caplog.clear()
    with Wire(getattr(running, server)) as wire:
        wire.send(b"".join(frames))
        try:
            while unanswered:
                command = wire.receive()
                assert command is not None, "the connection was closed"
                if command.is_response:
                    assert command.opaque > 0, f"an answer to oneway request {-command.opaque}"
                    unanswered.pop(command.opaque, None)
        except TimeoutError:
            raise AssertionError(f"no answer to {unanswered}") from None
    assert bugs(caplog) == []
