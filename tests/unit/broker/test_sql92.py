"""SQL92 filters, row by row against what Apache RocketMQ 5.5.0 gave for the same text and properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import sql92
from penstock.limits import SQL92_CHARS, SQL92_DEPTH

TABLE = json.loads((Path(__file__).parents[2] / "golden/tables/sql92.json").read_text())
ROWS: list[dict[str, Any]] = TABLE["rows"]
CONTEXTS: list[dict[str, str]] = TABLE["contexts"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: repr(row["expression"]))
def test_every_row_of_the_reference_table_gives_the_reference_result(row: dict[str, Any]) -> None:
    if not row["accepted"]:
        with pytest.raises(sql92.SqlError):
            sql92.compile(row["expression"])
        return
    compiled = sql92.compile(row["expression"])
    for properties, expected in zip(CONTEXTS, row["results"], strict=True):
        if isinstance(expected, dict):
            with pytest.raises(sql92.EvaluationError):
                compiled.evaluate(properties)
        else:
            assert compiled.evaluate(properties) is expected
        assert compiled(properties) is (expected is True)


EDGES = {
    # more texts tried on Apache RocketMQ 5.5.0, with the result for CONTEXTS[0]
    "a = --5": True,
    "a = 5 --x\n and b = 'nope'": False,
    "a between 5 and 5": True,
    "a between -1 and -5": False,
    "a not between 5 and 1.5": True,
    "'abc' contains 'b'": True,
    "5 contains '5'": False,
    "(a = 5) contains 'b'": False,
    "(b = 5) contains ''": False,
    "5 = true": False,
    "'true' = true": True,
    "1 = 1.0": True,
    "'1' = 1": True,
    "a >= a": True,
    "- 'x' is null": True,
    "-(a = 5) is null": True,
    "a.5": False,
    "a = 5l and b = 'abc'": True,
    "big > 2147483648": True,
    "big > -2147483648": True,
    "NOT a IS NULL": False,
}


@pytest.mark.parametrize("text", EDGES)
def test_corners_of_the_language_follow_the_reference(text: str) -> None:
    assert sql92.compile(text).evaluate(CONTEXTS[0]) is EDGES[text]


@pytest.mark.parametrize("text", ["big > 5", "big = 5L", "true = t", "b > b", "'x' = 1"])
def test_texts_that_cannot_be_compared_do_not_match_and_do_not_fail(text: str) -> None:
    compiled = sql92.compile(text)
    with pytest.raises(sql92.EvaluationError):
        compiled.evaluate(CONTEXTS[0])
    assert compiled(CONTEXTS[0]) is False


@pytest.mark.parametrize(
    "text",
    [
        "a not x",
        "TRUE not",
        "a * 2 = 10",
        "true = 5",
        "-a",
        "a in ('5',)",
        "a = 5 /* open",
        "a = 0.",
        "a contains b",
        "a between 9999999999 and 10",
        "a = 1e999",
        "a = " + "9" * 5000,
    ],
)
def test_texts_that_the_reference_refuses_are_refused(text: str) -> None:
    with pytest.raises(sql92.SqlError):
        sql92.compile(text)


@pytest.mark.parametrize(
    ("value", "number"), [(" 2.5 ", "2.5"), ("1e3f", "1000.0"), ("+.5", "0.5"), ("NaN", None), ("1_0", None)]
)
def test_property_texts_are_read_as_java_reads_doubles(value: str, number: str | None) -> None:
    if number is None:
        assert not sql92.compile("p = 10.0")({"p": value})
    else:
        assert sql92.compile(f"p = {number}")({"p": value})


@pytest.mark.parametrize(
    "text",
    [
        "(" * (SQL92_DEPTH + 1) + "a = 1" + ")" * (SQL92_DEPTH + 1),
        "not " * (SQL92_DEPTH + 1) + "t",
        "a = 1" + " = true" * (SQL92_DEPTH + 1),
        "a is null" + " is null" * (SQL92_DEPTH + 1),
        "a = 1 or " * (SQL92_CHARS // 9 + 1) + "a = 1",
    ],
)
def test_deep_or_long_expressions_are_refused_instead_of_exhausting_the_stack(text: str) -> None:
    with pytest.raises(sql92.SqlError):
        sql92.compile(text)


def test_a_long_flat_expression_is_compiled_and_evaluated() -> None:
    text = " or ".join(f"a = {number}" for number in range(1000))
    compiled = sql92.compile(text)
    assert compiled({"a": "999"})
    assert not compiled({"a": "1000"})
