"""The property text of a message: `name \\x01 value \\x02`, repeated.

Reading is forgiving, as the protocol is: pieces without a name, a separator or a value vanish, a
missing last terminator is allowed, and of two pieces with one name the later counts. `find_property`
and `drop_property` work on the text without taking it apart and agree with `decode_properties` exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import AnyStr, Final

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"

_LOST_SECTOR: Final = bytes(512)


class Key:
    """Names the protocol gives a meaning."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT: Final = "WAIT"
    DELAY: Final = "DELAY"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QID: Final = "REAL_QID"
    TRAN_MSG: Final = "TRAN_MSG"
    PGROUP: Final = "PGROUP"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    BUYER_ID: Final = "BUYER_ID"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG: Final = "TRANSFER_FLAG"
    CORRECTION_FLAG: Final = "CORRECTION_FLAG"
    MQ2_FLAG: Final = "MQ2_FLAG"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIME: Final = "CONSUME_START_TIME"
    MSG_REGION: Final = "MSG_REGION"
    TRACE_ON: Final = "TRACE_ON"
    UNIQ_KEY: Final = "UNIQ_KEY"
    EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
    POP_CK: Final = "POP_CK"
    POP_CK_OFFSET: Final = "POP_CK_OFFSET"
    FIRST_POP_TIME: Final = "1ST_POP_TIME"
    TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
    DUP_INFO: Final = "DUP_INFO"
    INSTANCE_ID: Final = "INSTANCE_ID"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    TTL: Final = "TTL"
    ARRIVE_TIME: Final = "ARRIVE_TIME"
    PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
    CLUSTER: Final = "CLUSTER"
    MSG_TYPE: Final = "MSG_TYPE"
    INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
    TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
    TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
    TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
    TIMER_OUT_MS: Final = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
    TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
    TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
    BORN_HOST: Final = "__BORNHOST"
    BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
    DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
    CRC32: Final = "__CRC32#"
    ORIGIN_GROUP: Final = "ORIGIN_GROUP"
    PRIORITY: Final = "_SYS_MSG_PRIORITY_"
    LITE_TOPIC: Final = "__LITE_TOPIC"

    # Known to the protocol, yet a user may set them.
    INNER_NUM: Final = "INNER_NUM"
    INNER_BASE: Final = "INNER_BASE"
    INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
    CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRANSACTION_ID: Final = "__transactionId__"
    TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
    SHARDING_KEY: Final = "__SHARDINGKEY"
    TRACE_CONTEXT: Final = "TRACE_CONTEXT"
    REDIRECT: Final = "REDIRECT"
    FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"


TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
"""Properties under this prefix live in one client only and are never stored."""

_SETTABLE: Final = frozenset(
    {
        Key.INNER_NUM,
        Key.INNER_BASE,
        Key.INNER_MULTI_DISPATCH,
        Key.CHECK_IMMUNITY_TIME_IN_SECONDS,
        Key.TRANSACTION_ID,
        Key.TRANSACTION_CHECK_TIMES,
        Key.SHARDING_KEY,
        Key.TRACE_CONTEXT,
        Key.REDIRECT,
        Key.FORWARD_QUEUE_ID,
    }
)

RESERVED: Final = frozenset(value for name, value in vars(Key).items() if name.isupper()) - _SETTABLE
"""Names a user may not set as a property."""


def encode_properties(properties: Mapping[str, str]) -> str:
    """The text form; names and values must be free of the separators (users' are checked by Message)."""
    text = ""
    for name, value in properties.items():  # a message has few of them: cheaper than a list and a join
        text += f"{name}\x01{value}\x02"
    return text


def decode_properties(text: str) -> dict[str, str]:
    """All properties of a text; never fails."""
    properties = {}
    for piece in text.split(VALUE_END):
        name, _, value = piece.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def find_property(text: str, key: str) -> str | None:
    """One property of a text, without decoding the others."""
    wanted = key + NAME_END
    position = text.rfind(wanted)
    if position < 0:
        return None
    if (position == 0 or text[position - 1] == VALUE_END) and VALUE_END not in key and NAME_END not in key:
        start = position + len(wanted)
        end = text.find(VALUE_END, start)
        if end > start and key:  # a whole piece with a name: what nearly every text has
            return text[start:end]
    return _find(text, key, NAME_END, VALUE_END)


def find_property_bytes(data: bytes, key: bytes) -> bytes | None:
    """As find_property, for text that is still UTF-8 bytes."""
    return _find(data, key, b"\x01", b"\x02")


def _find(text: AnyStr, key: AnyStr, name_end: AnyStr, value_end: AnyStr) -> AnyStr | None:
    wanted = key + name_end
    position = text.rfind(wanted)  # the last piece with a value counts, so search from the end
    while position >= 0:
        if position == 0 or text[position - 1 : position] == value_end:
            start = position + len(wanted)
            end = text.find(value_end, start)
            value = text[start:] if end < 0 else text[start:end]
            if value:
                # A key with a separator in it can match across pieces, and no piece has an empty name.
                # (find, because `in` is slow for bytes in bytes.)
                legal = key and key.find(name_end) < 0 and key.find(value_end) < 0
                return value if legal else None
        position = text.rfind(wanted, 0, position + len(wanted) - 1)
    return None


def add_property(text: str, key: str, value: str) -> str:
    """The text with one more piece, which counts whatever is there already."""
    end = "" if not text or text[-1] == VALUE_END else VALUE_END
    return f"{text}{end}{key}{NAME_END}{value}{VALUE_END}"


def drop_property(text: str, key: str) -> str:
    """The text without any piece of that name."""
    wanted = key + NAME_END
    if wanted not in text or VALUE_END in key or NAME_END in key:
        return text
    position = 0
    while position < len(text):
        end = text.find(VALUE_END, position) + 1 or len(text)
        if text.startswith(wanted, position):
            text = text[:position] + text[end:]
        else:
            position = end
    return text


def properties_damaged(buffer: bytes | memoryview, start: int, end: int) -> bool:
    """Whether stored property bytes show the zeros of a write that did not reach the disk whole.

    Zero bytes inside a value are legal, so only what a lost tail or a lost disk sector leaves behind counts.
    """
    if start == end:
        return False
    return buffer[end - 1] == 0 or (
        end - start >= len(_LOST_SECTOR) and _LOST_SECTOR in bytes(buffer[start:end])
    )
