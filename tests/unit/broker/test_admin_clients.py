from __future__ import annotations

from typing import Any

import pytest

from penstock.message.queue import MessageQueue
from penstock.wire import dialect
from penstock.wire.bodies import (
    ConsumerConnection,
    GetConsumerStatusBody,
    ProducerConnection,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import decode_command, encode_response


def join(bench: Any, peer: Any, client_id: str, *, group: str = "billing", version: int = 513) -> None:
    heartbeat = {
        "clientID": client_id,
        "consumerDataSet": [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [
                    {"topic": "orders", "subString": "A", "tagsSet": ["A"], "codeSet": [65], "subVersion": 3}
                ],
            }
        ],
        "producerDataSet": [{"groupName": "shop"}],
    }
    bench.ask(RequestCode.HEART_BEAT, None, dialect.dumps(heartbeat), peer=peer, version=version)


def test_the_clients_of_a_group_are_shown(bench: Any) -> None:
    join(bench, bench.new_peer(40_001), "c1")
    join(bench, bench.new_peer(40_002), "c2")
    answer = bench.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "billing"})
    body = ConsumerConnection.decode(answer.body)
    assert [(c.client_id, c.client_addr, c.version) for c in body.connection_set] == [
        ("c1", "127.0.0.1:40001", 513),
        ("c2", "127.0.0.1:40002", 513),
    ]
    assert (body.consume_type, body.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert body.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert body.subscription_table["orders"].tags_set == ["A"]


def test_a_group_that_is_offline(bench: Any) -> None:
    answer = bench.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "billing"})
    assert (answer.code, answer.remark) == (206, "the consumer group[billing] not online")


def test_producers_are_shown_by_group_and_all_together(bench: Any) -> None:
    join(bench, bench.new_peer(40_001), "c1")
    answer = bench.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "shop"})
    (connection,) = ProducerConnection.decode(answer.body).connection_set
    assert (connection.client_id, connection.client_addr) == ("c1", "127.0.0.1:40001")
    (info,) = ProducerTableInfo.decode(bench.ask(RequestCode.GET_ALL_PRODUCER_INFO, {}).body).data["shop"]
    assert (info.client_id, info.remote_ip) == ("c1", "/127.0.0.1:40001")
    assert info.last_update_timestamp == bench.now_ms


def test_an_unknown_producer_group(bench: Any) -> None:
    answer = bench.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "CmdProducer"})
    assert (answer.code, answer.remark) == (1, "the producer group[CmdProducer] not exist")


def test_a_subscription_is_shown_while_the_group_is_online(bench: Any) -> None:
    ext = {"group": "billing", "topic": "orders"}
    answer = bench.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, ext)
    assert answer.body == b'{"group":"billing","topic":"orders"}'
    join(bench, bench.new_peer(40_001), "c1")
    answer = bench.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, ext)
    found = QuerySubscriptionResponseBody.decode(answer.body).subscription_data
    assert found is not None
    assert found.sub_string == "A"


# ---- asking the clients themselves ------------------------------------------------------------------


def questions(peer: Any) -> list[Any]:
    return [c for c in peer.received if c.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT]


def respond(bench: Any, peer: Any, question: Any, offset: int) -> None:
    body = GetConsumerStatusBody({MessageQueue("orders", "broker-a", 0): offset})
    frame = encode_response(question, 0, body=body.encode())
    bench.broker.handle(peer, decode_command(frame[4:]), bench.now_ms)


def test_every_client_is_asked_for_its_offsets(bench: Any) -> None:
    peers = {name: bench.new_peer(40_001 + at) for at, name in enumerate(("c1", "c2"))}
    for name, peer in peers.items():
        join(bench, peer, name)
    opaque = bench.request(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        {"topic": "orders", "group": "billing", "clientAddr": ""},
    )
    for offset, peer in enumerate(peers.values()):
        assert bench.answered(opaque) is None
        (question,) = questions(peer)
        assert question.ext == {"topic": "orders", "group": "billing"}
        respond(bench, peer, question, offset)
    answer = bench.answered(opaque)
    assert GetConsumerStatusBody.decode(answer.body).consumer_table == {
        "c1": {MessageQueue("orders", "broker-a", 0): 0},
        "c2": {MessageQueue("orders", "broker-a", 0): 1},
    }


def test_one_client_alone_can_be_asked_and_a_silent_one_is_left_out(bench: Any) -> None:
    peers = [bench.new_peer(40_001), bench.new_peer(40_002)]
    join(bench, peers[0], "c1")
    join(bench, peers[1], "c2")
    opaque = bench.request(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        {"topic": "orders", "group": "billing", "clientAddr": "c2"},
    )
    assert not questions(peers[0])
    assert len(questions(peers[1])) == 1
    bench.wait(5_100)
    assert bench.answered(opaque).body == b'{"consumerTable":{},"messageQueueTable":{}}'


def test_nonsense_from_a_client_is_no_answer(bench: Any) -> None:
    peer = bench.new_peer(40_001)
    join(bench, peer, "c1")
    ext = {"topic": "orders", "group": "billing"}
    opaque = bench.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)
    frame = encode_response(questions(peer)[0], 0, body=b"not json")
    bench.broker.handle(peer, decode_command(frame[4:]), bench.now_ms)
    assert bench.answered(opaque).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("version", [None, 27])
def test_nobody_can_be_asked(bench: Any, version: int | None) -> None:
    if version is not None:
        join(bench, bench.new_peer(40_001), "old", version=version)
    answer = bench.ask(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "orders", "group": "billing"}
    )
    expected = ResponseCode.SYSTEM_ERROR if version is None else ResponseCode.SUCCESS
    assert answer.code == expected
