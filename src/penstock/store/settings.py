"""What can be chosen about a store; defaults are Apache's, so that each opens the other's directory."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.limits import MAX_BODY_BYTES


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    commit_log_file_size: int = 1 << 30
    consume_queue_file_entries: int = 300_000
    index_enabled: bool = True
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    max_message_bytes: int = MAX_BODY_BYTES
    flush: Literal["sync", "async"] = "sync"

    file_reserved_hours: float = 72
    delete_when: str = "04"
    """Local hours, two digits, separated by ';'."""
    disk_warning_ratio: float = 0.90
    """Used space above which writes are refused."""
    disk_clean_ratio: float = 0.85
    """Used space above which old log files go whatever their age; writes come back below it."""
    disk_max_used_ratio: float = 0.75
    """Used space above which expired files go at any hour."""
