"""Time of each backend for one case: the median with its 95 % interval, over the samples themselves.

Of more than `MOST_SAMPLES` samples those at evenly spaced ranks are drawn, including the shortest and the
longest, so that the strip keeps the shape of the distribution.

A few slow samples do not stretch the axis: where all else would have less than two thirds of it, it ends at the largest
of the interval ends and of the backends' 95th percentiles.  Samples beyond are counted at its end, with the longest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from attnbench.presentation import figures
from attnbench.presentation.block import backend_name
from attnbench.record import Record
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.encodings import (
    ON_A_PHONE,
    STEP,
    TWO_LINES,
    backends_axis,
    colour,
    figures_at_the_right,
    finished,
    shape,
)
from attnbench.report.charts.base.figure import Chart, Figure, Spec, filled, row, short
from attnbench.report.charts.base.style import Styles
from attnbench.store.replicates import Processes

MOST_SAMPLES = 40
"Most samples drawn for one record."
WIDE = 4.0
"Ratio of slowest to fastest from which the axis is logarithmic."
USUAL = 0.95
"Share of each backend's samples for which the axis always has room."
STRETCHED = 1.5
"Length of an axis of all samples over that of the usual ones from which it ends with these."


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield a figure for each case with at least one time."""
    for table in data.tables:
        yield _figure(table, styles)


