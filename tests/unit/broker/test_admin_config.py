from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.broker.admin_config import CHANGED_SETTINGS_FILE
from penstock.wire.bodies import DataVersion, KVTable
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.properties_text import parse_properties

RUNTIME_KEYS = {
    "bootTimestamp",
    "runtime",
    "putMessageEntireTimeMax",
    "putMessageTimesTotal",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageDistributeTime",
    "putMessageAverageSize",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "putTps",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "getTransferredTps",
    "putLatency99",
    "putLatency999",
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "scheduleMessageOffset_1",
    "brokerActive",
    "brokerVersionDesc",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "dispatchBehindBytes",
    "pageCacheLockTimeMills",
    "earliestMessageTimeStamp",
    "startAcceptSendRequestTimeStamp",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "remainTransientStoreBufferNumbs",
    "remainHowManyDataToFlush",
    "commitLogDirCapacity",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    *(
        f"{pool}ThreadPoolQueue{what}"
        for pool in ("send", "pull", "litePull", "query", "ack")
        for what in ("Size", "Capacity", "HeadWaitTimeMills")
    ),
}


def config(bench: Any) -> dict[str, str]:
    return parse_properties(bench.ask(RequestCode.GET_BROKER_CONFIG).body.decode())


def update(bench: Any, text: str | bytes) -> Any:
    body = text if isinstance(text, bytes) else text.encode()
    return bench.ask(RequestCode.UPDATE_BROKER_CONFIG, None, body)


# ---- settings ---------------------------------------------------------------------------------------


def test_settings_are_shown_as_sorted_lines_with_a_version(bench: Any) -> None:
    answer = bench.ask(RequestCode.GET_BROKER_CONFIG)
    lines = answer.body.decode().splitlines()
    assert lines == sorted(lines)
    assert "brokerName=broker-a" in lines
    version = DataVersion.decode(answer.ext["version"].encode())
    assert version.timestamp == bench.broker.started_ms


def test_a_changed_setting_works_at_once_and_after_a_restart(bench: Any) -> None:
    before = DataVersion.decode(bench.ask(RequestCode.GET_BROKER_CONFIG).ext["version"].encode())
    assert update(bench, "autoCreateTopicEnable=false\n").code == ResponseCode.SUCCESS
    assert config(bench)["autoCreateTopicEnable"] == "false"
    assert bench.send("orders").code == ResponseCode.TOPIC_NOT_EXIST
    after = DataVersion.decode(bench.ask(RequestCode.GET_BROKER_CONFIG).ext["version"].encode())
    assert after.counter == before.counter + 1
    bench.close()
    bench.open()
    assert config(bench)["autoCreateTopicEnable"] == "false"
    assert bench.send("orders").code == ResponseCode.TOPIC_NOT_EXIST


def test_later_changes_are_added_to_earlier_ones(bench: Any) -> None:
    update(bench, "traceOn=false")
    update(bench, "regionId=north")
    saved = json.loads(bench.store.config.load(CHANGED_SETTINGS_FILE))
    assert saved == {"traceOn": "false", "regionId": "north"}


@pytest.mark.parametrize(
    "text",
    [
        "brokerPermission=lots",
        "brokerPermission=8",
        "noSuchKey=1",
        "brokerName=other",
        "regionId=x\\ud800",
        b"\xff=1",
    ],
)
def test_a_wrong_key_or_value_changes_nothing(bench: Any, text: str | bytes) -> None:
    before = config(bench)
    both = b"traceOn=false\n" + (text if isinstance(text, bytes) else text.encode())
    assert update(bench, both).code == ResponseCode.INVALID_PARAMETER
    assert config(bench) == before
    assert bench.store.config.load(CHANGED_SETTINGS_FILE) is None


@pytest.mark.parametrize("key", ["brokerConfigPath", "rocketmqHome", "configBlackList", "regionId"])
def test_black_listed_keys_cannot_be_changed(new_bench: Any, key: str) -> None:
    bench = new_bench(configBlackList="traceOn;regionId")
    answer = update(bench, f"{key}=/x\n")
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")


