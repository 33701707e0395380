"""The bounds of the Spark benchmark. Each part is bench/spark.py itself; on a busy machine they mean nothing,
so they run only when asked for: make floors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from spark_report import Figure, PartResult, Report, keep_results, load_results, read_figures

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.scenario(48)
@pytest.mark.parametrize("part", ["codec", "start", "ceilings", "source", "stream", "triggers", "defaults"])
def test_every_bound_of_the_benchmark_is_held(part: str, tmp_path: Path, spark_full: None) -> None:
    results = tmp_path / "spark"
    command = [sys.executable, BENCH / "spark.py", "--parts", part, "--results", results]
    done = subprocess.run(command, check=False)
    table = results.with_suffix(".txt").read_text()
    figures = json.loads(results.with_suffix(".json").read_text())[part]["figures"]
    assert any(figure["bound"] is not None for figure in figures)
    assert done.returncode == 0, table


@pytest.mark.parametrize(
    ("unit", "value", "missed"),
    [
        ("rows/s", 99.0, True),
        ("rows/s", 101.0, False),
        ("ms", 99.0, False),
        ("s", 101.0, True),
        ("", 99.0, True),
    ],
)
def test_rates_and_ratios_have_a_floor_and_times_a_ceiling(unit: str, value: float, missed: bool) -> None:
    figure = Figure("what", unit, value, bound=100.0)
    assert figure.missed is missed
    assert ("MISSED" in figure.line()) is missed


def test_figures_are_kept_as_they_come_and_with_their_circumstances(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(tmp_path / "figures")
    report.rate("source", 1.5e6, bound=1e6, cpu_us=2.0)
    report.time("trigger", 120.0)
    figures = read_figures(tmp_path / "figures")
    assert [figure.name for figure in figures] == ["source", "trigger"]
    assert "held (>= 1.000)" in capsys.readouterr().out
    part = PartResult("a part", "now", 0.1, 3, 0.4, 1.0, 60.0, False, figures)
    keep_results(tmp_path / "deep" / "kept.json", {"part": part})
    assert load_results(tmp_path / "deep" / "kept.json") == {"part": part}
    assert "FAILED" in "\n".join(part.lines())
