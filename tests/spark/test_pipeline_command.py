"""`penstock pipeline run` as a process: killed, started again, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from penstock.cli import main

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
PATIENCE_S = 200.0


def start(file: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "run", str(file), "--master", "local[2,4]"]
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)


def wait_for(condition: Callable[[dict[str, Any]], bool], file: Path, process: Any, log: Path) -> None:
    """Until the status file of this very process says so."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        if file.exists():
            status = json.loads(file.read_bytes())
            if status["pid"] == process.pid and condition(status["jobs"][0]):
                return
        time.sleep(0.1)
    raise AssertionError(f"{file.read_text() if file.exists() else 'no status'}\n{log.read_text()}")


@pytest.mark.spark
@pytest.mark.behaviour("PIPE-2", "PIPE-4")
@pytest.mark.timeout(600)
def test_an_archive_that_is_killed_and_started_again_has_no_gap_and_no_repeat(
    topics: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topics.new(2)
    file, log = tmp_path / "shop.toml", tmp_path / "log"
    file.write_text(f"""
        name_server = "{topics.name_server}"
        spark = {{ memory = "1g", config = {{ "spark.driver.extraJavaOptions" = "{QUICK_JAVA}" }} }}

        [jobs.lake]
        job = "archive"
        topics = ["{topic}"]
        path = "lake"
        every = "100ms"
        options = {{ maxOffsetsPerTrigger = 20 }}
        """)
    for queue in (0, 1):
        topics.send(topic, queue, [b"x"] * 500)
    status = tmp_path / "state" / "status.json"
    process = start(file, log)
    try:
        # In the middle of the work: batches are small and follow each other at once.
        wait_for(lambda job: job["runs"] >= 3 and job["lag"] > 0, status, process, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    topics.send(topic, 0, [b"x"] * 10)
    file.write_text(file.read_text().replace("maxOffsetsPerTrigger = 20", "maxOffsetsPerTrigger = 2000"))
    process = start(file, log)
    try:
        wait_for(lambda job: job["runs"] >= 1 and job["lag"] == 0, status, process, log)
        capsys.readouterr()
        assert main(["pipeline", "status", str(file)]) == 0
        assert "lake  archive  running" in capsys.readouterr().out
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    printed = log.read_text()
    assert printed.splitlines()[-1] == "shop: stopped"
    # A worker of Spark that loses its socket while everything stops may say so; nothing of ours does.
    assert "/penstock/" not in "".join(line for line in printed.splitlines() if line.startswith("  File"))
    rows = ds.dataset(tmp_path / "lake", partitioning="hive").to_table(["queueId", "queueOffset"]).to_pylist()
    places = sorted((row["queueId"], row["queueOffset"]) for row in rows)
    assert places == [*((0, i) for i in range(510)), *((1, i) for i in range(500))]
    assert topics.group_offset(topic, "shop-lake", 0) == 510, "lag displays see the progress"
