"""Figures of the Spark benchmark: one line each, kept as they come, held against their bounds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """`bound` is the least a rate or ratio may be, and the most that a time may be."""

    name: str
    unit: str
    value: float
    bound: float | None = None
    cpu_us: float | None = None

    @property
    def is_time(self) -> bool:
        return self.unit in ("ms", "s")

    @property
    def missed(self) -> bool:
        if self.bound is None:
            return False
        return self.value > self.bound if self.is_time else self.value < self.bound

    def line(self) -> str:
        text = f"  {self.name:64}{self._number(self.value):>9} {self._unit()}"
        if self.cpu_us is not None:
            text += f" {self.cpu_us:7.2f} us CPU"
        if self.bound is None:
            return text.rstrip()
        sign = "<=" if self.is_time else ">="
        return f"{text}   {'MISSED' if self.missed else 'held'} ({sign} {self._number(self.bound)})"

    def _number(self, value: float) -> str:
        if self.unit == "rows/s":
            return f"{value / 1e6:.3f}"
        return f"{value:.0f}" if self.unit == "ms" else f"{value:.2f}"

    def _unit(self) -> str:
        return "M rows/s" if self.unit == "rows/s" else self.unit


class Report:
    """Prints every figure and adds it to a file at once: a part that fails later keeps what it had."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def rate(self, name: str, value: float, bound: float | None = None, cpu_us: float | None = None) -> None:
        self._add(Figure(name, "rows/s", value, bound, cpu_us))

    def time(self, name: str, milliseconds: float, bound: float | None = None) -> None:
        self._add(Figure(name, "ms", milliseconds, bound))

    def seconds(self, name: str, seconds: float, bound: float | None = None) -> None:
        self._add(Figure(name, "s", seconds, bound))

    def ratio(self, name: str, value: float, bound: float | None = None) -> None:
        self._add(Figure(name, "", value, bound))

    def _add(self, figure: Figure) -> None:
        print(figure.line(), flush=True)
        with self._file.open("a") as out:
            out.write(json.dumps(asdict(figure)) + "\n")


def read_figures(file: Path) -> list[Figure]:
    return [Figure(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


@dataclass
class PartResult:
    """What one part gave and in which circumstances."""

    about: str
    when: str
    scale: float
    runs: int
    loop_seconds: float
    load_average: float
    took_seconds: float
    complete: bool
    figures: list[Figure] = field(default_factory=list)

    def lines(self) -> Iterable[str]:
        yield f"\n{self.about}"
        run = f"{self.when}, {self.took_seconds:.0f} s, scale {self.scale:g}, median of {self.runs}"
        machine = f"load average {self.load_average:.1f}, 10-million-step loop {self.loop_seconds:.2f} s"
        yield f"  [{run}; before it: {machine}]"
        for figure in self.figures:
            yield figure.line()
        if not self.complete:
            yield "  this part FAILED before its end"


def load_results(file: Path) -> dict[str, PartResult]:
    if not file.exists():
        return {}
    return {
        name: PartResult(**{**part, "figures": [Figure(**figure) for figure in part["figures"]]})
        for name, part in json.loads(file.read_text()).items()
    }


def keep_results(file: Path, results: dict[str, PartResult]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({name: asdict(part) for name, part in results.items()}, indent=1) + "\n")
