"""Routes, topic lists, permissions, and the two kinds of settings."""

from __future__ import annotations

import pytest

from penstock.wire.bodies import KVTable, TopicList, TopicRouteData
from penstock.wire.command import encode_command


def names(answer):
    return TopicList.decode(answer.body).topic_list


def test_routes_are_standard_json_for_new_clients_and_loose_for_old_ones(bench):
    bench.register()
    strict, loose = b'"brokerAddrs":{"0":', b'"brokerAddrs":{0:'
    assert strict in bench.ask(105, {"topic": "T"}, version=401).body
    assert loose in bench.ask(105, {"topic": "T"}, version=400).body
    assert strict in bench.ask(105, {"topic": "T", "acceptStandardJsonOnly": "true"}, version=400).body


@pytest.mark.parametrize("ext", [{"topic": "Nothing"}, {}, None])
def test_a_topic_without_route_is_topic_not_exist(bench, ext):
    bench.register()
    answer = bench.ask(105, ext)
    assert answer.code == 17
    topic = "Nothing" if ext else "null"
    assert answer.remark.startswith(f"No topic route info in name server for the topic: {topic}\n")


def test_routes_name_every_broker_of_the_topic(bench):
    bench.register("broker-b", "10.0.0.2:1", topics={"T": 4, "X": 6})
    bench.register("broker-a", "10.0.0.1:1")
    route = bench.route("T")
    assert [(q.broker_name, q.perm) for q in route.queue_datas] == [("broker-a", 6), ("broker-b", 4)]
    assert [b.broker_name for b in route.broker_datas] == ["broker-a", "broker-b"]


def test_a_zone_sees_only_its_own_brokers(bench):
    bench.register("near", "10.0.0.1:1", __ZONE_NAME="Z1")
    bench.register("far", "10.0.0.2:1", __ZONE_NAME="Z2")
    answer = bench.ask(105, {"topic": "T", "__ZONE_MODE": "true", "__ZONE_NAME": "z1"})
    route = TopicRouteData.decode(answer.body)
    assert [b.broker_name for b in route.broker_datas] == ["near"]
    assert [q.broker_name for q in route.queue_datas] == ["near"]
    assert b"{0:" in answer.body
    assert len(bench.route("T", __ZONE_MODE="true", __ZONE_NAME=" ").broker_datas) == 2


def test_a_warming_up_name_server_gives_no_routes(new_bench):
    bench = new_bench(need_wait_for_service=True)
    bench.register()
    assert bench.ask(105, {"topic": "T"}).remark == "name server not ready"
    bench.now_ms += 45_000
    assert bench.ask(105, {"topic": "T"}).code == 0


def test_topic_lists(bench):
    bench.register("broker-a", "10.0.0.1:1", topics={"T": 6, "U": 6})
    bench.register("broker-b", "10.0.0.2:1", topics={"T": 6, "V": 6}, cluster="D")
    assert names(bench.ask(206)) == ["T", "U", "V"]
    assert names(bench.ask(224, {"cluster": "D"})) == ["T", "V"]
    assert names(bench.ask(224, {"cluster": "none"})) == []
    system = TopicList.decode(bench.ask(304).body)
    assert set(system.topic_list) == {"C", "D", "broker-a", "broker-b"}
    assert system.broker_addr in ("10.0.0.1:1", "10.0.0.2:1")


def test_topic_lists_can_be_switched_off(bench):
    bench.ask(318, body=b"enableTopicList=false\nenableAllTopicList=false")
    for code in (206, 224, 311, 312, 313):
        answer = bench.ask(code, {"cluster": "C"})
        assert (answer.code, answer.remark) == (1, "disable")
    assert bench.ask(304).code == 0


def test_unit_topics_are_told_by_the_sys_flag(bench):
    bench.register()
    for topic, flag in (("Unit", 1), ("Sub", 2), ("Both", 3)):
        queues = b'{"brokerName":"broker-a","perm":6,"topicSysFlag":%d}' % flag
        bench.ask(217, {"topic": topic}, b'{"queueDatas":[%b]}' % queues)
    assert names(bench.ask(311)) == ["Both", "Unit"]
    assert names(bench.ask(312)) == ["Both", "Sub"]
    assert names(bench.ask(313)) == ["Sub"]


