"""Run the tests that carry a behaviour id and write docs/behaviours.md.

python tests/behaviours.py            every row; fails for a row without a passing test
python tests/behaviours.py STO REB    only the rows of these sections
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "behaviours.md"
HEAD = """# Behaviours

What Penstock must do, one row a behaviour, with the tests that show it. Written by `make behaviours`,
which runs them and fails for a row without a passing test.
"""


class Collector:
    """Remembers, for each behaviour id, the tests that carry it and whether they passed."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, bool]] = collections.defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Also called for tests that ran in another process."""
        for row in dict(report.user_properties).get("behaviours", ()):
            if report.when == "call" or report.outcome != "passed":
                before = self.tests[row].get(report.nodeid, True)
                self.tests[row][report.nodeid] = before and report.outcome == "passed"


def main() -> int:
    lines = (HERE / "behaviours.txt").read_text().splitlines()
    sections = set(sys.argv[1:])
    rows = dict(line.split(": ", 1) for line in lines if not line.startswith("#"))
    wanted = {row for row in rows if not sections or row.split("-")[0] in sections}
    collector = Collector()
    options = ["-q", "--spark-full", "-n", "2", "--behaviours", ",".join(sorted(wanted))]
    code = pytest.main([*options, str(HERE)], plugins=[collector])
    page = [HEAD]
    for line in lines:
        if line.startswith("## "):
            page.append(f"\n{line}\n\n| id | behaviour | shown by |\n|---|---|---|\n")
            continue
        row, text = line.split(": ", 1)
        tests = sorted({name.split("[")[0] for name, passed in collector.tests[row].items() if passed})
        shown = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in tests) or "not yet"
        page.append(f"| {row} | {text} | {shown} |\n")
    missing = [row for row in rows if row in wanted and not any(collector.tests[row].values())]
    failed = sorted({name for row in wanted for name, passed in collector.tests[row].items() if not passed})
    if not sections:
        PAGE.write_text("".join(page))
        print(f"wrote {PAGE.relative_to(HERE.parent)}")
    print(f"{len(wanted) - len(missing)} of {len(wanted)} rows shown")
    if missing:
        print("no passing test for:", *missing)
    if failed:
        print("failed:", *failed, sep="\n  ")
    return 1 if missing or failed or code not in (0, 5) else 0


if __name__ == "__main__":
    sys.exit(main())
