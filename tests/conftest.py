"""What runs by default is quick; the long suites are asked for by the Makefile's targets."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-interop", action="store_true", help="run the tests against the real Apache RocketMQ"
    )
    parser.addoption(
        "--server", choices=("penstock", "apache"), default="penstock", help="the broker of the interop tests"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    interop = Path(__file__).parent / "interop"
    if interop in (collection_path, *collection_path.parents) and not config.getoption("--run-interop"):
        return True
    return None
