from __future__ import annotations

import pytest

from penstock.broker.settings import BrokerSettings
from penstock.errors import InvalidArgument


def test_keys_of_a_broker_conf_set_typed_values() -> None:
    settings = BrokerSettings.from_properties(
        {"brokerIP1": "10.0.0.7", "autoCreateTopicEnable": "FALSE", "fileReservedTime": " 48 "}
    )
    assert (settings.broker_ip1, settings.auto_create_topic_enable) == ("10.0.0.7", False)
    assert settings.file_reserved_time == 48


def test_keys_that_are_not_ours_are_kept_and_shown() -> None:
    settings = BrokerSettings.from_properties({"transientStorePoolEnable": "true"})
    assert settings.not_understood == {"transientStorePoolEnable": "true"}
    assert settings.properties()["transientStorePoolEnable"] == "true"


def test_what_is_shown_can_be_read_again() -> None:
    settings = BrokerSettings(broker_name="b", trace_on=False, default_topic_queue_nums=3)
    assert BrokerSettings.from_properties(settings.properties()) == settings


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("defaultTopicQueueNums", "many"),
        ("defaultTopicQueueNums", "0"),
        ("brokerPermission", "8"),
        ("traceOn", "yes"),
        ("flushDiskType", "SOMETIMES"),
        ("messageDelayLevel", "1s 5x"),
        ("messageDelayLevel", ""),
        ("messageDelayLevel", "1s 99999999999999999999d"),
        ("deleteWhen", "24"),
        ("deleteWhen", "at night"),
        ("deleteWhen", ""),
        ("brokerId", "1"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_key(key: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=key):
        BrokerSettings.from_properties({key: text})


def test_an_update_changes_the_value_and_the_generation() -> None:
    settings = BrokerSettings()
    settings.update("maxMessageSize", "1000")
    assert (settings.max_message_size, settings.generation) == (1000, 1)


@pytest.mark.parametrize(
    ("key", "text"), [("brokerName", "other"), ("notASetting", "1"), ("maxMessageSize", "big")]
)
def test_an_update_that_cannot_be_made_changes_nothing(key: str, text: str) -> None:
    settings = BrokerSettings()
    with pytest.raises(InvalidArgument, match=key):
        settings.update(key, text)
    assert settings == BrokerSettings()


def test_delay_levels_have_their_units() -> None:
    settings = BrokerSettings(message_delay_level="1s 2m 3h 1d")
    assert settings.delay_levels_ms() == (1_000, 120_000, 10_800_000, 86_400_000)


def test_the_store_gets_its_share() -> None:
    properties = {"flushDiskType": "ASYNC_FLUSH", "mappedFileSizeConsumeQueue": "2000", "maxIndexNum": "7"}
    store = BrokerSettings.from_properties(properties).store_settings()
    assert (store.flush, store.consume_queue_file_entries, store.index_entries) == ("async", 100, 7)
    assert BrokerSettings().store_settings().flush == "sync"


def test_hours_of_deletion_may_be_written_with_one_digit() -> None:
    settings = BrokerSettings.from_properties({"deleteWhen": "4; 16;"})
    assert settings.store_settings().delete_when == "04;16"
    assert settings.properties()["deleteWhen"] == "4; 16;"
