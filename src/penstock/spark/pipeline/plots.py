"""The plots of a report."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

if TYPE_CHECKING:
    from penstock.spark.pipeline.jobs.report import Tables

# Colours that people with any kind of sight tell apart (Okabe and Ito's), in a fixed order.
COLORS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8B7500", "#444444")
MOST_LINES: Final = len(COLORS)
"""More topics than this in one plot tell nothing: the busiest are shown, the tables have all."""

Rows = list[dict[str, Any]]


def draw(tables: Tables, folder: Path) -> None:
    windows, groups, keys = (table.to_pylist() for table in (tables.windows, tables.groups, tables.top_keys))
    busiest = sorted(tables.topics.to_pylist(), key=lambda row: (-row["messages"], row["topic"]))
    topics = [row["topic"] for row in busiest[:MOST_LINES]]
    step = _step([*windows, *groups])
    _save(_rates(windows, topics, step), folder / "rates.png")
    _save(_latencies(windows, topics, step), folder / "latency.png")
    _save(_returned(groups, step), folder / "returned.png")
    _save(_top_keys(keys, topics), folder / "top_keys.png")


def _rates(windows: Rows, topics: Sequence[str], step: timedelta | None) -> Figure:
    figure, (axes,) = _figure(1, "Messages per second")
    by_topic = dict(_by(windows, "topic"))
    for color, topic in zip(COLORS, topics, strict=False):
        values = {row["window_start"]: row["per_second"] for row in by_topic[topic]}
        _line(axes, _filled(values, step, 0.0), topic, color)
    return _over_time(figure, [axes])


def _latencies(windows: Rows, topics: Sequence[str], step: timedelta | None) -> Figure:
    by_topic = dict(_by(windows, "topic"))
    figure, all_axes = _figure(max(1, len(topics)), "Latency from producer to broker's log, in milliseconds")
    for axes, topic in zip(all_axes, topics, strict=False):
        rows = by_topic[topic]
        for column, label, color in (
            ("latency_p99_ms", "99 % below", COLORS[5]),
            ("latency_p95_ms", "95 % below", COLORS[1]),
            ("latency_p50_ms", "median", COLORS[0]),
        ):
            values = {row["window_start"]: float(row[column]) for row in rows}
            _line(axes, _filled(values, step, math.nan), label, color)
        axes.set_title(topic, loc="left", fontsize=10)
    return _over_time(figure, all_axes)


def _returned(groups: Rows, step: timedelta | None) -> Figure:
    figure, (axes,) = _figure(1, "Messages that came back, in each window")
    lines = []
    for group, rows in _by(groups, "group"):
        for column, label in (("retries", "retries"), ("dead_letters", "dead letters")):
            totals: dict[datetime, float] = {}
            for row in rows:
                totals[row["window_start"]] = totals.get(row["window_start"], 0.0) + row[column]
            if any(totals.values()):
                lines.append((totals, f"{group}: {label}"))
    for color, (totals, label) in zip(COLORS, lines, strict=False):
        _line(axes, _filled(totals, step, 0.0), label, color)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return _over_time(figure, [axes])


def _top_keys(keys: Rows, topics: Sequence[str]) -> Figure:
    by_topic = dict(_by(keys, "topic"))
    shown = [topic for topic in topics if topic in by_topic]
    longest = max((len(by_topic[topic]) for topic in shown), default=1)
    figure, all_axes = _figure(max(1, len(shown)), "Messages of the most frequent keys", 0.6 + 0.24 * longest)
    for axes, color, topic in zip(all_axes, COLORS, shown, strict=False):
        rows = by_topic[topic]
        bars = axes.barh(range(len(rows)), [row["messages"] for row in rows], color=color, height=0.7)
        axes.bar_label(bars, [f"{row['messages']:,}" for row in rows], padding=3, fontsize=8)
        axes.set_yticks(range(len(rows)), [_short(row["key"]) for row in rows])
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_title(topic, loc="left", fontsize=10)
        axes.xaxis.set_visible(False)
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
    if not shown:
        _say_nothing(all_axes[0])
    return figure


def _figure(rows: int, title: str, height: float = 2.6) -> tuple[Figure, list[Any]]:
    # A Figure of its own, without pyplot: no window system and no global state.
    figure = Figure(figsize=(9, 0.6 + max(1.2, height) * rows), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure, list(figure.subplots(rows, squeeze=False)[:, 0])


def _line(axes: Any, values: dict[datetime, float], label: str, color: str) -> None:
    axes.plot(
        list(values), list(values.values()), marker=".", markersize=4, linewidth=1.5, label=label, color=color
    )


def _step(rows: Rows) -> timedelta | None:
    """The length of a window, as far as the rows tell."""
    moments = sorted({row["window_start"] for row in rows})
    return min((later - earlier for earlier, later in itertools.pairwise(moments)), default=None)


def _filled(values: dict[datetime, float], step: timedelta | None, nothing: float) -> dict[datetime, float]:
    """With the edges of gaps: a window without messages has no row, and a line must not pass over it."""
    filled: dict[datetime, float] = {}
    before: datetime | None = None
    for moment in sorted(values):
        if before is not None and step is not None and moment - before > step:
            filled[before + step] = nothing
            filled[moment - step] = nothing
        filled[moment] = values[moment]
        before = moment
    return filled


def _over_time(figure: Figure, all_axes: Sequence[Any]) -> Figure:
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        if not labels:
            _say_nothing(axes)
            continue
        locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=8)  # type: ignore[no-untyped-call]  # typed in part
        axes.xaxis.set_major_locator(locator)
        formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]  # as above
        axes.xaxis.set_major_formatter(formatter)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.set_ylim(bottom=0, top=None if axes.get_ylim()[1] > 0 else 1)
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    return figure


def _say_nothing(axes: Any) -> None:
    axes.set_axis_off()
    axes.text(
        0.5, 0.5, "none in this time", ha="center", va="center", transform=axes.transAxes, color="#666666"
    )


def _short(key: str) -> str:
    return key if len(key) <= 32 else f"{key[:31]}…"


def _by(rows: Iterable[dict[str, Any]], column: str) -> list[tuple[str, Rows]]:
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return sorted(found.items())


def _save(figure: Figure, path: Path) -> None:
    fresh = path.with_name(f".{path.name}.new")
    figure.savefig(fresh, format="png", dpi=110)
    os.replace(fresh, path)
