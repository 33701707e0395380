"""The script that data engineers copy."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parents[2] / "examples" / "spark_analytics"


@pytest.fixture
def analytics() -> Any:
    spec = importlib.util.spec_from_file_location("analytics", FOLDER / "analytics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.spark
@pytest.mark.behaviour("PIPE-1", "PIPE-2", "PIPE-3")
def test_the_script_does_what_its_readme_shows(
    analytics: Any,
    spark: SparkSession,
    topics: Any,
    read: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    analytics.main(spark, topics.name_server, str(tmp_path))
    printed = capsys.readouterr().out.splitlines()
    shown = (FOLDER / "README.md").read_text().partition("analytics.py\n300")[2].partition("```")[0]
    expected = f"300{shown}".splitlines()
    for line, wanted in zip(printed, expected[:5], strict=False):
        assert line.startswith(wanted.removesuffix("..."))
    totals = [json.loads(row.body) for row in read(analytics.REVENUE).collect()]
    assert sum(total["orders"] for total in totals) == 200
    assert sum(total["cents"] for total in totals) == sum(100 + n for n in range(300) if n % 3)
