"""The ready jobs, each from a file, on a real Spark and a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.errors import InvalidArgument, PenstockError
from penstock.message.queue import MessageQueue
from penstock.spark.pipeline.config import Archive, Pipeline, load
from penstock.spark.pipeline.runner import Runner
from penstock.spark.pipeline.status import JobStatus, read_status
from penstock.spark.pipeline.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.behaviour("PIPE-4")]

Make = Callable[[str], Pipeline]
Run = Callable[[str], dict[str, JobStatus]]


@pytest.fixture
def make(topics: Any, tmp_path: Path) -> Make:
    """A pipeline of this text, always in the same folder and under the same name."""

    def write(text: str) -> Pipeline:
        file = tmp_path / "test.toml"
        file.write_text(f'name_server = "{topics.name_server}"\n{text}')
        return load(file)

    return write


@pytest.fixture
def run(make: Make, spark: SparkSession) -> Run:
    """Does what a file says, once, and gives what the status file says of it."""

    def run_once(text: str) -> dict[str, JobStatus]:
        pipeline = make(text)
        Runner(spark, pipeline, once=True).run()
        return {job.name: job for job in read_status(pipeline.status_file).jobs}

    return run_once


def send_returned(topics: Any, topic: str, count: int, properties: str = "") -> None:
    """Into a retry or dead-letter topic, which take no batches."""
    from penstock.wire.codes import RequestCode
    from penstock.wire.headers import SendHeaderV2

    topics.set_queues(topic, 1)
    (address,) = topics.addresses().values()
    header = SendHeaderV2(
        producer_group="tests",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=time.time_ns() // 1_000_000,
        flag=0,
        properties=properties,
    )
    for _ in range(count):
        send = topics.brokers.api.send(address, RequestCode.SEND_MESSAGE_V2, header, b"again", 5_000)
        assert topics.brokers.run(send).code == 0


def forget_last_batch(tmp_path: Path, job: str) -> None:
    """As after a crash between the write and Spark's own mark."""
    commits = tmp_path / "state" / job / "checkpoint" / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)


# ---- archive ------------------------------------------------------------------------------------


def read_parquet(path: Path) -> Any:
    return ds.dataset(path, partitioning="hive").to_table()


def read_delta(path: Path) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(path).to_pyarrow_table()


def read_iceberg(path: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{path}/catalog.db")
    return catalog.load_table("penstock.messages").scan().to_arrow()


@pytest.mark.behaviour("PIPE-2")
@pytest.mark.scenario(47)
@pytest.mark.parametrize(
    ("form", "read_table"),
    [("parquet", read_parquet), ("delta", read_delta), ("iceberg", read_iceberg)],
    ids=["parquet", "delta", "iceberg"],
)
def test_an_archive_has_every_message_once_even_when_a_batch_is_run_again(
    run: Run, topics: Any, tmp_path: Path, form: str, read_table: Callable[[Path], Any]
) -> None:
    first, second = topics.new(2), topics.new(1)
    text = f"""
        [jobs.lake]
        job = "archive"
        topics = ["{first}", "{second}"]
        path = "lake"
        format = "{form}"
        """
    topics.send(first, 0, [b"a"] * 30, b"TAGS\x01paid\x02KEYS\x0117\x02color\x01red\x02")
    topics.send(first, 1, [b"b"] * 20)
    topics.send(second, 0, [b"c"] * 10)
    status = run(text)["lake"]
    assert (status.state, status.messages, status.lag) == ("done", 60, 0)
    forget_last_batch(tmp_path, "lake")
    topics.send(second, 0, [b"d"] * 5)
    assert run(text)["lake"].runs == 2, "the forgotten batch and the new one"
    rows = read_table(tmp_path / "lake").to_pylist()
    places = sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)
    assert places == sorted(
        [(first, 0, i) for i in range(30)]
        + [(first, 1, i) for i in range(20)]
        + [(second, 0, i) for i in range(15)]
    )
    paid = [row for row in rows if row["queueId"] == 0 and row["topic"] == first]
    assert {(row["tags"], row["keys"], row["body"]) for row in paid} == {("paid", "17", b"a")}
    assert dict(paid[0]["properties"])["color"] == "red"
    assert {str(row["day"]) for row in rows} <= {
        str(row["storeTimestamp"].astimezone(UTC).date()) for row in rows
    }