def drawn_samples(samples: Sequence[float]) -> list[float]:
    """Return at most `MOST_SAMPLES` of `samples`, at evenly spaced ranks."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    if last < MOST_SAMPLES:
        return ordered
    return [ordered[round(place * last / (MOST_SAMPLES - 1))] for place in range(MOST_SAMPLES)]


def _figure(table: Table, styles: Styles) -> Figure:
    medians = [record.time.median_ms for record in table.records if record.time and record.time.median_ms]
    unit = figures.unit_for(medians)
    end_ms = _end_ms(table)
    rows = [_row(record, table, unit, styles, end_ms) for record in table.records]
    # A linear axis over a narrow range ends above 0 despite its margins; a wide range is logarithmic.
    drawn = [value for one in rows for value in (one["m"], *one["s"], one.get("l"), one.get("h")) if value]
    wide = max(drawn) > WIDE * min(drawn)
    beyond = [f"{one['o']} of {one['b']}" for one in rows if "o" in one]
    spec = _definition(unit.name, wide, bool(beyond))
    fastest = backend_name(table.records[0])
    alt = (f"Median time in {unit.name} of {len(rows)} backends on {table.case_id}, fastest first: "
           + ", ".join(f"{one['b']} {one['t']}" for one in rows) + "."
           + f" Samples beyond the axis: {', '.join(beyond)}." * bool(beyond))  # fmt: skip
    return Figure(
        name="time",
        folder=table.folder,
        kind="time",
        title=f"Time, {table.case_id}" + (f": {fastest} first" if len(rows) > 1 and not table.off_scale else ""),
        alt=alt,
        case_id=table.case_id,
        spec=filled(spec, {"rows": rows}, height=STEP * len(rows)),
    )


def _samples(record: Record, table: Table) -> list[float]:
    """Return the samples of a record, or of all its processes, ms."""
    members = table.processes[record.backend]
    return [sample for member in members if member.time for sample in member.time.samples_ms]


def _end_ms(table: Table) -> float:
    """Return the time up to which samples are drawn: infinite unless a few slow ones would stretch the axis."""
    known = [end for record in table.records if (time := record.time)
             for end in (time.median_ms, time.ci_low_ms, time.ci_high_ms) if end]  # fmt: skip
    of_each = [ordered for record in table.records if (ordered := sorted(filter(None, _samples(record, table))))]
    if not of_each:
        return math.inf
    low = min(*known, *(ordered[0] for ordered in of_each))
    usual = max(*known, *(ordered[int(USUAL * (len(ordered) - 1))] for ordered in of_each))
    longest = max(usual, *(ordered[-1] for ordered in of_each))
    wide = usual > WIDE * low
    length, whole = (math.log(end / low) if wide else end - low for end in (usual, longest))
    return usual if whole > STRETCHED * length else math.inf


def _beyond(samples: Sequence[float], end_ms: float, unit: figures.Unit) -> str | None:
    """Describe the samples beyond the end of the axis: their number and the longest; None without any."""
    slow = [sample for sample in samples if sample > end_ms]
    if not slow:
        return None
    longest = figures.plain(max(slow) * unit.per_ms)
    return f"{len(slow)}, at {longest}" if len(slow) == 1 else f"{len(slow)}, up to {longest}"


def _row(record: Record, table: Table, unit: figures.Unit, styles: Styles, end_ms: float) -> dict[str, Any]:
    time, style = record.time, styles.of(backend_name(record))
    assert time is not None  # a table contains timed records only
    scale = unit.per_ms

    def at(value: float | None) -> float | None:
        return short(value * scale) if value and value > 0 else None  # below the timer's tick: cannot be drawn

    half, median = figures.time_half(time), time.median_ms or 0.0
    members, samples = table.processes[record.backend], _samples(record, table)
    usual = [sample for sample in samples if sample <= end_ms]
    spread = Processes(members, len(members)).spread_ms if table.replicated else None
    half, doubt = (None if value is None else value * scale for value in (half, half if spread is None else spread))
    label = " ".join(filter(None, (figures.measured(median * scale, doubt), figures.margin(median * scale, half))))
    return row(
        b=backend_name(record), c=style.colour, g=style.shape, m=at(median), l=at(time.ci_low_ms),
        h=at(time.ci_high_ms), t=f"{label} {unit.name}",
        n=time.num_samples, s=[place for sample in drawn_samples(usual) if (place := at(sample))],
        o=_beyond(samples, end_ms, unit),
    )  # fmt: skip


@cache
def _definition(unit: str, wide: bool, beyond: bool) -> Spec:
    import altair as alt

    scale = alt.Scale(type="log", nice=False, padding=14) if wide else alt.Scale(zero=False, padding=14)
    explained = "(median, 95 % interval, samples" + "; → slower ones" * beyond + ")"
    title = [f"time, {unit}", explained]
    base = alt.Chart(alt.NamedData(name="rows")).encode(y=backends_axis())
    samples = (
        base.transform_flatten(["s"], ["v"]).mark_tick(thickness=1, size=6, yOffset=8, opacity=0.4)
        .encode(x=alt.X("v:Q").scale(scale).title(title), color=colour())
    )  # fmt: skip
    interval = (
        base.transform_filter("isValid(datum.l)").mark_rule(strokeWidth=3, strokeCap="round")
        .encode(x=alt.X("l:Q").scale(scale).title(title), x2="h:Q", color=colour())
    )  # fmt: skip
    tooltip = [alt.Tooltip("b:N", title="backend"), alt.Tooltip("t:N", title="median"),
               alt.Tooltip("l:Q", title=f"95 % low, {unit}"), alt.Tooltip("h:Q", title=f"95 % high, {unit}"),
               alt.Tooltip("n:Q", title="samples")]  # fmt: skip
    point = base.mark_point(filled=True, size=52, opacity=1).encode(
        x=alt.X("m:Q").scale(scale).title(title), color=colour(), shape=shape(), tooltip=tooltip
    )
    slow = (
        base.transform_filter("isValid(datum.o)").transform_calculate(w=f"({ON_A_PHONE} ? '' : datum.o + ' ') + '→'")
        .mark_text(style="label", align="right", dy=8, dx=-1, fontSize=9)
        .encode(x=alt.value("width"), text="w:N", color=colour())
    )  # fmt: skip
    drawn = [samples, interval, point, *([slow] if beyond else []), figures_at_the_right(base)]
    return finished(alt.layer(*drawn), TWO_LINES)


CHART = Chart(rank=10, draw=draw)
