"""A pipeline on a Spark cluster of several processes against two broker shards: make cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from standalone import Standalone

from penstock import Message, sync

TAGS = ("paid", "shipped", "returned")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path / "spark")
    yield running
    running.stop()


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.behaviour("PIPE-5")
def test_a_pipeline_on_two_workers_reads_two_shards_and_writes_back(
    cluster: Standalone,
    start: Callable[..., Any],
    penstock: Callable[..., Any],
    tmp_path: Path,
    spark_full: None,
) -> None:
    serve = start("serve", "--shards", "2")
    assert len(serve.addresses) == 2
    for topic, queues in (("orders", "3"), ("sums", "1")):
        made = penstock("topic", "create", topic, "-q", queues, "-n", serve.name_server)
        assert made.returncode == 0, made.stderr
    with sync.Producer(serve.name_server, group="cluster") as producer:
        producer.send_many([Message("orders", b"%d" % i, tag=TAGS[i % 3]) for i in range(6000)])
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "cluster_job.py", cluster.url, serve.name_server, tmp_path],
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("facts "))
    facts = json.loads(line.removeprefix("facts "))
    print(facts)
    assert facts["executors"] == 2
    assert facts["table rows"] == facts["distinct rows"] == 6000
    assert len(facts["brokers"]) == 2
    assert facts["by tag"] == dict.fromkeys(TAGS, 2000)
    assert {"paid=2000", "shipped=2000", "returned=2000"} <= set(facts["sums"])
