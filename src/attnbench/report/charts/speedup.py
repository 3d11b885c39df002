"""Speed-up of each backend against the baseline on one case, with its 95 % interval."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from attnbench.presentation import figures
from attnbench.presentation.block import backend_name
from attnbench.record import Record
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.encodings import (
    STEP,
    TWO_LINES,
    backends_axis,
    colour,
    figures_at_the_right,
    finished,
    shape,
)
from attnbench.report.charts.base.figure import Chart, Figure, Spec, filled, row, short
from attnbench.report.charts.base.style import PLAIN, Styles


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """A figure a case and baseline: of those who were compared with it, fastest first."""
    for table in data.tables:
        for number, baseline in enumerate(_baselines(table)):
            compared = [record for record in table.records if _is_against(record, baseline)]
            yield _figure(table, baseline, compared, styles, f"-{number + 1}" if number else "")


def _baselines(table: Table) -> list[str]:
    found = (record.speedup.baseline for record in table.records if record.speedup)
    return [name for name in dict.fromkeys(found)
            if any(_is_against(record, name) for record in table.records)]  # fmt: skip


def _is_against(record: Record, baseline: str) -> bool:
    return record.speedup is not None and record.speedup.baseline == baseline != record.backend


def _figure(table: Table, baseline: str, compared: list[Record], styles: Styles, mark: str) -> Figure:
    rows = [_row(record, styles) for record in compared]
    alt = (f"Speed-up against {baseline} on {table.case_id}; above 1 is faster: "
           + ", ".join(f"{one['b']} {one['t']}" for one in rows) + ".")  # fmt: skip
    return Figure(
        name=f"speedup{mark}",
        folder=table.folder,
        kind="speedup",
        title=f"Speed-up against {baseline}, {table.case_id}",
        alt=alt,
        case_id=table.case_id,
        spec=filled(_definition(), {"rows": rows, "even": [{"m": 1}]}, height=STEP * len(rows)),
    )


def _row(record: Record, styles: Styles) -> dict[str, Any]:
    speedup, style = record.speedup, styles.of(backend_name(record))
    assert speedup is not None  # only who was compared comes here
    return row(
        b=backend_name(record), c=style.colour, g=style.shape, m=short(speedup.ratio), l=short(speedup.ci_low),
        h=short(speedup.ci_high), v=speedup.verdict,
        t=" ".join(filter(None, (*figures.ratio(speedup), speedup.verdict))),
    )  # fmt: skip


@cache
def _definition() -> Spec:
    import altair as alt

    # A ratio and its inverse lie as far from 1; the line of the baseline is always in view.
    scale = alt.Scale(type="log", nice=False, padding=14)
    title = ["speed-up, times the baseline's speed", "(median of the ratios, 95 % interval)"]
    base = alt.Chart(alt.NamedData(name="rows")).encode(y=backends_axis())
    even = alt.Chart(alt.NamedData(name="even")).mark_rule(strokeDash=[4, 3], color=PLAIN, strokeWidth=1.5)
    even = even.encode(x=alt.X("m:Q").scale(scale).title(title))
    stem = base.mark_rule(strokeWidth=1.5, opacity=0.5).encode(
        x=alt.X("m:Q").scale(scale).title(title), x2=alt.datum(1), color=colour())
    interval = (
        base.transform_filter("isValid(datum.l)").mark_rule(strokeWidth=4, strokeCap="round")
        .encode(x=alt.X("l:Q").scale(scale).title(title), x2="h:Q", color=colour())
    )  # fmt: skip
    tooltip = [alt.Tooltip("b:N", title="backend"), alt.Tooltip("t:N", title="speed-up"),
               alt.Tooltip("l:Q", title="95 % low"), alt.Tooltip("h:Q", title="95 % high")]  # fmt: skip
    point = base.mark_point(filled=True, size=52, opacity=1).encode(
        x=alt.X("m:Q").scale(scale).title(title), color=colour(), shape=shape(), tooltip=tooltip)
    return finished(alt.layer(even, stem, interval, point, figures_at_the_right(base)), TWO_LINES)


CHART = Chart(rank=11, draw=draw)
