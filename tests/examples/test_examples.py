"""Every example is run as its README says, against a real broker, and must print what its README shows.

A console block of a README is a script: `$ ` begins a command, the lines below it are what it prints. `...`
stands for anything. The order of lines is not compared: examples do things side by side.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.testing import broker

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ELSEWHERE = {"demo", "spark_analytics"}
"""Run by tests/spark/test_demo.py and test_analytics.py, which share a Spark session with other tests."""
FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and not path.name.startswith("_"))
TOOLS = {"python": [sys.executable], "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]}


class Run(NamedTuple):
    command: str
    shown: list[str]


def runs_of(folder: str) -> list[Run]:
    runs: list[Run] = []
    for block in re.findall(
        r"```console\n(.*?)```", (EXAMPLES / folder / "README.md").read_text(), re.DOTALL
    ):
        for line in block.splitlines():
            if line.startswith("$ "):
                runs.append(Run(line.removeprefix("$ "), []))
            elif line != "...":
                runs[-1].shown.append(line)
    return runs


def execute(command: str, name_server: str) -> subprocess.CompletedProcess[str]:
    tool, *arguments = shlex.split(command)
    return subprocess.run(
        [*TOOLS[tool], *arguments],
        cwd=ROOT,
        env={**os.environ, "NAMESRV_ADDR": name_server, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def pattern(shown: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, shown.split("..."))))


@pytest.fixture(scope="module")
def name_server() -> Iterator[str]:
    with broker() as running:
        yield running.name_server


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder not in ELSEWHERE])
def test_an_example_does_what_its_readme_shows(folder, name_server):
    runs = runs_of(folder)
    assert runs, f"examples/{folder}/README.md does not say how to run it"
    for run in runs:
        done = execute(run.command, name_server)
        everything = f"$ {run.command}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, everything
        assert not done.stderr, everything
        printed = done.stdout.splitlines()
        missing = [line for line in run.shown if not any(map(pattern(line).fullmatch, printed))]
        assert not missing, f"{missing} not printed:\n{everything}"


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder not in ELSEWHERE])
def test_every_program_of_an_example_is_named_in_its_readme(folder):
    readme = (EXAMPLES / folder / "README.md").read_text()
    for program in (EXAMPLES / folder).glob("*.py"):
        assert program.name in readme


def test_all_examples_are_listed():
    listed = re.findall(r"^\| \[(\w+)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == FOLDERS


@pytest.mark.parametrize(
    "folder", [folder for folder in FOLDERS if folder not in {*ELSEWHERE, "pytest_broker"}]
)
def test_an_example_fails_without_a_broker(folder):
    """The exit code says so, and the last line says why."""
    for run in runs_of(folder):
        done = execute(run.command, "127.0.0.1:9")
        assert done.returncode == 1
        assert "no name server can be reached" in done.stderr.splitlines()[-1]
