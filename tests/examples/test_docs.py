"""What the pages say is true: their Python blocks run, and the settings they list have these defaults.

Blocks run in their order against a real broker. They may await, as in `python -m asyncio`. `run`, which lasts
until a signal, ends by itself here.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import PushConsumer, sync
from penstock.broker.settings import BrokerSettings
from penstock.client.config import PushSettings
from penstock.testing import broker

ROOT = Path(__file__).parents[2]
ADDRESS = "127.0.0.1:9876"
RUN_SECONDS = 0.5


def blocks_of(page: Path) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return [block for block in blocks if "penstock.spark" not in block]


def execute(block: str, name: str, names: dict[str, Any], runner: asyncio.Runner) -> None:
    code = compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        coroutine = eval(code, names)
        runner.run(coroutine)
    else:
        exec(code, names)
    tests: list[Callable[[], None]] = [value for key, value in names.items() if key.startswith("test_")]
    for test in tests:
        test()


@pytest.fixture
def runs_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(consumer: PushConsumer) -> None:
        async with consumer:
            await asyncio.sleep(RUN_SECONDS)

    def sync_run(consumer: sync.PushConsumer) -> None:
        with consumer:
            time.sleep(RUN_SECONDS)

    monkeypatch.setattr(PushConsumer, "run", run)
    monkeypatch.setattr(sync.PushConsumer, "run", sync_run)


@pytest.mark.usefixtures("runs_that_end")
@pytest.mark.parametrize("page", ["README.md", "docs/client.md", "docs/pop.md"])
def test_the_python_blocks_of_a_page_run(page, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("HOME", str(tmp_path))
    blocks = blocks_of(ROOT / page)
    assert blocks
    names: dict[str, Any] = {"__name__": "page"}
    with broker() as running, asyncio.Runner() as runner:
        for number, block in enumerate(blocks, 1):
            text = block.replace(ADDRESS, running.name_server)
            execute(text, f"{page}, Python block {number}", names, runner)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def settings_in_tables(page: str) -> dict[str, str]:
    """Rows `| names | defaults | ... |`; those without a plain default are left out."""
    found = {}
    for names, defaults in re.findall(
        r"^\| (`[^|]*`) \| ([^|]+) \|", (ROOT / page).read_text(), re.MULTILINE
    ):
        keys, values = re.findall(r"`([^`]*)`", names), [text.strip(" `") for text in defaults.split(", ")]
        if len(keys) == len(values):
            found |= dict(zip(keys, values, strict=True))
    return found


def test_the_brokers_settings_have_the_defaults_in_the_table():
    shown = settings_in_tables("docs/operations.md")
    actual = BrokerSettings().properties()
    wrong = {
        key: shown[key] for key in shown if key in actual and key != "brokerIP1" and shown[key] != actual[key]
    }
    assert not wrong
    assert len(actual.keys() & shown.keys()) > 20


def test_the_clients_settings_have_the_defaults_in_the_table():
    shown = settings_in_tables("docs/client.md")
    settings = PushSettings(group="any")
    for name in (
        "pull_threshold_messages",
        "pull_threshold_mib",
        "max_span",
        "pull_batch",
        "pull_interval_ms",
    ):
        assert shown[name] == str(getattr(settings, name))
    popping = {name: text for name, text in settings_in_tables("docs/pop.md").items() if "pop_" in name}
    assert len(popping) > 5
    assert popping == {name: str(getattr(settings, name)) for name in popping}


def test_links_between_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/README.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page}: {target}"
