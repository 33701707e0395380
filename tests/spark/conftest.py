"""One Spark session for all tests here: starting one takes ten seconds and half a gigabyte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scenario(*numbers): numbered scenarios of the Spark integration")


@pytest.fixture
def pull_options() -> Callable[..., Any]:
    """PullOptions as the source makes them, from the options a user would give."""
    from penstock.spark.options import read_options

    def make(**options: str) -> Any:
        given = {"nameServer": "127.0.0.1:9876", "subscribe": "orders"} | options
        return read_options(given).pull

    return make


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from penstock.spark import session

    # Serial collection and the first compiler only: half the start-up time, and the jobs here are tiny.
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    started = session(
        "tests",
        master="local[2,4]",
        memory="1g",
        config={"spark.driver.extraJavaOptions": java, "spark.log.level": "ERROR"},
    )
    yield started
    started.stop()
