"""The demo is the first thing a newcomer runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "demo.py"


@pytest.mark.spark
@pytest.mark.timeout(500)
@pytest.mark.behaviour("PIPE-1", "PIPE-3", "PIPE-4", "CON-10")
def test_the_demo_runs_and_all_its_numbers_agree(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, DEMO, tmp_path / "demo"], capture_output=True, text=True, timeout=480, check=False
    )
    log = tmp_path / "demo" / "pipeline.log"
    assert done.returncode == 0, done.stdout + done.stderr + log.read_text()
    assert "All agree" in done.stdout
    assert "DIFF" not in done.stdout
    plots = [line.strip() for line in done.stdout.splitlines() if line.endswith(".png")]
    assert len(plots) == 4
    assert all(Path(plot).read_bytes().startswith(b"\x89PNG") for plot in plots)
