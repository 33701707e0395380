"""Virtualenvs with another version of PySpark, kept for the next run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("PENSTOCK_CACHE", "~/.cache/penstock")).expanduser()


def python_with(version: str) -> Path:
    """The interpreter of a virtualenv with this PySpark and all that our source needs, not with ourselves."""
    folder = CACHE / f"pyspark-{version}"
    python, marker = folder / "bin" / "python", folder / "complete"
    if not marker.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pinned = (ROOT / "constraints.txt").read_text().splitlines()
        lines = [line for line in pinned if not line.startswith(("py4j=", "pyspark="))]
        (folder / "constraints.txt").write_text("\n".join(lines))
        wanted = [f"pyspark=={version}", "pyarrow", "numpy", "pandas", "msgspec", "uvloop"]
        pip = [python, "-m", "pip", "install", "-q", "-c", folder / "constraints.txt", *wanted]
        subprocess.run(pip, check=True)
        marker.touch()
    return python
