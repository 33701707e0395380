"""The `penstock_broker` fixture. Every pytest run of an environment loads this module, so it imports nothing
of Penstock until the fixture is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing import RunningBroker


@pytest.fixture
def penstock_broker() -> Iterator[RunningBroker]:
    """A broker with its name server on free ports, on an empty data directory, for one test."""
    from penstock.testing import broker

    with broker() as running:
        yield running
