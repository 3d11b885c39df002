"""One row over its runs, on the terminal: a plot, sentences on its changes of level, and the latest runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.presentation import figures
from attnbench.report.listing import render_list
from attnbench.report.terminal import Terminal
from attnbench.stats.change_points import FEWEST
from attnbench.store.history.changes import HASH

if TYPE_CHECKING:
    from rich.console import Console

    from attnbench.store.history.trends import Change, Loss, Trend, TrendPoint

HEIGHT = 10
WIDEST = 100
NEWEST = 10
"Number of runs in the table below the plot."
MARGIN = 0.12
"Margin of the plot above and below, as a share of the range of its values."
LARGEST = 1e300
"A time of a damaged history may be so long that its margin, or the time in another unit, would be infinite."
OUTSIDE = 0.02
"Share of runs at either end that do not determine the scale: they are marked at its edge."


@dataclass(frozen=True, slots=True)
class Signs:
    """Characters for drawing a plot."""

    median: str = "●"
    interval: str = "│"
    level: str = "─"
    change: str = "┊"
    above: str = "▲"
    below: str = "▼"
    arrow: str = "→"


ASCII = Signs("o", "|", "-", ":", "^", "v", "->")


def render_trend(trend: Trend, console: Console) -> None:
    """Print one series.

    Args:
        trend: with at least one point.
        console: output; one that does not support the plot's characters gets plain letters.
    """
    terminal = Terminal(console)
    signs = ASCII if terminal.words("●") != "●" else Signs()
    unit = figures.unit_for(point.median_ms for point in trend.points)
    terminal.title(str(trend.row), ", ".join(conditions(trend)))
    for line in plot(trend, min(terminal.width, WIDEST), signs, unit):
        terminal.unbroken(line)
    for sentence in sentences(trend, signs, unit):
        terminal.line(sentence)
    shown = trend.points[-NEWEST:]
    more = f" (the newest {len(shown)})" if len(shown) < len(trend.points) else ""
    terminal.line(f"{_count(len(trend.points), 'run')}{more}:", "dim")
    render_list([_cells(point, unit) for point in reversed(shown)], console)


def render_losses(losses: Sequence[Loss], console: Console) -> None:
    """Print in how many runs the row has no time, and the reason in the latest of them."""
    if losses:
        last = losses[-1]
        where = f"did not pass in {_count(len(losses), 'run')}; the latest: {last.run_id} of {_day(last.started)}, "
        Terminal(console).line(f"{where}{last.status}" + (f", {last.reason}" if last.reason else ""))


def conditions(trend: Trend) -> list[str]:
    """Return what distinguishes this series from others of its row."""
    words = [trend.machine or "", f"timer {trend.timer}"]
    if trend.regime != "cpu":
        words += [f"{trend.l2} L2" if trend.l2 else "", trend.regime or ""]
    words += [
        f"config {trend.config}" if trend.config else "",
        f"clocks {trend.lock_clocks}" if trend.lock_clocks else "",
        f"input {trend.input}" if trend.input not in (None, "normal") else "",
    ]
    return [word for word in words if word]


def sentences(trend: Trend, signs: Signs, unit: figures.Unit) -> list[str]:
    """Describe each change, or say that there is none."""
    count = len(trend.points)
    if count < FEWEST:
        return [f"no change is looked for in fewer than {FEWEST} runs"]
    if not trend.changes:
        return [f"no change of level in {count} runs"]
    return [_sentence(trend, change, signs, unit) for change in trend.changes]


def _sentence(trend: Trend, change: Change, signs: Signs, unit: figures.Unit) -> str:
    point = trend.points[change.index]
    word = "slower" if change.ratio > 1.0 else "faster"
    # Express the change as one of time, which the plot shows.
    share = abs(change.ratio - 1.0) * 100.0
    step = abs(change.after_ms - change.before_ms) * unit.per_ms / 10.0
    before, after = (figures.measured(value * unit.per_ms, step) for value in (change.before_ms, change.after_ms))
    times = f"{before} {signs.arrow} {after} {unit.name}"
    text = f"{signs.change} {_day(point.started)} run {point.run_id}: {share:.2g} % {word}, {times}"
    if not change.differences:
        return f"{text}; nothing else that is recorded changed with it"
    where = (
        "with it"
        if change.offset == 0
        else (f"{_count(abs(change.offset), 'run')} {'later' if change.offset > 0 else 'earlier'}")
    )
    return f"{text}; {where} changed {', '.join(change.differences).replace('→', signs.arrow)}"


def plot(trend: Trend, width: int, signs: Signs, unit: figures.Unit) -> list[str]:
    """Return the lines of a plot: medians over intervals, levels behind them, and the first and last day."""
    low, high = _scale(trend)
    ticks = [figures.plain(value * unit.per_ms, figures.STEADY_DIGITS) for value in (high, (low + high) / 2.0, low)]
    left = max(map(len, ticks)) + len(unit.name) + 2
    columns = _columns(trend, max(width - left - 1, 8))
    canvas = [[" "] * len(columns) for _ in range(HEIGHT)]

    def at(value: float) -> int:
        return round(min(max((high - value) / (high - low), 0.0), 1.0) * (HEIGHT - 1))

    for place, column in enumerate(columns):
        for line in range(HEIGHT) if column.change else ():
            canvas[line][place] = signs.change
        canvas[at(column.level)][place] = signs.level
        for line in range(at(column.high), at(column.low) + 1):
            canvas[line][place] = signs.interval
        outside = signs.above if column.median > high else signs.below if column.median < low else None
        canvas[at(column.median)][place] = outside or signs.median
    labels = {0: ticks[0], (HEIGHT - 1) // 2: ticks[1], HEIGHT - 1: ticks[2]}
    lines = [
        f"{labels.get(place, '') + ' ' + unit.name if place in labels else '':>{left}} {''.join(row)}".rstrip()
        for place, row in enumerate(canvas)
    ]
    first, last = _day(trend.points[0].started), _day(trend.points[-1].started)
    gap = len(columns) - len(first) - len(last)
    return [*lines, " " * (left + 1) + (first + " " * gap + last if gap > 0 and first != last else first)]


@dataclass(frozen=True, slots=True)
class _Column:
    median: float
    low: float
    high: float
    level: float
    change: bool


def _columns(trend: Trend, width: int) -> list[_Column]:
    """Return the points, several per column if there are too many; a change starts a column."""
    count = len(trend.points)
    levels = _levels(trend)
    share = max(1.0, count / width)
    changes = {change.index for change in trend.changes}
    places: dict[int, list[int]] = {}
    for index in range(count):
        places.setdefault(int(index / share), []).append(index)
    columns = []
    for members in places.values():
        points = [trend.points[index] for index in members]
        columns.append(
            _Column(
                statistics.median(point.median_ms for point in points),
                min(_low(point) for point in points),
                max(_high(point) for point in points),
                levels[members[-1]],
                bool(changes & set(members)),
            )
        )
    return columns


def _levels(trend: Trend) -> list[float]:
    if not trend.changes:
        return [statistics.median(point.median_ms for point in trend.points)] * len(trend.points)
    levels, steps = [], {change.index: change.after_ms for change in trend.changes}
    level = trend.changes[0].before_ms
    for index in range(len(trend.points)):
        level = steps.get(index, level)
        levels.append(level)
    return levels


def _scale(trend: Trend) -> tuple[float, float]:
    medians = sorted(point.median_ms for point in trend.points)
    left_out = math.floor(OUTSIDE * len(medians)) if len(medians) >= FEWEST else 0
    low, high = medians[left_out], medians[-1 - left_out]
    if len(medians) < FEWEST:
        low, high = min(low, *map(_low, trend.points)), max(high, *map(_high, trend.points))
    low, high = min(low, LARGEST), min(high, LARGEST)
    room = max((high - low) * MARGIN, high * 1e-3)
    return max(low - room, 0.0), high + room


def _low(point: TrendPoint) -> float:
    return point.median_ms if point.low_ms is None else point.low_ms


def _high(point: TrendPoint) -> float:
    return point.median_ms if point.high_ms is None else point.high_ms


def _cells(point: TrendPoint, unit: figures.Unit) -> dict[str, object]:
    half = figures.half_interval(point.median_ms, point.low_ms, point.high_ms)
    scaled = unit.of(half)
    time = figures.measured(point.median_ms * unit.per_ms, scaled)
    processes = {"processes": point.processes} if point.processes > 1 else {}
    return {
        "run": point.run_id,
        "started": point.started,
        f"median ({unit.name})": time,
        "±": figures.margin(point.median_ms * unit.per_ms, scaled).removeprefix("±"),
        "samples": point.num_samples if not processes else f"{point.num_samples} in {point.processes} processes",
        "SM MHz": None if point.sm_mhz is None else f"{point.sm_mhz:.0f}",
        "version": point.version,
        "source": point.source_hash[:HASH] if point.source_hash else None,
    }


def _day(started: str) -> str:
    return started[:10]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
