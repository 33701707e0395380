"""Administration over the protocol: what the command line and the dashboard stand on."""

from __future__ import annotations

from penstock.admin.client import AdminClient
from penstock.admin.topics import TopicSettings, TopicSummary

__all__ = ["AdminClient", "TopicSettings", "TopicSummary"]