@pytest.mark.parametrize(
    ("form", "read_table"),
    [("parquet", read_parquet), ("delta", read_delta), ("iceberg", read_iceberg)],
    ids=["parquet", "delta", "iceberg"],
)
def test_a_table_takes_any_topic_and_every_batch_of_a_query_once(
    make: Make, spark: SparkSession, tmp_path: Path, form: str, read_table: Callable[[Path], Any]
) -> None:
    text = f'[jobs.lake]\njob = "archive"\ntopics = ["any"]\npath = "lake"\nformat = "{form}"'
    pipeline = make(text)
    job = pipeline.jobs["lake"]
    assert isinstance(job, Archive)
    rows = [("%RETRY%billing", "2026-11-18", 1), ("007", "2026-11-19", 2)]
    batch = spark.createDataFrame(rows, "topic string, day string, number int")
    for query_id, batch_id in (("q1", 0), ("q1", 0), ("q1", 1), ("q2", 0)):
        open_table(job, pipeline).add(batch, query_id, batch_id)
    open_table(job, pipeline).add(batch.limit(0), "q2", 1)
    found = open_table(job, pipeline).read(spark).select("topic", "day", "number").collect()
    assert sorted(tuple(row) for row in found) == sorted(3 * rows)
    table = read_table(tmp_path / "lake").to_pylist()
    assert sorted((row["number"], str(row["day"])) for row in table) == sorted(
        3 * [(n, d) for _, d, n in rows]
    )
    if form != "parquet":
        with pytest.raises(InvalidArgument, match="has other columns than this job"):
            open_table(job, pipeline).add(batch.withColumn("more", batch.number), "q3", 0)


def test_a_transform_decides_what_is_archived(run: Run, topics: Any, tmp_path: Path) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b'{"cents": 5}', b'{"cents": 7}', b"{}"])
    run(f"""
        [jobs.lake]
        job = "archive"
        topics = ["{topic}"]
        path = "lake"
        where = "text LIKE '%cents%'"
        sql = "SELECT topic, day, cast(get_json_object(text, '$.cents') AS int) AS cents FROM messages"
        """)
    assert sorted(read_parquet(tmp_path / "lake")["cents"].to_pylist()) == [5, 7]


# ---- replay -------------------------------------------------------------------------------------


def test_a_replay_sends_a_stretch_of_an_archive_as_it_was(
    run: Run, topics: Any, read: Callable[..., Any], tmp_path: Path
) -> None:
    topic, target = topics.new(2), topics.new(2)
    marked = b"TAGS\x01paid\x02KEYS\x0117\x02color\x01red\x02__SHARDINGKEY\x01kim\x02"
    topics.send(topic, 0, [b"too early"] * 4)
    time.sleep(0.01)
    since = datetime.now(UTC)
    topics.send(topic, 0, [b"%d" % i for i in range(20)], marked)
    topics.send(topic, 0, [b"not wanted"] * 4)
    time.sleep(0.01)
    until = datetime.now(UTC)
    topics.send(topic, 1, [b"too late"] * 4)
    text = f"""
        [jobs.lake]
        job = "archive"
        topics = ["{topic}"]
        path = "lake"
        format = "iceberg"

        [jobs.again]
        job = "replay"
        path = "lake"
        format = "iceberg"
        to = "{target}"
        since = {since.isoformat()}
        until = {until.isoformat()}
        where = "tags = 'paid'"
        """
    assert run(text)["again"].messages == 20
    rows = read(target).orderBy("queueId", "queueOffset").collect()
    assert [bytes(row.body) for row in rows] == [b"%d" % i for i in range(20)]
    assert {(row.tags, row["keys"], row.properties["color"]) for row in rows} == {("paid", "17", "red")}
    assert len({row.queueId for row in rows}) == 1, "a sharding key keeps its messages in one queue"
    assert run(text)["again"].messages == 0, "a replay happens once"


def test_a_replay_says_what_it_cannot_read(run: Run, topics: Any, tmp_path: Path, fast_retries: None) -> None:
    target = topics.new(1)
    complaints = {
        "parquet": "path: [PATH_NOT_FOUND]",
        "delta": "is not a Delta table",
        "iceberg": "path: there is no folder",
    }
    replays = [
        f'[jobs.{form}]\njob = "replay"\npath = "none"\nformat = "{form}"\nto = "{target}"'
        for form in complaints
    ]
    jobs = run("\n".join(replays))
    for form, complaint in complaints.items():
        assert jobs[form].state == "failed"
        assert complaint in (jobs[form].error or "")


