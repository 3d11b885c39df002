"""Measured steps of a whole model, compared with predictions from exchanging only the attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from attnbench.presentation import figures
from attnbench.presentation.block import backend_name
from attnbench.presentation.reconcile import Reconciled, reconcile
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


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """A figure for each table of rows that compute the same."""
    for table in data.tables:
        for number, rows in enumerate(reconcile(table.records, data.run.settings.baseline)):
            yield _figure(table, rows, styles, f"-{number + 1}" if number else "")


def _figure(table: Table, found: Sequence[Reconciled], styles: Styles, mark: str) -> Figure:
    unit = figures.unit_for(one.step_ms for one in found)
    rows = []
    for one in found:
        name, share = backend_name(one.record), one.difference
        shown = f"{figures.plain(one.step_ms * unit.per_ms)} {unit.name}"
        rows.append(row(
            b=name, c=styles.of(name).colour, m=short(one.step_ms * unit.per_ms),
            p=short(unit.of(one.predicted_ms)),
            t=shown if share is None else f"{shown}, {100 * share:+.1f} %"))  # fmt: skip
    first = backend_name(found[0].record)
    return Figure(
        name=f"predicted{mark}",
        folder=table.folder,
        kind="predicted",
        title=f"A step as measured, and as predicted from {first}, {table.case_id}",
        alt=f"Measured steps of {table.case_id}, and by how much they differ from those predicted from {first}: "
        + ", ".join(f"{one['b']} {one['t']}" for one in rows)
        + ".",
        case_id=table.case_id,
        spec=filled(_definition(unit.name), {"rows": rows}, height=STEP * len(rows)),
    )


@cache
def _definition(unit: str) -> Spec:
    import altair as alt

    base = alt.Chart(alt.NamedData(name="rows")).encode(y=backends_axis())
    title = [f"time of a step, {unit}", "(bar: measured; mark: predicted)"]
    x = alt.X("m:Q").axis(alt.Axis(tickCount=6)).title(title)
    tooltip = [alt.Tooltip("b:N", title="backend"), alt.Tooltip("t:N", title="measured"),
               alt.Tooltip("p:Q", title=f"predicted, {unit}")]  # fmt: skip
    bars = base.mark_bar(height=12, cornerRadiusEnd=2).encode(x=x, color=colour(), tooltip=tooltip)
    known = base.transform_filter("isValid(datum.p)")
    marks = known.mark_tick(style="label", thickness=2, size=20).encode(
        x=alt.X("p:Q").title(title), color=alt.value("currentColor"), tooltip=tooltip
    )
    return finished(alt.layer(bars, marks, figures_at_the_right(base)), TWO_LINES)


CHART = Chart(rank=15, draw=draw)
