"""The head of an answer to a pull, in one step: consumers that catch up ask for many thousands a second."""

from __future__ import annotations

from typing import Final

from penstock.wire.codes import PROTOCOL_VERSION, Language
from penstock.wire.command import RESPONSE_FLAG, framed

_TEMPLATE: Final = (
    b'{"code":%%d,"extFields":{"suggestWhichBrokerId":"%%d","nextBeginOffset":"%%d","minOffset":"%%d",'
    b'"maxOffset":"%%d","topicSysFlag":"%%d","groupSysFlag":"%%d"},"flag":%d,"language":"%b","opaque":%%d,'
    b'"remark":"%%b","serializeTypeCurrentRPC":"JSON","version":%d}'
    % (RESPONSE_FLAG, Language.PYTHON.name.encode(), PROTOCOL_VERSION)
)


def write_pull_reply_head(
    opaque: int,
    code: int,
    status: str,
    broker_id: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    topic_sys_flag: int,
    group_sys_flag: int,
    body_size: int,
) -> bytes:
    """Like `encode_head` with a PullResponseHeader and a status name for a remark, as a JSON header."""
    head = _TEMPLATE % (
        code,
        broker_id,
        next_offset,
        min_offset,
        max_offset,
        topic_sys_flag,
        group_sys_flag,
        opaque,
        status.encode(),
    )
    return framed(head, body_size, 0)
