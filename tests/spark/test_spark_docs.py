"""docs/spark.md and docs/pipelines.md: their code runs, their tables name every option and its default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.spark.options import READ_OPTIONS
from penstock.spark.pipeline.config import KINDS, SparkSettings, load
from penstock.spark.schema import COLUMNS
from penstock.spark.write_options import COLUMN_TYPES, WRITE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = "127.0.0.1:9876"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def section(page: str, title: str) -> str:
    return re.split(r"^##+ ", (DOCS / page).read_text().partition(f"\n## {title}")[2], flags=re.MULTILINE)[0]


@pytest.mark.spark
@pytest.mark.behaviour("PIPE-1", "PIPE-3")
def test_the_python_blocks_of_the_spark_page_run(
    spark: SparkSession, topics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.session", lambda app: spark, raising=False)
    for topic in ("orders", "totals", "%DLQ%billing"):
        topics.set_queues(topic, 1)
    topics.send("orders", 0, [b"{}"] * 5, b"TAGS\x01paid\x02")
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(blocks("spark.md", "python"), 1):
        # Spark's own process does not follow a change of the working directory.
        text = block.replace(ADDRESS, topics.name_server).replace('"lake/', f'"{tmp_path}/lake/')
        exec(compile(text, f"docs/spark.md, Python block {number}", "exec"), names)
    assert names["query"].exception() is None
    assert spark.read.parquet(str(tmp_path / "lake" / "orders")).count() == 5
    assert names["recent"].count() == 5


def test_every_option_and_column_is_in_the_tables_of_the_spark_page() -> None:
    read, write, columns = (section("spark.md", title) for title in ("Read", "Write", "Columns"))
    assert [name for name in READ_OPTIONS if f"`{name}`" not in read] == []
    assert [name for name in (*WRITE_OPTIONS, *COLUMN_TYPES) if f"`{name}`" not in write] == []
    assert [name for name in COLUMNS if f"`{name}`" not in columns] == []


def test_the_toml_blocks_of_the_pipelines_page_are_pipelines(tmp_path: Path) -> None:
    for block in blocks("pipelines.md", "toml"):
        file = tmp_path / "shop.toml"
        file.write_text(block)
        assert load(file).jobs


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_of_a_job_is_in_the_pipelines_page_with_its_default(kind: str) -> None:
    text = (DOCS / "pipelines.md").read_text()
    for field in msgspec.structs.fields(KINDS[kind]):
        rows = [row for row in re.findall(r"^\|.*\|$", text, re.MULTILINE) if f"`{field.name}`" in row]
        assert rows, f"{kind}: {field.name} is in no table"
        if isinstance(field.default, str | int) and field.name not in ("table", "catalog"):
            shown = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            assert any(f"`{shown}`" in row or f"| {shown} |" in row for row in rows), f"{kind}: {field.name}"


def test_every_setting_of_spark_is_in_the_pipelines_page() -> None:
    text = section("pipelines.md", "The file")
    for field in msgspec.structs.fields(SparkSettings):
        assert f"`spark.{field.name}`" in text
