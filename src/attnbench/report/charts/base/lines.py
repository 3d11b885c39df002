"""Line charts: one quantity over another, one line per backend, labelled at its right end."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnbench.record import Record
from attnbench.report.charts.base.data import Table
from attnbench.report.charts.base.encodings import BELOW, TITLE_LINE, colour, finished, log_or_linear, shape
from attnbench.report.charts.base.figure import Spec, filled, row, short
from attnbench.report.charts.base.labels import LINE, scaled, shortened, spread
from attnbench.report.charts.base.style import PLAIN, Styles

HEIGHT = 320.0
WIDE = 4.0
"Ratio of the highest to the lowest value from which an axis is logarithmic, if it may be."
Interval = tuple[float, float] | None
HEADINGS = {"time_ms": "Time", "tflops": "TFLOP/s"}


@dataclass(frozen=True, slots=True)
class Quantity:
    """The quantity of an axis."""

    column: str
    "of `store.rows`"
    short: str
    "in file names: time_ms, tflops"
    title: str
    "in axis titles"
    unit: str
    "empty for a plain number"
    of: Callable[[Table, Record], Any]
    interval: Callable[[Record], Interval] = lambda record: None
    "95 % interval, in the unit; None if there is none"
    may_log: bool = True
    "False if the distance from zero matters"
    even: float | None = None
    "reference value (1 for a ratio), marked by a line; None: the reference is 0"

    @property
    def heading(self) -> str:
        """Start of a title."""
        return HEADINGS.get(self.short) or self.title[:1].upper() + self.title[1:]

    @property
    def axis_title(self) -> str:
        """Title with unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class Point:
    """One record in a line chart."""

    line: str
    x: Any
    y: float
    backend: str
    "determines colour and marker"
    interval: Interval = None
    dash: tuple[int, int] | None = None
    "of its line; None: the backend's own"


def points_of(tables: Sequence[Table], x: Quantity, y: Quantity, line: Callable[[Record], str]) -> list[Point]:
    """Return the points of all records for which both quantities are known."""
    found = []
    for table in tables:
        for record in table.records:
            over, value = x.of(table, record), y.of(table, record)
            if over is not None and is_number(value) and math.isfinite(value):
                found.append(Point(line(record), over, float(value), line(record), y.interval(record)))
    return found


def is_number(value: Any) -> bool:
    """Return whether it is a number and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def lines(
    points: Sequence[Point], x: Quantity, y: Quantity, styles: Styles, following: str = "", lost: Sequence[Any] = ()
) -> Spec:
    """Return the chart of some points.

    Args:
        points: at least one; x values that are not numbers are drawn side by side.
        x: quantity of the x axis.
        y: quantity that is drawn.
        styles: of the page.
        following: axes that change with x, for its title.
        lost: requested values of x without a point.
    """
    places = list(dict.fromkeys(point.x for point in points))
    numeric = all(is_number(place) for place in (*places, *lost))
    over_axis = x.column.startswith("case.")
    values = [value for point in points for value in (point.y, *(point.interval or ()))]
    log = y.may_log and min(values) > 0 and max(values) > WIDE * min(values)
    names = list(dict.fromkeys(point.line for point in points))
    height = max(HEIGHT, (LINE + 1) * len(names))
    low, high = _range(values, log, y.even)
    if numeric:
        points = sorted(points, key=lambda point: point.x)
    ends = _ends(points, names, low, high, height, log, styles)
    pieces = _pieces(points, {*places, *lost}) if numeric and over_axis else [0] * len(points)
    rows = [_row(point, numeric, piece, styles) for point, piece in zip(points, pieces, strict=True)]
    ticks = tuple(sorted({*places, *lost})) if numeric and over_axis else None
    spread_out = numeric and x.may_log and min(places) > 0 and max(places) > WIDE * min(places)
    over = (x.axis_title, *([f"({following})"] if following else []))
    levels = steps(low, high) if log else None
    bars = any(point.interval for point in points)
    title = y.axis_title + (" (95 % intervals)" if bars else "")
    spec = _definition(over, title, ticks, levels, numeric, spread_out, bars, y.even is not None)
    room = [{"m": short(low)}, {"m": short(high)}] + ([{"m": y.even, "e": 1}] if y.even is not None else [])
    return filled(spec, {"rows": rows, "ends": ends, "room": room}, height=height)


def _range(values: Sequence[float], log: bool, even: float | None) -> tuple[float, float]:
    """Return the ends of the axis: a little beyond the values, including 0 or the reference value."""
    if log:
        return min(values) / 1.15, max(values) * 1.15
    if even is None:
        return min(0.0, *values), max(0.0, *values) * 1.08
    room = 0.08 * (max(even, *values) - min(even, *values)) or 0.01 * even
    return min(even, *values) - room, max(even, *values) + room


def _pieces(points: Sequence[Point], places: set[Any]) -> list[int]:
    """Return which piece of its line each point belongs to: lines are interrupted at x values without a point."""
    own: dict[str, set[Any]] = {}
    for point in points:
        own.setdefault(point.line, set()).add(point.x)
    missing = {line: sorted(places - there) for line, there in own.items()}
    return [bisect_left(missing[point.line], point.x) for point in points]


def _row(point: Point, numeric: bool, piece: int, styles: Styles) -> dict[str, Any]:
    style, (low, high) = styles.of(point.backend), point.interval or (None, None)
    return row(b=point.line, x=point.x if numeric else str(point.x), m=short(point.y), l=short(low), h=short(high),
               c=style.colour, g=style.shape, d=list(point.dash or style.dash), p=piece or None)  # fmt: skip


def steps(low: float, high: float) -> tuple[float, ...]:
    """Return the grid lines of a logarithmic axis from `low` to `high`: at 1, 2 and 5, or only 1 over many decades."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(decades) < 6 else (1,)
    return tuple(value for decade in decades for digit in digits
                 if low <= (value := float(f"{digit}e{decade}")) <= high)  # fmt: skip


