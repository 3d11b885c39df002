"""Peak memory of each backend for one case: the allocations of its launch, measured alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from attnbench.presentation.block import backend_name
from attnbench.presentation.figures import plain
from attnbench.record import Record
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.encodings import (
    STEP,
    TWO_LINES,
    backends_axis,
    colour,
    figures_at_the_right,
    finished,
)
from attnbench.report.charts.base.figure import Chart, Figure, Spec, filled, row, short
from attnbench.report.charts.base.style import Styles

GIB = 1024.0
"MiB"


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield a figure for each case with a known peak, in the order of times."""
    for table in data.tables:
        peaks = {backend_name(record): peak for record in table.records if (peak := _peak(record)) is not None}
        if peaks:
            yield _figure(table, peaks, styles)


def _peak(record: Record) -> float | None:
    return record.memory.peak_allocated_mb if record.memory else None


def _figure(table: Table, peaks: dict[str, float], styles: Styles) -> Figure:
    unit, size = ("GiB", GIB) if min(peaks.values()) >= 10 * GIB else ("MiB", 1.0)
    rows: list[dict[str, Any]] = [
        row(b=name, c=styles.of(name).colour, m=short(peak / size), t=f"{plain(peak / size)} {unit}")
        for name, peak in peaks.items()
    ]
    alt = f"Peak memory on {table.case_id}: " + ", ".join(f"{one['b']} {one['t']}" for one in rows) + "."
    return Figure(
        name="memory",
        folder=table.folder,
        kind="memory",
        title=f"Peak memory, {table.case_id}",
        alt=alt,
        case_id=table.case_id,
        spec=filled(_definition(unit), {"rows": rows}, height=STEP * len(rows)),
    )


@cache
def _definition(unit: str) -> Spec:
    import altair as alt

    base = alt.Chart(alt.NamedData(name="rows")).encode(y=backends_axis())
    tooltip = [alt.Tooltip("b:N", title="backend"), alt.Tooltip("t:N", title="peak memory")]
    title = [f"peak memory allocated, {unit}", "(inputs and outputs in, harness out)"]
    x = alt.X("m:Q").axis(alt.Axis(tickCount=6)).title(title)
    bars = base.mark_bar(height=12, cornerRadiusEnd=2).encode(x=x, color=colour(), tooltip=tooltip)
    return finished(alt.layer(bars, figures_at_the_right(base)), TWO_LINES)


CHART = Chart(rank=13, draw=draw)
