"""`penstock sql`: topics as tables of a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from penstock.cli import main
from penstock.spark.failures import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def sql(spark: SparkSession, topics: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """The command, in the session of the tests, which it must not end."""
    monkeypatch.setattr("penstock.cli.sql._session", lambda options: _Kept(spark))

    def run(*arguments: str) -> str:
        capsys.readouterr()
        code = main(["sql", *arguments, "--name-server", topics.name_server])
        captured = capsys.readouterr()
        return captured.out if code == 0 else f"exit code {code}: {captured.err}"

    return run


class _Kept:
    """A session whose end is somebody else's business."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        pass


@pytest.fixture
def orders(topics: Any) -> str:
    topic: str = topics.new(2)
    topics.send(topic, 0, [b'{"cents": 5}'] * 3, b"TAGS\x01paid\x02KEYS\x0117\x02")
    topics.send(topic, 1, [b'{"cents": 7}', b"\xff\x00"], b"TAGS\x01open\x02")
    return topic


@pytest.mark.spark
def test_a_query_over_a_topic_is_a_table(sql: Any, orders: str) -> None:
    out = sql(f"SELECT tags, count(*) AS n FROM `{orders}` GROUP BY tags ORDER BY tags")
    assert out.splitlines() == ["tags  n", "open  2", "paid  3"]


@pytest.mark.spark
def test_topics_can_be_joined_and_named_in_subqueries(sql: Any, topics: Any, orders: str) -> None:
    names = topics.new(1)
    topics.send(names, 0, [b"Kim"], b"KEYS\x0117\x02")
    out = sql(
        f"WITH paid AS (SELECT * FROM `{orders}` WHERE tags = 'paid') "
        f"SELECT n.text AS name, sum(get_json_object(p.text, '$.cents')) AS cents "
        f"FROM paid p JOIN `{names}` n ON n.keys = p.keys GROUP BY 1",
        "--format",
        "json",
    )
    assert json.loads(out) == [{"name": "Kim", "cents": 15.0}]


@pytest.mark.spark
def test_csv_and_parquet(sql: Any, orders: str, tmp_path: Path) -> None:
    query = f"SELECT queueOffset, body FROM `{orders}` WHERE tags = 'open' ORDER BY queueOffset"
    assert sql(query, "--format", "csv").splitlines() == ["queueOffset,body", '0,"{""cents"": 7}"', "1,/wA="]
    assert sql(query, "--format", "parquet", "--out", str(tmp_path / "p")).startswith("written to")
    assert pq.read_table(tmp_path / "p")["body"].to_pylist() == [b'{"cents": 7}', b"\xff\x00"]
    query = f"SELECT queueOffset, properties, text FROM `{orders}` WHERE tags = 'paid' AND queueOffset = 0"
    sql(query, "--format", "csv", "--out", str(tmp_path / "c"))
    (part,) = (tmp_path / "c").glob("*.csv")
    header, row = part.read_text().splitlines()
    assert header == "queueOffset,properties,text"
    assert row.startswith('0,"{')
    again = sql(query, "--format", "csv", "--out", str(tmp_path / "c"))
    assert "already exists" in again


@pytest.mark.spark
def test_a_long_result_is_cut_and_says_so(sql: Any, orders: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = sql(f"SELECT queueOffset FROM `{orders}`", "--limit", "2")
    assert len(out.splitlines()) == 3


@pytest.mark.spark
@pytest.mark.parametrize(("since", "count"), [("1h", "5"), ("0s", "0")])
def test_since_leaves_out_what_is_older(sql: Any, orders: str, since: str, count: str) -> None:
    assert sql(f"SELECT count(*) AS n FROM `{orders}`", "--since", since).split() == ["n", count]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("SELECT * FROM none", "topic none does not exist"),
        ("SELECT * FROM a.b", "a.b is not a topic: name topics without a schema"),
        ("SELECT nme FROM `{orders}`", "A column, variable, or function parameter with name `nme`"),
        ("SELEC 1", "Syntax error at or near 'SELEC'"),
        ("SELECT raise_error('boom') FROM `{orders}`", "boom"),
    ],
)
def test_what_is_wrong_is_told_without_a_traceback(sql: Any, orders: str, query: str, complaint: str) -> None:
    told = sql(query.format(orders=orders))
    assert told.startswith("exit code 1: penstock: ")
    assert complaint in told
    assert "Traceback" not in told
    assert "at org.apache" not in told


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--format", "parquet"], "--format parquet needs --out PATH"),
        (["--out", "x"], "--out needs --format csv, json or parquet"),
        (["--since", "yesterday"], "--since yesterday: must be a duration such as"),
        (["-n", "nowhere"], "'nowhere' is not an address; write host:port"),
    ],
)
def test_options_are_checked_before_spark_starts(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", "SELECT 1", *arguments]) == 1
    assert complaint in capsys.readouterr().err


def test_the_reason_of_a_failure_is_one_line() -> None:
    assert reason("") == "str"
    assert reason("[X] bad thing. SQLSTATE: 42K02;\n at 'plan") == "[X] bad thing."
    java = "An error occurred while calling o1.save.\n: org.apache.Spark: [Y] no. SQLSTATE: 1\n\tat x"
    assert reason(java) == "[Y] no."
    python = (
        "[STREAM_FAILED] Query [a] terminated with exception: x\nTraceback (most recent call last):\n"
        '  File "f.py", line 1, in f\npenstock.errors.TopicNotFound: topic a is gone\n\n\tat java'
    )
    assert reason(python) == "topic a is gone"
    assert reason(python.replace("penstock.errors.TopicNotFound", "KeyError")) == "KeyError: topic a is gone"
