"""The broker's settings and its runtime info.

Settings that an administrator changes are kept in the data directory and win over the start file, so that
they survive a restart.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.broker.admin_common import as_refusal
from penstock.broker.replies import Refusal
from penstock.broker.runtime_info import runtime_info
from penstock.broker.settings import BrokerSettings
from penstock.errors import InvalidArgument
from penstock.wire.bodies import DataVersion, KVTable
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import GetBrokerConfigResponseHeader
from penstock.wire.peer import Peer
from penstock.wire.properties_text import format_properties, parse_properties

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler
    from penstock.store.store import Store

log = logging.getLogger("penstock.broker")

CHANGED_SETTINGS_FILE: Final = "changedSettings.json"
NEVER_CHANGED: Final = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})


_parse_file: Final = msgspec.json.Decoder(dict[str, str]).decode


def load_changed_settings(settings: BrokerSettings, store: Store) -> None:
    """Applies what an administrator changed before the last stop; to be called before settings are used."""
    for key, text in (store.config.load(CHANGED_SETTINGS_FILE, _parse_file) or {}).items():
        try:
            settings.update(key, text)
        except InvalidArgument as error:
            log.warning("%s is ignored: %s", CHANGED_SETTINGS_FILE, error)
    store.change_settings(settings.store_settings())


class ConfigAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._version = DataVersion(timestamp=broker.started_ms)
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_BROKER_CONFIG: self.show,
            RequestCode.UPDATE_BROKER_CONFIG: self.update,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime,
        }

    def show(self, peer: Peer, command: Command, now_ms: int) -> None:
        version = GetBrokerConfigResponseHeader(self._version.encode().decode())
        body = format_properties(self._broker.settings.properties())
        self._broker.reply(peer, command, ext=version, body=body.encode())

    def update(self, peer: Peer, command: Command, now_ms: int) -> None:
        """All or nothing: one wrong key or value, and nothing changes."""
        broker, settings = self._broker, self._broker.settings
        wanted = _read(command.body or b"")
        forbidden = NEVER_CHANGED.union(settings.config_black_list.split(";"))
        if forbidden & wanted.keys():
            raise Refusal(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        try:
            for key, text in wanted.items():
                settings.check(key, text)
        except InvalidArgument as error:
            raise as_refusal(error, ResponseCode.INVALID_PARAMETER) from None
        if wanted:
            self._save(wanted)
            for key, text in wanted.items():
                settings.update(key, text)
            broker.store.change_settings(settings.store_settings())
            self._version = self._version.next(now_ms)
            if "brokerPermission" in wanted:
                broker.topics.touch(now_ms)
        broker.reply(peer, command)

    def _save(self, wanted: dict[str, str]) -> None:
        files = self._broker.store.config
        changed = files.load(CHANGED_SETTINGS_FILE, _parse_file) or {}
        try:
            files.save(CHANGED_SETTINGS_FILE, msgspec.json.encode({**changed, **wanted}))
        except OSError as error:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"{CHANGED_SETTINGS_FILE} cannot be written: {error}"
            ) from None

    def runtime(self, peer: Peer, command: Command, now_ms: int) -> None:
        self._broker.reply(peer, command, body=KVTable(runtime_info(self._broker, now_ms)).encode())


def _read(body: bytes) -> dict[str, str]:
    try:
        properties = parse_properties(body.decode())
        format_properties(properties).encode()  # an escape can spell half a character
    except UnicodeError as error:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"not UTF-8 text: {error}") from None
    return properties
