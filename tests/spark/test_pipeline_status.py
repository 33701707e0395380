"""What a running pipeline shows, and what the numbers mean."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.cli.pipeline_display import Display, status_lines
from penstock.errors import InvalidArgument
from penstock.message.queue import MessageQueue
from penstock.spark.offsets import StreamOffset, initial_offset
from penstock.spark.pipeline.config import Pipeline, load
from penstock.spark.pipeline.progress import lag
from penstock.spark.pipeline.status import JobStatus, Rate, Status, read_status, write_status

BEGAN = datetime(2026, 11, 18, 1, 0, tzinfo=UTC)


def offsets(**queues: int) -> str:
    places = {MessageQueue("orders", "broker-a", int(name[1:])): offset for name, offset in queues.items()}
    return json.dumps(StreamOffset(places, {}).to_json())


def test_the_lag_is_what_the_queues_have_beyond_the_end_of_the_batch() -> None:
    assert lag([(offsets(q0=5, q1=7), offsets(q0=10, q1=7))]) == 5
    assert lag([(offsets(q0=5), offsets(q0=9)), (offsets(q0=1), offsets(q0=2))]) == 5
    assert lag([(offsets(q0=5), offsets(q0=3))]) == 0, "a queue that fell back is not a negative backlog"
    assert lag([(offsets(q0=5), json.dumps(initial_offset("earliest")))]) is None
    assert lag([(offsets(q0=5), "null")]) is None


def test_a_rate_forgets_what_is_older_than_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("penstock.spark.pipeline.status.time.monotonic", lambda: clock[0])
    rate = Rate()
    clock[0] += 10
    rate.add(600)
    assert rate.per_second() == 60.0, "a young job is measured over its life"
    clock[0] += 50
    assert rate.per_second() == 10.0
    clock[0] += 11
    assert rate.per_second() == 0.0


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    file = tmp_path / "shop.toml"
    file.write_text(
        'name_server = "ns:1"\n[jobs.lake]\njob = "archive"\ntopics = ["orders"]\npath = "lake"\n'
    )
    return load(file)


def status(**changes: object) -> Status:
    job = JobStatus(name="lake", job="archive", **changes)  # type: ignore[arg-type]
    return Status(
        pipeline="shop", pid=1, started_at=BEGAN, updated_at=BEGAN + timedelta(seconds=75), jobs=[job]
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_table_stays_in_its_place(pipeline: Pipeline) -> None:
    out = Terminal()
    display = Display(pipeline, out)
    assert "shop: 1 job on ns:1" in out.getvalue()
    display.show(status(state="running", messages=10, lag=5))
    before = len(out.getvalue())
    display.show(status(state="running", messages=20, lag=0))
    drawn = out.getvalue()[before:]
    assert drawn.startswith("\x1b[3A\x1b[J"), "three lines up, and clear"
    assert drawn.splitlines()[1].split() == [
        "job",
        "kind",
        "state",
        "messages",
        "per",
        "s",
        "lag",
        "runs",
        "restarts",
    ]
    assert drawn.splitlines()[2].split() == ["lake", "archive", "running", "20", "0.00", "0", "0", "0"]


def test_without_a_terminal_only_news_are_printed(pipeline: Pipeline) -> None:
    out = io.StringIO()
    display = Display(pipeline, out)
    display.show(status(state="running", messages=0))
    display.show(status(state="running", messages=20))
    display.show(status(state="restarting", messages=20, error="no disk", restarts=1))
    assert out.getvalue().splitlines()[1:] == [
        "lake: running, 0 messages",
        "lake: restarting, 20 messages (last error: no disk)",
    ]
    display.end(status(state="stopped", messages=20))
    assert out.getvalue().splitlines()[-1] == "shop: running"


def test_the_status_file_is_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "state" / "status.json"
    written = status(state="waiting", messages=3, lag=None, next_at=BEGAN)
    write_status(written, file)
    assert read_status(file) == written
    assert [path.name for path in file.parent.iterdir()] == ["status.json"]
    assert "0:01:15" in status_lines(written)[0]
    file.write_text("{}")
    with pytest.raises(InvalidArgument, match="is not the status of a pipeline"):
        read_status(file)
