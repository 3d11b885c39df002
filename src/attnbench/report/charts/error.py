"""Error versus time for one case, to show the trade-off between accuracy and speed.

The error is the largest among its outputs and gradients, as a share of the budget of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from attnbench.presentation import figures
from attnbench.presentation.block import backend_name
from attnbench.record import Record
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.encodings import colour, finished, log_or_linear, shape
from attnbench.report.charts.base.figure import Chart, Figure, Spec, filled, row, short
from attnbench.report.charts.base.labels import NARROW, around, scaled, shortened
from attnbench.report.charts.base.style import Styles

HEIGHT = 260
FEWEST = 2
"Least number of backends: one point shows no trade-off."
WIDE = 4.0


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield a figure for each case in which two backends have a time and an error."""
    for table in data.tables:
        shares = [(record, *found) for record in table.records if (found := _worst(record)) is not None]
        if len(shares) >= FEWEST:
            yield _figure(table, shares, styles)


def _worst(record: Record) -> tuple[float, str] | None:
    """Return the largest error over its budget, in percent, and its output."""
    known = [(100.0 * error.max_abs / error.budget, name) for name, error in record.errors.items()
             if error.max_abs is not None and error.budget]  # fmt: skip
    return max(known) if known else None


def _figure(table: Table, shares: list[tuple[Record, float, str]], styles: Styles) -> Figure:
    times = [record.time.median_ms or 0.0 for record, _, _ in shares if record.time]
    unit, log = figures.unit_for(times), max(times) > WIDE * min(times)
    x = scaled(times, NARROW - 24, log)
    top = max(share for _, share, _ in shares) * 1.1 or 1.0
    y = [HEIGHT * (1 - share / top) for _, share, _ in shares]
    names = [shortened(backend_name(record)) for record, _, _ in shares]
    places, rows = around(x, y, names, HEIGHT), []
    for (record, share, output), time, name, place in zip(shares, times, names, places, strict=True):
        style = styles.of(backend_name(record))
        rows.append(row(
            b=backend_name(record), n=name, c=style.colour, g=style.shape, m=short(time * unit.per_ms),
            e=short(share, 3), o=output, dx=place.dx, y=short(share - place.dy / HEIGHT * top, 4), a=place.align,
            t=f"{figures.plain(time * unit.per_ms, 4)} {unit.name}, {figures.plain(share)} % of budget"))  # fmt: skip
    alt = (f"Largest error as a share of its budget against time on {table.case_id}: "
           + "; ".join(f"{one['b']} {one['t']}" for one in rows) + ".")  # fmt: skip
    return Figure(
        name="error",
        folder=table.folder,
        kind="error",
        title=f"Error beside speed, {table.case_id}",
        alt=alt,
        case_id=table.case_id,
        spec=filled(_definition(unit.name, log), {"rows": rows, "top": [{"e": short(top)}]}),
    )


@cache
def _definition(unit: str, log: bool) -> Spec:
    import altair as alt

    x = alt.X("m:Q").scale(log_or_linear(log, padding=12))
    x = x.title(f"median time, {unit} (further left is faster)")
    y = alt.Y("e:Q").scale(alt.Scale(zero=True, nice=False)).axis(alt.Axis(tickCount=5))
    y = y.title(["largest error, % of its budget", "(lower is closer)"])
    base = alt.Chart(alt.NamedData(name="rows")).encode(x=x, y=y)
    tooltip = [alt.Tooltip("b:N", title="backend"), alt.Tooltip("t:N", title="time, error"),
               alt.Tooltip("o:N", title="of output")]  # fmt: skip
    stalks = base.mark_rule(strokeWidth=1, opacity=0.7).encode(y2="y:Q", color=colour())
    points = base.mark_point(filled=True, size=64, opacity=1).encode(color=colour(), shape=shape(), tooltip=tooltip)
    names = base.mark_text(style="label", baseline="middle", dx=alt.expr("datum.dx"), align=alt.expr("datum.a")).encode(
        y=alt.Y("y:Q").scale(alt.Scale(zero=True, nice=False)), text="n:N"
    )
    # Room above the highest point for its name, as data, so that one definition serves all.
    room = alt.Chart(alt.NamedData(name="top")).mark_point(opacity=0).encode(y=y)
    return finished(alt.layer(room, stalks, points, names)) | {"height": HEIGHT}


CHART = Chart(rank=12, draw=draw)
