from __future__ import annotations

from typing import Any

import pytest

from penstock import limits
from penstock.wire import dialect
from penstock.wire.bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper
from penstock.wire.codes import RequestCode, ResponseCode


def put(bench: Any, **members: Any) -> Any:
    return bench.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, dialect.dumps(members))


def show(bench: Any, group: str) -> Any:
    return bench.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})


def test_a_created_group_is_shown_and_survives_a_restart(bench: Any) -> None:
    assert put(bench, groupName="billing", retryMaxTimes=3).code == ResponseCode.SUCCESS
    bench.close()
    bench.open()
    assert SubscriptionGroupConfig.decode(show(bench, "billing").body).retry_max_times == 3


def test_a_default_group_is_written_as_the_reference_writes_it(bench: Any) -> None:
    assert show(bench, "TOOLS_CONSUMER").body == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"TOOLS_CONSUMER","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )


def test_an_update_replaces_the_whole_group_and_merges_attributes(bench: Any) -> None:
    put(bench, groupName="billing", retryMaxTimes=3, attributes={"+priority.factor": "10"})
    put(bench, groupName="billing", consumeEnable=False)
    config = SubscriptionGroupConfig.decode(show(bench, "billing").body)
    assert (config.retry_max_times, config.consume_enable) == (16, False)
    assert config.attributes == {"priority.factor": "10"}


@pytest.mark.parametrize(
    ("members", "code", "remark"),
    [
        (
            {"groupName": "bad group!"},
            29,
            "The specified group: bad group!, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ({"groupName": ""}, 29, "blank"),
        ({"groupName": "g" * 121}, 29, "longer than group max length"),
        ({"groupName": "billing", "retryQueueNums": limits.QUEUES_PER_TOPIC + 1}, 29, "retryQueueNums"),
        ({"groupName": "billing", "attributes": {"+odd": "1"}}, 1, "unsupported key: odd"),
        ({}, 1, "groupName"),
        ({"groupName": "billing", "retryMaxTimes": "often"}, 1, "SubscriptionGroupConfig"),
    ],
)
def test_what_is_wrong_with_a_group_is_said(
    bench: Any, members: dict[str, Any], code: int, remark: str
) -> None:
    answer = put(bench, **members)
    assert answer.code == code
    assert remark in answer.remark
    assert bench.broker.groups.get("billing") is None


def test_a_list_is_all_or_nothing(bench: Any) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    bad = dialect.dumps({"groupConfigList": [{"groupName": "one"}, {"groupName": "not good"}]})
    assert bench.ask(code, None, bad).code == ResponseCode.INVALID_PARAMETER
    assert bench.broker.groups.get("one") is None
    good = dialect.dumps({"groupConfigList": [{"groupName": "one"}, {"groupName": "two"}]})
    assert bench.ask(code, None, good).code == ResponseCode.SUCCESS
    assert bench.broker.groups.get("two") is not None


def test_looking_at_an_unknown_group_does_not_create_it(bench: Any) -> None:
    assert show(bench, "nope").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert bench.broker.groups.get("nope") is None


def test_all_groups_come_with_their_total(bench: Any) -> None:
    answer = bench.ask(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {"groupSeq": 0, "dataVersion": "", "maxGroupNum": 2}
    )
    body = SubscriptionGroupWrapper.decode(answer.body)
    assert list(body.subscription_group_table) == sorted(bench.broker.groups.table)[:2]
    assert answer.ext["totalGroupNum"] == str(len(bench.broker.groups.table))
    everything = bench.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert (
        SubscriptionGroupWrapper.decode(everything.body).subscription_group_table == bench.broker.groups.table
    )


@pytest.mark.parametrize("clean", [True, False])
def test_a_deleted_group_loses_its_offsets_only_if_told(bench: Any, clean: bool) -> None:
    put(bench, groupName="billing")
    bench.broker.offsets.commit("billing", "orders", 0, 5, bench.now_ms)
    bench.broker.statistics.count_get("billing", "orders", 0, 1, 1)
    ext = {"groupName": "billing", "cleanOffset": clean}
    assert bench.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext).code == ResponseCode.SUCCESS
    assert bench.broker.groups.get("billing") is None
    assert bench.broker.offsets.query("billing", "orders", 0) == (-1 if clean else 5)
    assert bench.broker.statistics.view("GROUP_GET_NUMS", "orders@billing") is None
    assert bench.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext).code == ResponseCode.SUCCESS


def test_a_group_is_forbidden_a_topic_and_allowed_again(bench: Any) -> None:
    bench.send("orders")
    bench.send("other")
    put(bench, groupName="billing")
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    for topic in ("orders", "other"):
        answer = bench.ask(code, {"group": "billing", "topic": topic, "readable": False})
        assert answer.body == b'{"group":"billing","readable":false,"topic":"%b"}' % topic.encode()
    bench.ask(code, {"group": "billing", "topic": "orders", "readable": True})
    assert b'"readable":true' in bench.ask(code, {"group": "billing", "topic": "orders"}).body
    assert b'"readable":false' in bench.ask(code, {"group": "billing", "topic": "other"}).body


def test_forbidding_needs_a_group_and_a_topic_that_exist(bench: Any) -> None:
    bench.send("orders")
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    answer = bench.ask(code, {"group": "nope", "topic": "orders", "readable": False})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    answer = bench.ask(code, {"group": "TOOLS_CONSUMER", "topic": "nope", "readable": False})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert bench.broker.groups.forbidden == {}


def test_every_group_pulls(bench: Any) -> None:
    answer = bench.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert answer.body == b'{"messageRequestModeMap":{}}'
