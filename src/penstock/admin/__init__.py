"""Administration over the protocol: what the command line and the dashboard stand on."""

from __future__ import annotations

from penstock.admin.client import AdminClient
from penstock.admin.lags import group_lags
from penstock.admin.modes import consume_modes, set_consume_mode
from penstock.admin.topics import TopicSettings, TopicSummary

__all__ = [
    "AdminClient",
    "TopicSettings",
    "TopicSummary",
    "consume_modes",
    "group_lags",
    "set_consume_mode",
]