def test_a_topic_can_be_registered_alone_up_to_the_first_unknown_broker(bench):
    bench.register()
    one, unknown, two = (
        b'{"brokerName":"%b","perm":%d}' % queues
        for queues in ((b"broker-a", 6), (b"x", 6), (b"broker-a", 4))
    )
    body = b'{"queueDatas":[%b,%b,%b]}' % (one, unknown, two)
    assert bench.ask(217, {"topic": "New"}, body).code == 0
    assert bench.perms("New") == {"broker-a": 6}


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(bench):
    bench.register("broker-a", "10.0.0.1:1")
    bench.register("broker-b", "10.0.0.2:1", cluster="D")
    bench.ask(216, {"topic": "T", "clusterName": "D"})
    assert bench.perms("T") == {"broker-a": 6}
    bench.ask(216, {"topic": "T"})
    assert bench.perms("T") == {}
    assert bench.ask(216, {"topic": "Nothing", "clusterName": "E"}).code == 0


def test_write_permission_is_wiped_and_given_back(bench):
    bench.register(topics={"T": 6, "U": 7})
    assert bench.ask(205, {"brokerName": "broker-a"}).ext == {"wipeTopicCount": "2"}
    assert (bench.perms("T"), bench.perms("U")) == ({"broker-a": 4}, {"broker-a": 5})
    bench.register(topics={"T": 6, "U": 7})  # nothing changed at the broker: stays wiped
    assert bench.perms("T") == {"broker-a": 4}
    assert bench.ask(327, {"brokerName": "broker-a"}).ext == {"addTopicCount": "2"}
    assert (bench.perms("T"), bench.perms("U")) == ({"broker-a": 6}, {"broker-a": 6})
    assert bench.ask(205, {"brokerName": "none"}).ext == {"wipeTopicCount": "0"}


def test_kv_config_survives_a_restart(bench):
    bench.ask(100, {"namespace": "n", "key": "k", "value": "v 中"})
    bench.ask(100, {"namespace": "n", "key": "other", "value": "1"})
    bench.ask(102, {"namespace": "n", "key": "other"})
    bench.restart()
    assert bench.ask(101, {"namespace": "n", "key": "k"}).ext == {"value": "v 中"}
    missing = bench.ask(101, {"namespace": "n", "key": "other"})
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: other")
    assert KVTable.decode(bench.ask(219, {"namespace": "n"}).body).table == {"k": "v 中"}
    bench.ask(102, {"namespace": "n", "key": "k"})
    assert bench.ask(219, {"namespace": "n"}).body == b'{"table":{}}'
    assert bench.ask(219, {"namespace": "none"}).code == 22


def test_order_topics_are_told_to_brokers_and_on_request_to_clients(bench):
    bench.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"})
    assert bench.register().body == b'{"table":{"T":"broker-a:4"}}'
    assert bench.route("T").order_topic_conf is None
    bench.ask(318, body=b"orderMessageEnable=true\nreturnOrderTopicConfigToBroker=false")
    assert bench.route("T").order_topic_conf == "broker-a:4"
    assert bench.route("U").order_topic_conf is None
    assert bench.register().body is None


def test_settings_are_shown_changed_and_kept(bench):
    assert b"scanNotActiveBrokerInterval=5000\n" in bench.ask(319).body
    assert bench.ask(318, body=b"scanNotActiveBrokerInterval=700\nunknownKey=1").code == 0
    bench.restart()
    assert b"scanNotActiveBrokerInterval=700\n" in bench.ask(319).body
    assert bench.ask(318).code == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"kvConfigPath=/tmp/x", 16),
        (b"configBlackList=", 16),
        (b"rocketmqHome=/", 16),
        (b"orderMessageEnable=perhaps", 29),
        (b"scanNotActiveBrokerInterval=0", 29),
        (b"a=\xff", 1),
    ],
)
def test_bad_settings_are_refused_and_change_nothing(bench, body, code):
    before = bench.ask(319).body
    assert bench.ask(318, body=b"enableTopicList=false\n" + body).code == code
    assert bench.ask(319).body == before
    assert bench.files == {}


def test_unknown_requests_and_missing_fields_are_answered(bench):
    answer = bench.ask(4711)
    assert (answer.code, answer.remark) == (3, " request type 4711 not supported")
    assert bench.ask(100, {"namespace": "n"}).code == 1
    assert bench.ask(205).code == 1


def test_a_oneway_gets_no_answer(bench):
    bench.tell(encode_command(106, 1, flag=2))
    bench.tell(encode_command(4711, 1, flag=2))
    assert bench.peer.received == []


def test_settings_that_cannot_be_saved_are_a_system_error(bench):
    def fail(name, data):
        raise OSError(28, "No space left on device")

    bench.files.save = fail
    answer = bench.ask(100, {"namespace": "n", "key": "k", "value": "v"})
    assert answer.code == 1
    assert "No space left" in answer.remark
