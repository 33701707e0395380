from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.scenario(1)
@pytest.mark.behaviour("POP-8")
def test_a_pop_gives_messages_with_handles(pops: Any) -> None:
    pops.send(10)
    answer = pops.pop()
    assert answer.code == 0
    assert answer.command.remark == "FOUND"
    assert answer.ext["startOffsetInfo"] == "0 0 0"
    assert answer.ext["msgOffsetInfo"] == "0 0 0,1,2,3,4,5,6,7,8,9"
    assert answer.ext["reviveQid"] == "0"
    assert answer.ext["restNum"] == "0"
    assert answer.bodies == [b"m%d" % i for i in range(10)]
    assert [message.offset for message in answer.messages] == list(range(10))


@pytest.mark.scenario(3)
def test_smoke(pops: Any) -> None:
    pops.send(10)
    answer = pops.pop()
    pops.bench.wait(59_900)
    assert pops.pop().code == 210
    pops.bench.wait(300)
    again = pops.pop()
    assert again.bodies == answer.bodies
    assert [m.times for m in again.messages] == [1] * 10
    assert [m.record.topic for m in again.messages] == ["T"] * 10
    assert [m.real_topic for m in again.messages] == ["%RETRY%G_T"] * 10
    pops.ack_all(again)
    pops.bench.wait(61_000)
    assert pops.pop().code == 210
