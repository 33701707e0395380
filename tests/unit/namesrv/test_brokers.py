"""Brokers come, speak up, fall silent and go."""

from __future__ import annotations

import zlib

from penstock.wire.bodies import ClusterInfo, DataVersion, RegisterBrokerBody, TopicConfigSerializeWrapper


def test_a_registered_broker_is_in_routes_and_cluster_info(bench):
    answer = bench.register()
    assert (answer.code, answer.ext, answer.body) == (0, {}, None)
    route = bench.route("T")
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert (route.queue_datas[0].read_queue_nums, route.queue_datas[0].perm) == (4, 6)
    info = ClusterInfo.decode(bench.ask(106).body)
    assert info.cluster_addr_table == {"C": ["broker-a"]}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}


def test_the_first_registration_with_a_single_topic_is_refused_and_leaves_no_trace(bench):
    assert bench.register(topics={"T": 6}).code == 1
    assert ClusterInfo.decode(bench.ask(106).body) == ClusterInfo()
    assert bench.route("T") is None


def test_a_known_broker_may_register_a_single_topic(bench):
    bench.register()
    assert bench.register(topics={"New": 6}, counter=2).code == 0
    assert bench.route("New") is not None
    assert bench.route("T") is not None


def test_a_registration_without_body_is_taken(bench):
    header = {"brokerName": "b", "brokerAddr": "a:1", "clusterName": "C", "haServerAddr": "", "brokerId": "0"}
    assert bench.ask(103, header).code == 0


def test_queue_data_changes_with_the_data_version_only(bench):
    bench.register(counter=1)
    bench.register(topics={"T": 4, "U": 4}, counter=1)
    assert bench.perms("T") == {"broker-a": 6}
    bench.register(topics={"T": 4, "U": 4}, counter=2)
    assert bench.perms("T") == {"broker-a": 4}


def test_a_topic_that_was_deleted_here_returns_with_the_next_registration(bench):
    bench.register()
    bench.ask(216, {"topic": "T"})
    assert bench.route("T") is None
    bench.register()
    assert bench.perms("T") == {"broker-a": 6}


def test_missing_topics_are_dropped_only_when_asked_for(bench, new_bench):
    bench.register(topics={"T": 6, "U": 6})
    bench.register(topics={"T": 6, "V": 6}, counter=2)
    assert bench.route("U") is not None
    strict = new_bench(delete_topic_with_broker_registration=True)
    strict.register(topics={"T": 6, "U": 6})
    strict.register(topics={"T": 6, "V": 6}, counter=2)
    assert strict.route("U") is None


def test_an_id_is_kept_by_the_higher_state_version(bench):
    bench.register(state=5)
    assert bench.register(address="10.0.0.9:1", state=4).code == 0
    assert bench.route("T").broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    bench.register(address="10.0.0.9:1", state=6)
    assert bench.route("T").broker_datas[0].broker_addrs == {0: "10.0.0.9:1"}


def test_a_broker_that_changes_its_id_gives_up_the_old_one(bench):
    bench.register(broker_id=1, enableActingMaster="true")
    bench.register(broker_id=0, enableActingMaster="true", counter=2)
    assert bench.route("T").broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}


def test_a_slave_publishes_nothing_and_learns_who_its_master_is(bench):
    alone = bench.register(broker_id=1, address="10.0.0.2:10911")
    assert alone.ext == {}
    assert bench.route("T") is None
    bench.register()
    answer = bench.register(broker_id=1, address="10.0.0.2:10911")
    assert answer.ext == {"haServerAddr": "10.0.0.1:109119", "masterAddr": "10.0.0.1:10911"}
    assert bench.route("T").broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


def test_bodies_are_checked_by_their_crc_and_may_be_compressed_without_saying_so(bench):
    body = RegisterBrokerBody()
    assert bench.ask(103, _header(bodyCrc32="5"), body.encode()).remark == "crc32 not match"
    good = zlib.crc32(body.encode()) & 0x7FFFFFFF
    assert bench.ask(103, _header(bodyCrc32=str(good)), body.encode()).code == 0
    assert bench.ask(103, _header(), body.encode_compressed()).code == 0
    assert bench.ask(103, _header(), b"{nonsense").code == 1


def test_brokers_of_old_versions_send_only_their_topics(bench):
    bench.register()
    old = TopicConfigSerializeWrapper.decode(
        b'{"dataVersion":{"counter":7,"timestamp":5},"topicConfigTable":{"Old":{"topicName":"Old","perm":6}}}'
    )
    header = _header(brokerName="broker-a", brokerAddr="10.0.0.1:10911")
    assert bench.ask(103, header, old.encode(), version=36).code == 0
    assert bench.perms("Old") == {"broker-a": 6}


def test_a_missing_broker_id_is_an_error_that_names_it(bench):
    header = _header()
    del header["brokerId"]
    answer = bench.ask(103, header)
    assert answer.code == 1
    assert "brokerId" in answer.remark


def test_unregistering_removes_the_broker_and_only_it(bench):
    bench.register()
    bench.register("broker-b", "10.0.0.2:10911")
    header = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
    assert bench.ask(104, header).code == 0
    assert bench.perms("T") == {"broker-b": 6}
    assert bench.ask(104, header).code == 0  # of an unknown broker
    info = ClusterInfo.decode(bench.ask(106).body)
    assert info.cluster_addr_table == {"C": ["broker-b"]}


