"""Kills on a cluster of Spark processes, and other long tests: make chaos. Their quick twin, with a model of
Spark's engine, is test_driver_crashes.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kill_loop
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from spark_versions import python_with

pytestmark = [pytest.mark.spark, pytest.mark.chaos]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
@pytest.mark.scenario(4, 5, 8, 9, 10, 31)
@pytest.mark.behaviour("PIPE-2", "PIPE-3", "PIPE-5")
def test_a_killed_task_executor_broker_and_driver_lose_nothing_and_repeat_nothing_in_files(
    spark_full: None,
) -> None:
    outcome = kill_loop.run(["task", "worker", "broker", "driver"], seed=1)
    assert outcome.sent == outcome.in_parquet > 0
    assert outcome.driver_starts >= 2


@pytest.mark.timeout(3 * 3600)
@pytest.mark.scenario(4, 5, 8, 9, 10, 31)
@pytest.mark.parametrize("seed", [20_260])
def test_a_hundred_kills_at_random_moments(seed: int, spark_full: None) -> None:
    outcome = kill_loop.run(100, seed, say=lambda text: print(text, flush=True))
    print(outcome)
    assert outcome.sent == outcome.in_parquet > 0


@pytest.mark.timeout(1800)
@pytest.mark.scenario(22)
def test_a_stream_slower_than_its_producer_keeps_its_memory(spark_full: None) -> None:
    """Ten minutes: memory stays flat and what waits, waits on the broker."""
    minutes = float(os.environ.get("PENSTOCK_CHAOS_MINUTES", "10"))
    sizes = kill_loop.under_pressure(seconds=60 * minutes)
    half = len(sizes.resident_mb) // 2
    early, late = max(sizes.resident_mb[2:half]), max(sizes.resident_mb[half:])
    assert late < early * 1.15 + 50, f"from {early:.0f} to {late:.0f} MB"
    assert sizes.lag[-1] > sizes.lag[0]


@pytest.mark.timeout(600)
@pytest.mark.scenario(45)
def test_a_session_starts_on_the_packaged_java_alone(tmp_path: Path, spark_full: None) -> None:
    script = (
        "from penstock.spark import session\n"
        "spark = session('java', master='local[1]', memory='512m')\n"
        "print('sum', spark.range(10).groupBy().sum('id').first()[0])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    # bash and the like are needed to start Spark, so the rest of PATH is kept where it has no java.
    folders = [f for f in environment["PATH"].split(os.pathsep) if not Path(f, "java").exists()]
    (tmp_path / "bin").mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "ps", "nohup", "readlink", "tr", "sed", "uname"):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, name).exists():
                (tmp_path / "bin" / name).symlink_to(Path(folder, name))
                break
    environment["PATH"] = os.pathsep.join([str(tmp_path / "bin"), *folders])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sum 45" in done.stdout


@pytest.mark.timeout(1200)
@pytest.mark.scenario(44)
@pytest.mark.parametrize(("version", "streams"), [("4.1.4", False), ("4.2.0", True)])
def test_other_versions_of_spark(version: str, streams: bool, topics: Any, spark_full: None) -> None:
    """From 4.2 on limits hold; before that, batch reads work and a stream says what it needs."""
    python = python_with(version)
    topic = topics.new(2)
    topics.send(topic, 0, [b"x"] * 50)
    done = subprocess.run(
        [python, ROOT / "tests" / "spark" / "other_version.py", topics.name_server, topic],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "batch 50" in done.stdout
    if streams:
        assert "stream [20, 20, 10]" in done.stdout
    else:
        assert f"streams need PySpark 4.2 or newer, this is {version}" in done.stdout
