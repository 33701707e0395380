"""`penstock pipeline`: ready jobs on Spark, from a file."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from penstock.cli.output import add_json, print_json
from penstock.errors import MissingExtra

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from penstock.spark.pipeline.config import Pipeline

    Subparsers = _SubParsersAction[argparse.ArgumentParser]

EXAMPLE = """a file:
  name_server = "127.0.0.1:9876"

  [jobs.lake]
  job = "archive"             # topics into Parquet files, each message once
  topics = ["orders"]
  path = "lake/orders"

  [jobs.figures]
  job = "report"              # rates, latencies, retries, dead letters, top keys: tables and plots
  topics = ["orders"]
  groups = ["billing"]
  path = "reports/orders"

The other jobs are route (topics to topics) and replay (lake to topic).
"""


def register(subparsers: Subparsers) -> None:
    pipeline = subparsers.add_parser("pipeline", help="archive, route, replay and report topics with Spark")
    verbs = pipeline.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run = verbs.add_parser(
        "run",
        help="run the jobs of a file until Ctrl-C",
        description="Run the jobs of a file until Ctrl-C.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("file", type=Path, metavar="FILE.toml")
    run.add_argument("--once", action="store_true", help="do what there is to do now, then end")
    run.add_argument("--master", help="Spark master (default: the file's, SPARK_MASTER, all cores here)")
    run.add_argument(
        "-n",
        "--name-server",
        metavar="HOST:PORT",
        help="name servers, separated by ';' (default: the file's, NAMESRV_ADDR, 127.0.0.1:9876)",
    )
    run.set_defaults(run=_run)
    status = verbs.add_parser("status", help="how the jobs of a running pipeline are doing")
    status.add_argument("file", type=Path, metavar="FILE.toml")
    add_json(status)
    status.set_defaults(run=_status)


def _load(file: Path, name_server: str | None = None) -> Pipeline:
    try:
        from penstock.spark.pipeline.config import load
    except ImportError as error:
        raise MissingExtra("pipelines need Spark: pip install 'penstock[spark]'") from error
    return load(file, name_server=name_server)


def _run(options: argparse.Namespace) -> int:
    pipeline = _load(options.file, options.name_server)
    from penstock.spark.pipeline.state import claimed

    if pipeline.local_state is None:
        return _run_jobs(pipeline, options)
    with claimed(pipeline.local_state):
        return _run_jobs(pipeline, options)


def _run_jobs(pipeline: Pipeline, options: argparse.Namespace) -> int:
    # Spark comes last: mistakes in the file should show in a second, not in ten.
    from penstock.cli.pipeline_display import Display
    from penstock.spark import session
    from penstock.spark.pipeline.config import option_texts
    from penstock.spark.pipeline.runner import Runner

    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    display = Display(pipeline, sys.stdout)
    spark = session(
        pipeline.name,
        master=options.master or pipeline.spark.master,
        memory=pipeline.spark.memory,
        local_checkpoints=pipeline.local_state is not None,
        config={"spark.log.level": "OFF"} | option_texts(pipeline.spark.config),
    )
    runner = Runner(spark, pipeline, once=options.once, on_change=display.show)
    signals = _Signals(runner.stop)  # not earlier: a new session puts a handler of its own in place
    try:
        finished = runner.run()
    finally:
        signals.forget()
        spark.stop()
    display.end(runner.status)
    return 0 if finished else 1


class _Signals:
    """Ctrl-C and SIGTERM end a run in good order; the second one ends it at once."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._seen = False
        self._before = {number: signal.signal(number, self._on) for number in (signal.SIGINT, signal.SIGTERM)}

    def forget(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on(self, number: int, frame: FrameType | None) -> None:
        if self._seen:
            raise KeyboardInterrupt
        self._seen = True
        self._stop()


def _status(options: argparse.Namespace) -> int:
    pipeline = _load(options.file)
    from penstock.cli.pipeline_display import print_status
    from penstock.spark.pipeline.status import read_status

    status = read_status(pipeline.status_file)
    if options.json:
        print_json(status)
    else:
        print_status(status, sys.stdout)
    return 0 if status.state != "failed" else 1
