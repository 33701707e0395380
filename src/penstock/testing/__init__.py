"""What tests of applications need: a real broker inside the test process, and a pytest fixture for it.

Every pytest run in an environment with Penstock loads the plugin in this package, so nothing else of
Penstock is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.running import SMALL_FILES, RunningBroker, broker

__all__ = ["SMALL_FILES", "RunningBroker", "broker"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.testing import running

    return getattr(running, name)
