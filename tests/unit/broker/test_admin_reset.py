from __future__ import annotations

from typing import Any

import pytest

from penstock.message.queue import MessageQueue
from penstock.wire import dialect
from penstock.wire.bodies import ResetOffsetBody, ResetOffsetBodyForC
from penstock.wire.codes import Language, RequestCode, ResponseCode
from penstock.wire.command import decode_command, encode_command


def fill(bench: Any, count: int = 5) -> int:
    """Messages a second apart in queue 0 of two; tells the time of the first."""
    first_ms = bench.now_ms
    for _ in range(count):
        bench.send("orders", queues=2)
        bench.now_ms += 1_000
    bench.broker.groups.find("billing", bench.now_ms)
    return first_ms


def reset(bench: Any, time_ms: int, **ext: Any) -> Any:
    fields = {"topic": "orders", "group": "billing", "timestamp": time_ms, "isForce": True, **ext}
    return bench.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)


def offsets(answer: Any) -> dict[int, int]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return {queue.queue_id: at for queue, at in ResetOffsetBody.decode(answer.body).offset_table.items()}


def test_a_reset_by_time_covers_every_queue(bench: Any) -> None:
    first_ms = fill(bench)
    assert offsets(reset(bench, first_ms + 2_000)) == {0: 2, 1: 0}
    assert bench.broker.offsets.query("billing", "orders", 0) == 2


@pytest.mark.parametrize(("time_ms", "target"), [(-1, 5), (0, 0), (1 << 50, 5)])
def test_the_ends_of_time(bench: Any, time_ms: int, target: int) -> None:
    fill(bench)
    assert offsets(reset(bench, time_ms))[0] == target


def test_the_body_has_queues_as_keys(bench: Any) -> None:
    fill(bench)
    assert reset(bench, -1, queueId=0).body == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:5}}'
    )


def test_the_next_pull_is_sent_to_the_new_place_and_commits_until_then_are_ignored(bench: Any) -> None:
    fill(bench)
    bench.broker.offsets.commit("billing", "orders", 0, 5, bench.now_ms)
    reset(bench, 0)
    commit = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": 5}
    assert bench.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == ResponseCode.SUCCESS
    answer = bench.pull("orders", 5, group="billing")
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert bench.pull("orders", 0, group="billing").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("offset", [0, 3, 5, 6])
def test_one_queue_is_moved_to_an_offset(bench: Any, offset: int) -> None:
    fill(bench)
    assert offsets(reset(bench, 0, queueId=0, offset=offset)) == {0: offset}


@pytest.mark.parametrize("offset", [7, -2])
def test_an_offset_outside_the_queue_is_refused(bench: Any, offset: int) -> None:
    fill(bench)
    answer = reset(bench, 0, queueId=0, offset=offset)
    assert (answer.code, answer.remark) == (1, f"Target offset {offset} not in consume queue range [0-5]")
    assert bench.broker.offsets.query("billing", "orders", 0) == -1


def test_one_queue_by_time_when_the_offset_is_unset(bench: Any) -> None:
    first_ms = fill(bench)
    assert offsets(reset(bench, first_ms + 1_000, queueId=0, offset=-1)) == {0: 1}


@pytest.mark.parametrize(
    ("ext", "code", "remark"),
    [
        ({"topic": "nope"}, 17, "Topic nope does not exist"),
        ({"group": "nope"}, 26, "Group nope does not exist"),
        ({"queueId": 9}, 29, "queueId[9]"),
        ({"timestamp": "soon"}, 1, "timestamp"),
    ],
)
def test_what_cannot_be_reset_is_said(bench: Any, ext: dict[str, Any], code: int, remark: str) -> None:
    fill(bench)
    answer = reset(bench, 0, **ext)
    assert answer.code == code
    assert remark in answer.remark
    assert bench.broker.groups.get("nope") is None


def test_a_reset_survives_a_restart_as_the_stored_offset(bench: Any) -> None:
    fill(bench)
    reset(bench, -1)
    bench.close()
    bench.open()
    assert bench.broker.offsets.query("billing", "orders", 0) == 5


# ---- told to the clients ----------------------------------------------------------------------------


@pytest.fixture
def old_style(new_bench: Any) -> Any:
    return new_bench(useServerSideResetOffset="false")


def join(bench: Any, peer: Any) -> None:
    consumer = {"groupName": "billing", "subscriptionDataSet": [{"topic": "orders"}]}
    heartbeat = {"clientID": "c1", "consumerDataSet": [consumer]}
    bench.ask(RequestCode.HEART_BEAT, None, dialect.dumps(heartbeat), peer=peer)


def commit(bench: Any, offset: int = 3) -> None:
    for queue_id in (0, 1):
        bench.broker.offsets.commit("billing", "orders", queue_id, offset, bench.now_ms)


def told(peer: Any) -> Any:
    (command,) = [c for c in peer.received if c.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET]
    assert command.is_oneway
    return command


@pytest.mark.parametrize(("force", "target"), [(True, 5), (False, 3)])
def test_clients_are_told_and_move_forward_only_by_force(old_style: Any, force: bool, target: int) -> None:
    fill(old_style)
    commit(old_style)
    peer = old_style.new_peer()
    join(old_style, peer)
    assert offsets(reset(old_style, -1, isForce=force))[0] == target
    command = told(peer)
    table = ResetOffsetBody.decode(command.body).offset_table
    assert table[MessageQueue("orders", "broker-a", 0)] == target
    assert command.ext["group"] == "billing"
    assert old_style.broker.offsets.query("billing", "orders", 0) == 3


def test_callers_in_cpp_get_a_body_without_object_keys(old_style: Any) -> None:
    fill(old_style)
    commit(old_style)
    peer = old_style.new_peer()
    join(old_style, peer)
    ext = {"topic": "orders", "group": "billing", "timestamp": "0", "isForce": "true"}
    frame = encode_command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, 9, ext=ext, language=Language.CPP)
    old_style.broker.handle(old_style.peer, decode_command(frame[4:]), old_style.now_ms)
    rows = ResetOffsetBodyForC.decode(told(peer).body).offset_table
    assert [(row.topic, row.queue_id, row.offset) for row in rows] == [("orders", 0, 0), ("orders", 1, 0)]


def test_without_an_offset_or_a_client_nobody_can_be_told(old_style: Any) -> None:
    fill(old_style)
    assert reset(old_style, 0).code == ResponseCode.SYSTEM_ERROR
    commit(old_style)
    assert reset(old_style, 0).code == ResponseCode.CONSUMER_NOT_ONLINE
