from __future__ import annotations

import pytest

from penstock.errors import IllegalName
from penstock.message import names


def remark_of(check, name: str) -> str:
    try:
        check(name)
    except IllegalName as error:
        return str(error)
    return ""


def test_names_are_accepted_and_refused_as_brokers_do(table):
    for row in table("names")["validation"]:
        if row["name"] is not None:
            assert remark_of(names.check_topic, row["name"]) == row["brokerTopic"]["remark"], row["name"]
            assert remark_of(names.check_group, row["name"]) == row["brokerGroup"]["remark"], row["name"]


def test_system_names_are_known(table):
    for row in table("names")["validation"]:
        if row["name"] is not None:
            assert names.is_system_topic(row["name"]) == row["systemTopic"], row["name"]
            assert (row["name"] in names.NOT_SENDABLE) == row["notAllowedSend"], row["name"]
            assert names.is_system_group(row["name"]) == row["systemGroup"], row["name"]


def test_system_topics_are_those_of_a_broker_except_the_ones_named_after_it(table):
    own = {"DefaultCluster", "DefaultCluster_REPLY_TOPIC", "broker-a"}
    reference = set(table("names")["systemTopics"]) - own
    assert {name for name in reference if not name.startswith("rmq_sys_")} == names.SYSTEM_TOPICS
    assert all(map(names.is_system_topic, reference))
    assert set(table("names")["notAllowedSend"]) == names.NOT_SENDABLE


def test_derived_names_and_their_origins(table):
    for row in table("names")["derived"]:
        group, topic = row["group"], row["topic"]
        assert names.retry_topic(group) == row["retry"]
        assert names.dlq_topic(group) == row["dlq"]
        assert names.pop_retry_topic_v1(group, topic) == row["popRetryV1"]
        assert names.pop_retry_topic_v2(group, topic) == row["popRetryV2"]
        assert names.normal_topic(row["popRetryV1"], group) == row["normalFromV1"]
        assert names.normal_topic(row["popRetryV2"], group) == row["normalFromV2"]
        assert names.group_of_retry_topic(row["popRetryV1"]) == row["groupFromV1"]
        assert names.group_of_retry_topic(row["popRetryV2"]) == row["groupFromV2"]


def test_a_topic_that_is_no_retry_topic_is_its_own_normal_topic():
    assert names.normal_topic("orders", "g") == "orders"
    assert names.normal_topic("%RETRY%other_orders", "g") == "%RETRY%other_orders"


def test_namespaces_wrap_and_unwrap(table):
    for row in table("names")["namespaces"]:
        assert names.wrap_namespace(row["namespace"], row["resource"]) == row["wrapped"], row
        assert names.unwrap_namespace(row["namespace"], row["resource"]) == row["unwrapped"], row


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_a_blank_name_is_called_blank(blank):
    with pytest.raises(IllegalName, match=r"The specified topic is blank\."):
        names.check_topic(blank)
