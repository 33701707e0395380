"""The demo is the first thing a newcomer runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "demo.py"


@pytest.mark.spark
@pytest.mark.behaviour("PIPE-1", "PIPE-3", "CON-10")
def test_the_demo_runs_and_all_its_numbers_agree() -> None:
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All agree" in done.stdout
    assert "DIFF" not in done.stdout
