"""What a name server can be told, by the key names of Apache's namesrv.conf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock.errors import InvalidArgument

Positive = Annotated[int, Meta(ge=1)]


class NamesrvSettings(msgspec.Struct, rename="camel"):
    listen_port: Annotated[int, Meta(ge=0, le=65_535)] = 9876
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    scan_not_active_broker_interval: Positive = 5_000
    support_acting_master: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    notify_min_broker_id_changed: bool = False
    need_wait_for_service: bool = False
    wait_seconds_for_service: Annotated[int, Meta(ge=0)] = 45
    delete_topic_with_broker_registration: bool = False
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"

    def update(self, properties: Mapping[str, str]) -> None:
        """Takes the keys that are ours; changes nothing and raises InvalidArgument if one has a bad value."""
        values = {}
        for key, text in properties.items():
            if key in _FIELDS:
                attribute, kind = _FIELDS[key]
                try:
                    values[attribute] = msgspec.convert(
                        text.strip().lower() if kind is bool else text, kind, strict=False
                    )
                except msgspec.ValidationError as error:
                    raise InvalidArgument(f"{key}={text}: {error}") from None
        for attribute, value in values.items():
            setattr(self, attribute, value)

    def properties(self) -> dict[str, str]:
        shown = {}
        for key, (attribute, _) in _FIELDS.items():
            value = getattr(self, attribute)
            shown[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return shown

    def locked_keys(self) -> frozenset[str]:
        """Keys that cannot be changed over the wire."""
        return ALWAYS_LOCKED | frozenset(self.config_black_list.split(";"))


ALWAYS_LOCKED: Final = frozenset(
    {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome", "listenPort"}
)

_FIELDS: Final = {
    field.encode_name: (field.name, field.type) for field in msgspec.structs.fields(NamesrvSettings)
}
