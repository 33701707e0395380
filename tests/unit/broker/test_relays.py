from __future__ import annotations

from typing import Any

import pytest

from penstock.wire.bodies import ConsumerData, HeartbeatData
from penstock.wire.command import decode_command, encode_response


@pytest.fixture
def consumer(bench: Any) -> Any:
    """A connected member `c1` of group G that has seen its notice."""
    peer = bench.new_peer()
    bench.ask(34, None, HeartbeatData("c1", consumer_data_set=[ConsumerData("G")]).encode(), peer=peer)
    peer.received.clear()
    return peer


def answer(bench: Any, peer: Any, question: Any, *args: Any) -> None:
    bench.broker.handle(peer, decode_command(encode_response(question, *args)[4:]), bench.now_ms)


def test_running_info_is_asked_of_the_client_and_passed_back(bench: Any, consumer: Any) -> None:
    fields = {"consumerGroup": "G", "clientId": "c1", "jstackEnable": True}
    opaque = bench.request(307, fields)
    (question,) = consumer.received
    assert (question.code, question.ext) == (307, {**fields, "jstackEnable": "true"})
    assert bench.answered(opaque) is None
    answer(bench, consumer, question, 0, "fine", {"a": "b"}, b"{}")
    reply = bench.answered(opaque)
    assert (reply.code, reply.remark, reply.ext, reply.body) == (0, "fine", {"a": "b"}, b"{}")


def test_a_message_to_consume_directly_is_looked_up_by_its_id(bench: Any, consumer: Any) -> None:
    sent = bench.send("T", b"body")
    fields = {"consumerGroup": "G", "clientId": "c1", "msgId": sent.ext["msgId"], "topic": "T"}
    opaque = bench.request(309, fields)
    (question,) = consumer.received
    assert question.body == bytes(bench.store.read_record(0))
    assert question.ext["brokerName"] == "broker-a"
    assert (question.ext["topicSysFlag"], question.ext["groupSysFlag"]) == ("0", "0")
    answer(bench, consumer, question, 0, None, None, b"result")
    assert bench.answered(opaque).body == b"result"


@pytest.mark.parametrize("message_id", ["", "nonsense", "7F00000100002A9F00000000FFFFFFFF"])
def test_an_id_without_a_message_is_said(bench: Any, consumer: Any, message_id: str) -> None:
    fields = {"consumerGroup": "G", "clientId": "c1", "msgId": message_id}
    assert bench.ask(309, fields).code == 1
    assert consumer.received == []


def test_without_a_client_id_any_member_is_asked(bench: Any, consumer: Any) -> None:
    sent = bench.send("T")
    bench.request(309, {"consumerGroup": "G", "msgId": sent.ext["msgId"]})
    assert len(consumer.received) == 1


def test_a_client_that_is_not_there_is_said(bench: Any, consumer: Any) -> None:
    for group, client in (("G", "c2"), ("H", "c1")):
        reply = bench.ask(307, {"consumerGroup": group, "clientId": client})
        assert (reply.code, "not online" in reply.remark) == (1, True)


def test_a_client_that_does_not_answer_is_not_waited_for_too_long(bench: Any, consumer: Any) -> None:
    opaque = bench.request(307, {"consumerGroup": "G", "clientId": "c1"})
    (question,) = consumer.received
    bench.wait(9_900)
    assert bench.answered(opaque) is None
    bench.wait(100)
    assert bench.answered(opaque).code == 207
    answer(bench, consumer, question, 0)
    assert len(bench.peer.received) == 1


def test_a_client_that_leaves_ends_the_wait(bench: Any, consumer: Any) -> None:
    opaque = bench.request(307, {"consumerGroup": "G", "clientId": "c1"})
    bench.broker.disconnected(consumer, bench.now_ms)
    assert bench.answered(opaque).code == 207


def test_answers_are_matched_by_connection(bench: Any, consumer: Any) -> None:
    opaque = bench.request(307, {"consumerGroup": "G", "clientId": "c1"})
    (question,) = consumer.received
    answer(bench, bench.new_peer(1), question, 0)
    assert bench.answered(opaque) is None


def test_open_questions_have_a_bound(bench: Any, consumer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.limits.RELAYED_REQUESTS", 1)
    bench.request(307, {"consumerGroup": "G", "clientId": "c1"})
    assert bench.ask(307, {"consumerGroup": "G", "clientId": "c1"}).code == 2


def test_clients_that_are_too_old_are_not_asked(bench: Any) -> None:
    peer = bench.new_peer()
    body = HeartbeatData("c1", consumer_data_set=[ConsumerData("G")]).encode()
    bench.ask(34, None, body, peer=peer, version=61)
    assert bench.ask(307, {"consumerGroup": "G", "clientId": "c1"}).code == 1