# ---- route --------------------------------------------------------------------------------------


def test_a_route_fans_out_by_conditions(
    run: Run, topics: Any, read: Callable[..., Any], tmp_path: Path
) -> None:
    topic, paid, large = topics.new(1), topics.new(1), topics.new(1)
    topics.send(topic, 0, [b"5", b"500"], b"TAGS\x01paid\x02KEYS\x01k\x02color\x01red\x02")
    topics.send(topic, 0, [b"700", b"1"], b"TAGS\x01open\x02")
    status = run(f"""
        [jobs.fan]
        job = "route"
        topics = ["{topic}"]
        outputs = [
          {{ topic = "{paid}", where = "tags = 'paid'" }},
          {{ topic = "{large}", where = "cast(text AS int) > 100" }},
        ]
        """)["fan"]
    assert (status.state, status.messages) == ("done", 4)
    rows = read(paid).orderBy("queueOffset").collect()
    assert [bytes(row.body) for row in rows] == [b"5", b"500"]
    assert {(row.tags, row["keys"], row.properties["color"]) for row in rows} == {("paid", "k", "red")}
    assert sorted(bytes(row.body) for row in read(large).collect()) == [b"500", b"700"]


def test_a_route_transforms_with_sql_and_python(
    run: Run, topics: Any, read: Callable[..., Any], tmp_path: Path
) -> None:
    topic, target = topics.new(1), topics.new(1)
    topics.send(topic, 0, [b"1", b"2", b"3"])
    (tmp_path / "shop_functions.py").write_text(
        "from pyspark.sql import functions\n"
        "@functions.udf('string')\n"
        "def double(text):\n"
        "    return str(2 * int(text))\n"
        "def doubled(messages):\n"
        "    return messages.withColumn('body', double('body'))\n"
    )
    run(f"""
        [jobs.double]
        job = "route"
        topics = ["{topic}"]
        where = "text > 1"
        sql = "SELECT text AS body, concat('n', text) AS keys, '{target}' AS topic FROM messages"
        function = "shop_functions:doubled"
        """)
    rows = read(target).orderBy("keys").collect()
    assert [(row["keys"], bytes(row.body)) for row in rows] == [("n2", b"4"), ("n3", b"6")]


# ---- report -------------------------------------------------------------------------------------