def test_an_empty_update_is_fine(bench: Any) -> None:
    assert update(bench, "").code == ResponseCode.SUCCESS
    assert bench.store.config.load(CHANGED_SETTINGS_FILE) is None


def test_a_changed_permission_is_registered_for_all_topics_at_once(bench: Any) -> None:
    bench.broker.take_registration_changes()
    update(bench, "brokerPermission=4")
    changed = bench.broker.take_registration_changes()
    assert len(changed) == len(bench.broker.topics.table)
    assert not any(config.perm & 2 for config in changed)


def test_a_saved_setting_that_no_longer_fits_is_ignored(bench: Any) -> None:
    bench.store.config.save(CHANGED_SETTINGS_FILE, b'{"gone":"1","traceOn":"false"}')
    bench.close()
    bench.open()
    assert config(bench)["traceOn"] == "false"


def test_a_raised_message_limit_counts_at_once(new_bench: Any) -> None:
    bench = new_bench(maxMessageSize="10")
    assert bench.send("orders", b"x" * 11).code == ResponseCode.MESSAGE_ILLEGAL
    update(bench, "maxMessageSize=100")
    assert bench.send("orders", b"x" * 11).code == ResponseCode.SUCCESS


def test_retention_follows_a_changed_setting(bench: Any) -> None:
    update(bench, "fileReservedTime=1")
    assert bench.store.settings.file_reserved_hours == 1
    bench.close()
    bench.open()
    assert bench.store.settings.file_reserved_hours == 1


# ---- runtime info -----------------------------------------------------------------------------------


def runtime(bench: Any) -> dict[str, str]:
    return KVTable.decode(bench.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table


def test_every_key_that_tools_read_is_there(bench: Any) -> None:
    bench.send("orders", properties="DELAY\x011\x02")
    bench.wait(2_500)
    table = runtime(bench)
    assert table.keys() >= RUNTIME_KEYS
    assert f"commitLogDiskRatio_{bench.directory}/commitlog" in table
    assert all(isinstance(value, str) for value in table.values())


def test_runtime_info_counts_what_happened(bench: Any) -> None:
    for _ in range(3):
        bench.send("orders")
    bench.pull("orders")
    bench.wait(61_000, step_ms=1_000)
    table = runtime(bench)
    assert table["putMessageTimesTotal"] == table["msgPutTotalTodayNow"] == "3"
    assert table["msgGetTotalTodayNow"] == "3"
    assert table["putMessageSizeTotal"] == str(bench.store.max_physical_offset)
    assert float(table["putMessageAverageSize"]) == bench.store.max_physical_offset / 3
    assert table["runtime"] == "[ 0 days, 0 hours, 1 minutes, 1 seconds ]"
    assert table["earliestMessageTimeStamp"] == str(bench.broker.started_ms)
    ten, sixty, ten_minutes = map(float, table["putTps"].split(" "))
    assert ten == 0.0
    assert sixty == 0.0
    assert ten_minutes == pytest.approx(3 / 61, rel=0.05)
    assert table["remainHowManyDataToFlush"] == "0 B"


def test_put_times_are_classed_from_arrival_to_durable(bench: Any) -> None:
    for _ in range(2):
        bench.request(310, {**_send_fields(), "b": "orders"}, b"x")
    bench.now_ms += 30
    bench.flush()
    table = runtime(bench)
    assert "[10~50ms]:2 " in table["putMessageDistributeTime"]
    assert table["putMessageEntireTimeMax"] == "30"
    assert table["putLatency99"] == "30.00"


def _send_fields() -> dict[str, Any]:
    return {"a": "P", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0, "k": False}


def test_an_unused_broker_has_runtime_info_too(bench: Any) -> None:
    table = runtime(bench)
    assert table["putTps"] == "0.0 0.0 0.0"
    assert table["earliestMessageTimeStamp"] == "-1"
    assert table["putLatency99"] == "0.00"
    assert table["commitLogDirCapacity"].startswith("Total : ")
