"""Administration requests: everything that tools ask of a broker beyond sending and consuming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.admin_clients import ClientAdmin
from penstock.broker.admin_config import ConfigAdmin
from penstock.broker.admin_groups import GroupAdmin
from penstock.broker.admin_progress import ProgressAdmin
from penstock.broker.admin_queues import QueueAdmin
from penstock.broker.admin_reset import ResetAdmin
from penstock.broker.admin_topics import TopicAdmin

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler


class Admin:
    def __init__(self, broker: Broker) -> None:
        self.handlers: dict[int, Handler] = {
            **TopicAdmin(broker).handlers,
            **GroupAdmin(broker).handlers,
            **ClientAdmin(broker).handlers,
            **ProgressAdmin(broker).handlers,
            **ResetAdmin(broker).handlers,
            **QueueAdmin(broker).handlers,
            **ConfigAdmin(broker).handlers,
        }