def test_a_report_counts_what_was_sent_failed_and_died(run: Run, topics: Any, tmp_path: Path) -> None:
    topic = topics.new(2)
    group = f"billing-{topic}"
    topics.send(topic, 0, [b"x"] * 30, b"KEYS\x01kim order-1\x02")
    topics.send(topic, 1, [b"x"] * 10, b"KEYS\x01sam\x02")
    send_returned(topics, f"%RETRY%{group}", 8, f"RETRY_TOPIC\x01{topic}\x02")
    send_returned(topics, f"%DLQ%{group}", 2, f"DLQ_ORIGIN_TOPIC\x01{topic}\x02")
    ((name, address),) = topics.addresses_of(topic).items()
    for queue_id, offset in ((0, 12), (1, 10)):
        queue = MessageQueue(topic, name, queue_id)
        topics.brokers.run(topics.brokers.api.update_offset(address, group, queue, offset, oneway=False))
    status = run(f"""
        [jobs.figures]
        job = "report"
        topics = ["{topic}"]
        groups = ["{group}"]
        path = "figures"
        window = "1h"
        top_keys = 2
        """)["figures"]
    assert (status.state, status.messages) == ("done", 40)
    folder = tmp_path / "figures"
    (whole,) = pq.read_table(folder / "topics.parquet").to_pylist()
    assert (whole["topic"], whole["messages"]) == (topic, 40)
    assert 0 <= whole["latency_p50_ms"] <= whole["latency_p95_ms"] <= whole["latency_p99_ms"] < 60_000
    windows = pq.read_table(folder / "windows.parquet").to_pylist()
    assert sum(row["messages"] for row in windows) == 40
    assert sum(row["per_second"] for row in windows) == pytest.approx(40 / 3600)
    groups = pq.read_table(folder / "groups.parquet").to_pylist()
    assert {(row["group"], row["topic"]) for row in groups} == {(group, topic)}
    assert sum(row["retries"] for row in groups) == 8
    assert sum(row["dead_letters"] for row in groups) == 2
    lags = {row["topic"]: row for row in pq.read_table(folder / "lags.parquet").to_pylist()}
    assert (lags[topic]["group"], lags[topic]["ready"]) == (group, 18)
    assert 0 <= lags[topic]["oldest_age_ms"] < 600_000
    keys = pq.read_table(folder / "top_keys.parquet").to_pylist()
    assert [(row["key"], row["messages"]) for row in keys] == [("kim", 30), ("order-1", 30)]
    assert (folder / "topics.csv").read_text().startswith('"topic","first","last","messages"')
    for plot in ("rates", "latency", "returned", "top_keys"):
        assert (folder / f"{plot}.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_about_nothing_is_empty(run: Run, topics: Any, tmp_path: Path) -> None:
    topic = topics.new(1)
    status = run(f'[jobs.r]\njob = "report"\ntopics = ["{topic}"]\ngroups = ["nobody"]\npath = "r"')["r"]
    assert (status.state, status.messages, status.error) == ("done", 0, None)
    assert pq.read_table(tmp_path / "r" / "windows.parquet").num_rows == 0


# ---- the runner ---------------------------------------------------------------------------------


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.pipeline.runner.FIRST_PAUSE_S", 0.01)


FAILING = """
import os
MARK = {mark!r}
def fail(batches):
    for batch in batches:
        if batch.num_rows and not os.path.exists(MARK):
            raise RuntimeError("not today")
        yield batch
def checked(messages):
    return messages.mapInArrow(fail, messages.schema)
"""


@pytest.mark.usefixtures("fast_retries")
def test_a_job_that_fails_is_started_again_and_loses_nothing(
    run: Run, topics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.new(1)
    topics.send(topic, 0, [b"x"] * 10)
    mark = tmp_path / "mark"
    (tmp_path / "failing_function.py").write_text(FAILING.format(mark=str(mark)))
    text = f"""
        [jobs.good]
        job = "archive"
        topics = ["{topic}"]
        path = "good"

        [jobs.bad]
        job = "archive"
        topics = ["{topic}"]
        path = "bad"
        function = "failing_function:checked"
        """
    jobs = run(text)
    assert (jobs["good"].state, jobs["good"].messages) == ("done", 10), "one does not disturb the other"
    assert (jobs["bad"].state, jobs["bad"].restarts) == ("failed", 3)
    assert jobs["bad"].error == "RuntimeError: not today"
    mark.touch()
    bad = run(text)["bad"]
    assert (bad.state, bad.messages, bad.error) == ("done", 10, None)
    assert read_parquet(tmp_path / "bad")["queueOffset"].to_pylist() == list(range(10))


@pytest.mark.parametrize(
    ("job", "complaint"),
    [
        ('job = "archive"\ntopics = ["none"]\npath = "x"', "jobs.bad: topics: topic none does not exist"),
        ('job = "archive"\npath = "x"\nwhere = "nmae = 1"', "jobs.bad: where: [UNRESOLVED_COLUMN"),
        ('job = "archive"\npath = "x"\nsql = "SELECT ("', "jobs.bad: sql: [PARSE_SYNTAX_ERROR]"),
        (
            'job = "archive"\npath = "x"\nsql = "SELECT topic FROM messages"',
            "jobs.bad: the transform must keep day",
        ),
        ('job = "archive"\npath = "x"\nfunction = "none_such:f"', "function none_such:f: No module named"),
        ('job = "route"\nto = "none"', "jobs.bad: topic none does not exist, or cannot be written"),
        (
            'job = "route"\nsql = "SELECT body FROM messages"',
            "jobs.bad: the transform must give a column topic",
        ),
        (
            'job = "route"\nsql = "SELECT 1 AS body, topic FROM messages"',
            "column body is int, but the sink needs",
        ),
        (
            'job = "route"\noutputs = [{topic = "x", where = "a +"}]',
            "jobs.bad: outputs: [PARSE_SYNTAX_ERROR]",
        ),
    ],
)
def test_a_mistake_that_only_spark_or_the_broker_see_is_told_before_anything_runs(
    make: Make, spark: SparkSession, topics: Any, tmp_path: Path, job: str, complaint: str
) -> None:
    topic = topics.new(1)
    if "topics" not in job:
        job += f'\ntopics = ["{topic}"]'
    good = f'[jobs.good]\njob = "archive"\ntopics = ["{topic}"]\npath = "good"'
    pipeline = make(f"{good}\n[jobs.bad]\n{job}")
    with pytest.raises(PenstockError) as error:
        Runner(spark, pipeline, once=True).run()
    assert complaint in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "state").exists()