def _ends(
    points: Sequence[Point], names: Sequence[str], low: float, high: float, height: float, log: bool, styles: Styles
) -> list[dict[str, Any]]:
    """Return the last point of each line, and the position of its name at the right edge."""
    last = {point.line: point for point in points}
    heights = scaled([low, high, *(last[name].y for name in names)], height, log)[2:]
    found = []
    for name, at in zip(names, spread(heights, LINE, LINE / 2, height - LINE / 2), strict=True):
        share = at / height
        level = low * (high / low) ** share if log else low + (high - low) * share
        point = last[name]
        style = styles.of(point.backend)
        found.append(row(b=name, n=shortened(name), x=point.x if is_number(point.x) else str(point.x),
                         m=short(point.y), y=short(level), c=style.colour, g=style.shape))  # fmt: skip
    return found


@cache
def _definition(
    over: tuple[str, ...], title: str, ticks: tuple[float, ...] | None, levels: tuple[float, ...] | None,
    numeric: bool, x_log: bool, bars: bool, even: bool,
) -> Spec:  # fmt: skip
    import altair as alt

    y_scale = log_or_linear(bool(levels))
    y = alt.Y("m:Q").scale(y_scale).title(title)
    if levels:
        y = y.axis(alt.Axis(values=list(levels)))
    if numeric:
        # Without a precision Vega takes that of the distance between ticks: 0.25 would be 0.3.
        digits = "d" if all(float(tick).is_integer() for tick in ticks or ()) else ".6~g"
        axis = alt.Axis(grid=False, format=digits, values=list(ticks)) if ticks else alt.Axis(grid=False)
        x = alt.X("x:Q").scale(log_or_linear(x_log, padding=16))
        x = x.axis(axis).title(list(over))
    else:
        x = alt.X("x:N").sort(None).scale(alt.Scale(type="point", padding=0.3)).axis(alt.Axis(labelAngle=0))
        x = x.title(list(over))
    base = alt.Chart(alt.NamedData(name="rows")).encode(x=x, y=y)
    ends = alt.Chart(alt.NamedData(name="ends"))
    dash = alt.StrokeDash("d:N").scale(None).legend(None)
    drawn = (
        [base.mark_line(strokeWidth=2).encode(detail=["b:N", "p:N"], color=colour(), strokeDash=dash)]
        if numeric
        else []
    )
    tooltip = [alt.Tooltip("b:N", title="backend"), alt.Tooltip("x", type="quantitative" if numeric else "nominal",
               title=over[0]), alt.Tooltip("m:Q", title=title)]  # fmt: skip
    if bars:
        tooltip += [alt.Tooltip("l:Q", title="95 % low"), alt.Tooltip("h:Q", title="95 % high")]
        known, high = base.transform_filter("isValid(datum.l)"), alt.Y("h:Q").scale(y_scale).title(title)
        low = alt.Y("l:Q").scale(y_scale).title(title)
        drawn += [known.mark_rule(strokeWidth=1.5).encode(y=low, y2="h:Q", color=colour()),
                  *(known.mark_tick(orient="horizontal", size=8, thickness=1.5).encode(y=end, color=colour())
                    for end in (low, high))]  # fmt: skip
    signs = base.mark_point(filled=True, size=56, opacity=1).encode(color=colour(), shape=shape(), tooltip=tooltip)
    # Dotted: of a line that ends early the stalk is long, and must not look like a line itself.
    stalks = ends.mark_rule(strokeWidth=1, opacity=0.7, strokeDash=[1, 3]).encode(
        x=x, y=y, x2=alt.value("width"), y2="y:Q", color=colour()
    )
    at_the_right = ends.encode(x=alt.value("width"), y=alt.Y("y:Q").scale(y_scale).title(title))
    names = at_the_right.mark_text(style="label", align="left", baseline="middle", dx=13).encode(text="n:N")
    # Each name has its marker: with more backends than colours, both together identify a line.
    keys = at_the_right.mark_point(filled=True, size=40, opacity=1, xOffset=6).encode(color=colour(), shape=shape())
    ground = alt.Chart(alt.NamedData(name="room")).encode(y=y)
    room = [ground.mark_point(opacity=0)]
    if even:
        room.append(ground.transform_filter("isValid(datum.e)").mark_rule(
            strokeDash=[4, 3], color=PLAIN, strokeWidth=1.5))  # fmt: skip
    return finished(alt.layer(*room, stalks, *drawn, signs, keys, names), BELOW + TITLE_LINE * (len(over) - 1))
