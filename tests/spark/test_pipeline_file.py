"""The file of a pipeline: mistakes show at once, without Spark, with their place and a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import main
from penstock.errors import InvalidArgument
from penstock.spark.pipeline.config import Archive, Pipeline, Replay, load
from penstock.spark.pipeline.state import claimed

ARCHIVE = """
[jobs.lake]
job = "archive"
topics = ["orders"]
path = "lake"
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "shop.toml"
    file.write_text(text)
    return file


def parse(folder: Path, text: str) -> Pipeline:
    return load(write(folder, text))


def test_a_short_file_is_enough(tmp_path, monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    pipeline = parse(tmp_path, ARCHIVE)
    assert pipeline.name == "shop"
    assert pipeline.name_server == "127.0.0.1:9876"
    job = pipeline.jobs["lake"]
    assert isinstance(job, Archive)
    assert (job.format, job.start, job.every) == ("parquet", "earliest", "1m")
    assert pipeline.path(job.path) == str(tmp_path / "lake")
    assert pipeline.path("s3a://bucket/lake") == "s3a://bucket/lake"
    assert pipeline.group("lake") == "shop-lake"


def test_the_name_server_is_that_of_the_command_then_the_file_then_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    assert parse(tmp_path, ARCHIVE).name_server == "env:1"
    file = write(tmp_path, f'name_server = "file:2"\n{ARCHIVE}')
    assert load(file).name_server == "file:2"
    assert load(file, name_server="command:3").name_server == "command:3"


def test_times_of_a_replay_are_toml_times_with_a_zone(tmp_path):
    text = '[jobs.again]\njob = "replay"\npath = "lake"\nto = "orders2"\nsince = 2026-11-01T00:00:00Z'
    job = parse(tmp_path, text).jobs["again"]
    assert isinstance(job, Replay)
    assert job.since is not None
    with pytest.raises(InvalidArgument, match=r"jobs\.again\.since.*timezone"):
        parse(tmp_path, text.replace("00Z", "00"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("[jobs", "shop.toml: Expected ']' at the end of a table declaration"),
        ('pipeline = "x"', "shop.toml: unknown setting pipeline; there are name, name_server, state"),
        ('nameserver = "x"\n' + ARCHIVE, "shop.toml: unknown setting nameserver; did you mean name_server?"),
        ("", "Object missing required field `jobs`"),
        ("[jobs]", "has no jobs"),
        ("[jobs.a]", "jobs.a: needs job = 'archive' or 'route' or 'replay' or 'report'"),
        ("[jobs.a]\njob = 'archiv'", "jobs.a: there is no job 'archiv'; did you mean archive?"),
        ("[jobs.'a b']\njob = 'archive'", "a job's name has letters, digits"),
        (ARCHIVE + "topcis = ['x']", "jobs.lake: unknown setting topcis; did you mean topics?"),
        (ARCHIVE + "every = 'soon'", "jobs.lake: 'soon' must be a duration such as 500ms"),
        (ARCHIVE + "every = '0s'", "longer than nothing"),
        (ARCHIVE + "every = 5", "jobs.lake.every: Expected `str`, got `int`"),
        (
            ARCHIVE + "format = 'orc'",
            "jobs.lake.format: Invalid enum value 'orc'; there are parquet, delta, iceberg",
        ),
        (
            ARCHIVE + "format = 'parket'",
            "jobs.lake.format: Invalid enum value 'parket'; did you mean parquet?",
        ),
        (
            f"name_server = 'localhost'\n{ARCHIVE}",
            "name_server: 'localhost' is not an address; write host:port",
        ),
        (ARCHIVE + "start = 'begin'", "jobs.lake.start: Invalid enum value 'begin'"),
        (ARCHIVE + "topic_pattern = 'o.*'", "needs topics or topic_pattern, and not both"),
        (ARCHIVE.replace("orders", "or ders"), "jobs.lake: 'or ders': "),
        (ARCHIVE + "table = 'a.b'", "table and catalog are for format = 'iceberg' only"),
        (ARCHIVE.replace('"lake"', '"s3://x"') + "format = 'delta'", "a delta table is written to a folder"),
        (
            ARCHIVE + "options = {maxOffsetPerTrigger = 5}",
            "options: unknown option maxOffsetPerTrigger; did you mean maxOffsetsPerTrigger?",
        ),
        (ARCHIVE + "options = {maxOffsetsPerTrigger = 0}", "option maxOffsetsPerTrigger='0': must be"),
        (ARCHIVE + "options = {subscribe = 'x'}", "options: subscribe is the job's own business"),
        (ARCHIVE + "options = {endingOffsets = 'latest'}", "endingOffsets only works for batch reads"),
        (ARCHIVE + "function = 'shop.py'", "jobs.lake.function: Expected `str` matching regex"),
        (ARCHIVE + ARCHIVE.replace("lake]", "lake2]"), "jobs.lake2 and jobs.lake write to the same path"),
        (ARCHIVE.replace("archive", "route").replace('path = "lake"', ""), "needs to or outputs"),
        ("[jobs.r]\njob='route'\ntopics=['a']\nto='a'", "reads and writes topic a: messages would go round"),
        (
            "[jobs.r]\njob='route'\ntopics=['a']\noutputs=[{topc='b'}]",
            "jobs.r.outputs[0]: unknown setting topc; did you mean topic?",
        ),
        ("[jobs.r]\njob='route'\ntopics=['a']\nto='b'\nsink={retry=1}", "did you mean retries?"),
        ("[jobs.r]\njob='report'\ntopics=[]\npath='r'", "jobs.r.topics: Expected `array` of length >= 1"),
        ("[jobs.r]\njob='report'\ntopics=['a']\npath='s3://r'", "a folder of this machine"),
        ("[spark]\nmster='x'\n" + ARCHIVE, "shop.toml.spark: unknown setting mster; did you mean master?"),
    ],
)
@pytest.mark.behaviour("PIPE-4")
def test_a_mistake_is_told_with_its_place(tmp_path, capsys, change, complaint):
    assert main(["pipeline", "run", str(write(tmp_path, change))]) == 1
    told = capsys.readouterr().err
    assert complaint in told
    assert len(told.splitlines()) == 1


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["pipeline", "run", str(tmp_path / "none.toml")]) == 1
    assert "none.toml: No such file or directory" in capsys.readouterr().err


def test_the_status_of_a_pipeline_that_never_ran(tmp_path, capsys):
    assert main(["pipeline", "status", str(write(tmp_path, ARCHIVE))]) == 1
    assert "the pipeline has not been run yet" in capsys.readouterr().err


def test_a_second_run_on_the_same_checkpoints_is_refused(tmp_path, capsys):
    file = write(tmp_path, ARCHIVE)
    with claimed(tmp_path / "state"):
        assert main(["pipeline", "run", str(file)]) == 1
    assert f"another run uses the checkpoints in {tmp_path / 'state'}" in capsys.readouterr().err
    with claimed(tmp_path / "state"):  # the first one has ended
        pass


def test_checkpoints_elsewhere_are_not_on_this_machine(tmp_path):
    assert parse(tmp_path, ARCHIVE).local_state == tmp_path / "state"
    assert parse(tmp_path, f'state = "s3a://bucket/state"\n{ARCHIVE}').local_state is None