def test_unregistering_an_old_address_does_not_remove_its_successor(bench):
    bench.register(state=1)
    bench.register(address="10.0.0.9:1", state=2)
    header = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
    bench.ask(104, header)
    assert bench.perms("T") == {"broker-a": 6}


def test_the_last_broker_takes_its_cluster_and_topics_with_it(bench):
    bench.register()
    bench.server.disconnected(bench.peer, bench.now_ms)
    assert ClusterInfo.decode(bench.ask(106).body) == ClusterInfo()
    assert bench.ask(206).body == b'{"topicList":[]}'


def test_a_closed_connection_removes_its_brokers_but_not_those_that_came_back(bench, new_peer):
    first, second = new_peer(), new_peer()
    bench.register(peer=first)
    bench.register("broker-b", "10.0.0.2:1", peer=first)
    bench.register(peer=second)
    bench.server.disconnected(first, bench.now_ms)
    assert bench.perms("T") == {"broker-a": 6}


def test_a_silent_broker_expires_and_its_connection_is_closed(bench, new_peer):
    silent, alive = new_peer(), new_peer()
    bench.register("broker-a", "10.0.0.1:10911", peer=silent, heartbeatTimeoutMillis="3000")
    bench.register("broker-b", "10.0.0.2:10911", peer=alive)
    bench.now_ms += 5_001
    bench.server.tick(bench.now_ms)
    assert bench.perms("T") == {"broker-b": 6}
    assert (silent.closed, alive.closed) == (True, False)
    bench.now_ms += 110_000
    bench.server.tick(bench.now_ms)
    assert bench.perms("T") == {"broker-b": 6}
    bench.now_ms += 10_000
    bench.server.tick(bench.now_ms)
    assert bench.perms("T") == {}


def test_signs_of_life_keep_a_broker(bench):
    bench.register(heartbeatTimeoutMillis="3000")
    key = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
    for code in (904, 322):
        bench.now_ms += 2_900
        assert bench.ask(code, key, DataVersion().encode()).code == 0
    bench.now_ms += 2_900
    bench.server.tick(bench.now_ms)
    assert bench.route("T") is not None


def test_a_broker_can_ask_whether_its_data_version_is_known(bench):
    key = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
    unknown = bench.ask(322, key, DataVersion(0, 5, 1).encode())
    assert (unknown.ext, unknown.body) == ({"changed": "true"}, None)
    bench.register(counter=3)
    stored = bench.server.routes.live["C", "10.0.0.1:10911"].data_version
    same = bench.ask(322, key, stored.encode())
    assert same.ext == {"changed": "false"}
    assert DataVersion.decode(same.body) == stored
    assert bench.ask(322, key, stored.next(6).encode()).ext == {"changed": "true"}


def test_a_stand_in_for_the_master_is_read_only(new_bench):
    bench = new_bench(support_acting_master=True)
    bench.register(enableActingMaster="true")
    bench.register(broker_id=2, address="10.0.0.3:1", enableActingMaster="true")
    bench.register(broker_id=1, address="10.0.0.2:1", enableActingMaster="true")
    key = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
    bench.ask(104, key)
    assert bench.perms("T") == {"broker-a": 4}
    assert bench.route("T").broker_datas[0].broker_addrs == {0: "10.0.0.2:1", 2: "10.0.0.3:1"}
    assert bench.server.routes.brokers["broker-a"].broker_addrs == {1: "10.0.0.2:1", 2: "10.0.0.3:1"}


def test_others_of_the_name_hear_when_the_lowest_id_goes_or_comes(new_bench, new_peer):
    bench = new_bench(notify_min_broker_id_changed=True)
    master, slave = new_peer(), new_peer()
    bench.register(peer=master, enableActingMaster="true")
    bench.register(broker_id=1, address="10.0.0.2:1", peer=slave, enableActingMaster="true")
    bench.server.disconnected(master, bench.now_ms)
    (notice,) = slave.received
    assert (notice.code, notice.is_oneway) == (905, True)
    assert notice.ext == {
        "minBrokerId": "1",
        "brokerName": "broker-a",
        "minBrokerAddr": "10.0.0.2:1",
        "offlineBrokerAddr": "10.0.0.1:10911",
    }
    bench.register(peer=master, enableActingMaster="true")
    assert slave.received[1].ext["haBrokerAddr"] == "10.0.0.1:109119"
    assert slave.received[1].ext["minBrokerAddr"] == "10.0.0.1:10911"


def test_member_groups_are_told(bench):
    bench.register()
    answer = bench.ask(901, {"clusterName": "C", "brokerName": "broker-a"})
    assert (
        answer.body
        == b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"C"}}'
    )
    assert b'"brokerAddrs":{}' in bench.ask(901, {"clusterName": "C", "brokerName": "x"}).body


def _header(**ext):
    return {
        "brokerName": "b",
        "brokerAddr": "a:1",
        "clusterName": "C",
        "haServerAddr": "h:1",
        "brokerId": "0",
        **ext,
    }
