"""Map of winners: the fastest backend for each shape, its lead, and shapes without a clear winner."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from attnbench.presentation.block import backend_name
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.encodings import ON_A_PHONE, TITLE_LINE, finished, label_limit
from attnbench.report.charts.base.figure import Chart, Figure, Spec, filled, row
from attnbench.report.charts.base.labels import LINE, LONGEST
from attnbench.report.charts.base.panels import FOLLOWERS, LENGTH, Lost, differing, lost_places, panels
from attnbench.report.charts.base.style import PLAIN, Style, Styles

ABOVE = 32
"Height of the axis above the cells without its title, pixels."
CELL = 44
"Height of a row of cells, pixels."
ROOMY = 5
"Most columns for which cells have room for most names."
TIGHT = "bandwidth('x') < 100"
"Condition for cells without room for names."
KEY_COLUMNS, ON_A_PHONE_COLUMNS, KEY_ROW = 4, 2, 18
"Names per line of the legend below the map, wide and narrow, and height of such a line in pixels."
NO_TIME, WITHOUT = "no time", "every backend failed, or its time is not known to within itself"
NOBODY = "no clear winner"


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield a map for each workload and set of conditions with at least two shapes in which backends were compared."""
    parts = data.by_conditions()
    for number, tables in enumerate(parts):
        contests = [table for table in tables if len(table.standing) > 1]
        if len(contests) > 1:
            conditions = contests[0].conditions.words() if len(parts) > 1 else []
            yield _figure(contests, styles, f"-{number + 1}" if number else "", conditions, data.without_point)


def _figure(
    tables: Sequence[Table], styles: Styles, mark: str, conditions: Sequence[str], lost: Sequence[Lost]
) -> Figure:
    across = _across(tables)
    cells: list[dict[str, Any]] = []
    following = set()
    for panel in panels(tables, across):
        following.add(panel.goes_with)
        for table in panel.tables:
            column = table.case_id if across is None else str(table.case.get(across))
            cells.append(_cell(table, styles) | {"x": column, "y": panel.words})
        gaps = dict.fromkeys(map(str, lost_places(panel, across, lost))) if across is not None else {}
        here = {cell["x"] for cell in cells if cell["y"] == panel.words}
        cells += [row(b=NOBODY, n=NO_TIME, t=WITHOUT, l="", k="", x=place, y=panel.words)
                  for place in gaps if place not in here]  # fmt: skip
    values = [table.case_id if across is None else table.case.get(across) for table in tables]
    values += [] if across is None else [case.get(across) for _, case in lost]
    columns = sorted({cell["x"] for cell in cells}, key=lambda text: _order(values, text))
    title = "sequence length" if across == LENGTH else across or "case"
    goes_with = following.pop() if len(following) == 1 else ""
    rows = len({cell["y"] for cell in cells})
    lines = 1 + max(cell["y"].count(", ") for cell in cells)
    tall = max(CELL, LINE * (lines + 1))
    long = max(len(cell["y"]) for cell in cells) > LONGEST
    clear = [cell for cell in cells if "c" in cell]
    wins: dict[str, int] = {}
    for cell in clear:
        wins[cell["b"]] = wins.get(cell["b"], 0) + 1
    # If cells may be too narrow for names they have markers, which a legend with colours explains.
    key = tuple((name, styles.of(name)) for name in wins) if len(columns) > ROOMY else ()
    summary = ", ".join(f"{name} wins {count}" for name, count in sorted(wins.items(), key=lambda item: -item[1]))
    unclear = len(cells) - len(clear)
    words = ", ".join(filter(None, (summary, f"{unclear} without a clear winner" if unclear else "")))
    return Figure(
        name=f"winner{mark}",
        kind="winner",
        title=", ".join(filter(None, ("Winner per shape, with its lead over the second", *conditions))),
        alt=f"Fastest backend of each of {len(cells)} shapes: {words}.",
        spec=filled(
            _definition(title, goes_with, tuple(columns), key, lines, long), {"cells": cells}, height=rows * tall
        ),
    )


def _across(tables: Sequence[Table]) -> str | None:
    """Return the horizontal field: the length, else the numeric field with most values."""
    varying = differing(tables)
    if LENGTH in varying:
        return LENGTH
    values = {name: {table.case.get(name) for table in tables} for name in varying
              if all(isinstance(table.case.get(name), int | float | str) for table in tables)}  # fmt: skip
    return max(values, key=lambda name: (len(values[name]), name not in FOLLOWERS), default=None)


def _order(values: Sequence[Any], text: str) -> tuple[float, int]:
    place = next(place for place, value in enumerate(values) if str(value) == text)
    value = values[place]
    return (float(value), 0) if isinstance(value, int | float) else (0.0, place)


def _cell(table: Table, styles: Styles) -> dict[str, Any]:
    """Return colour and text of one shape; without a clear winner it has no colour."""
    first, second = table.standing[:2]
    name = backend_name(first)
    if table.tied:
        shown = [backend_name(record) for record in table.standing if record.backend in table.tied]
        return row(b=NOBODY, n=NOBODY, t=f"{name} or {', '.join(shown)}", l=" / ".join((name, *shown)), k="")
    times = [record.time.median_ms or 0.0 for record in (first, second) if record.time]
    known = times[0] and not any(record.backend in (first.backend, second.backend) for record in table.off_scale)
    lead = f"{times[1] / times[0]:.2f}x" if known else ""
    style = styles.of(name)
    return row(b=name, n=name, c=style.colour, i=style.text_on_it, l=lead, k=table.case_id,
               t=f"{name}, {lead} as fast as {backend_name(second)}" if known else name)  # fmt: skip


@cache
def _definition(
    title: str, goes_with: str, columns: tuple[str, ...], key: tuple[tuple[str, Style], ...], lines: int, long: bool
) -> Spec:
    import altair as alt

    broken = "true" if long else ON_A_PHONE  # a shape of many fields needs a line for each
    x = alt.X("x:N").sort(list(columns)).scale(alt.Scale(paddingInner=0.015, paddingOuter=0))
    x = x.title([title, f"({goes_with})"] if goes_with else title)
    x = x.axis(alt.Axis(orient="top", labelAngle=0, labelOverlap=True, ticks=False, domain=False, grid=False))
    y = alt.Y("y:N").sort(None).scale(alt.Scale(paddingInner=0.07, paddingOuter=0)).title(None)
    y = y.axis(
        alt.Axis(
            ticks=False,
            domain=False,
            grid=False,
            labelPadding=8,
            labelLimit=label_limit(),
            labelExpr=f"{broken} ? split(datum.label, ', ') : datum.label",
            labelLineHeight=LINE,
            # A label of several lines starts where a label of one line is centred.
            labelOffset=alt.expr(f"{broken} ? {-LINE * (lines - 1) / 2} : 0"),
        )
    )
    base = alt.Chart(alt.NamedData(name="cells")).encode(x=x, y=y)
    tooltip = [alt.Tooltip("y:N", title="shape"), alt.Tooltip("x:N", title=title),
               alt.Tooltip("t:N", title="fastest")]  # fmt: skip
    won, open_ = base.transform_filter("isValid(datum.c)"), base.transform_filter("!isValid(datum.c)")
    colour = alt.Color("c:N").scale(None).legend(None)
    if key:
        names = [name for name, _ in key]
        legend = alt.Legend(orient="bottom", title=None, labelLimit=alt.expr(f"{ON_A_PHONE} ? 130 : 190"),
                            columns=alt.expr(f"{ON_A_PHONE} ? {ON_A_PHONE_COLUMNS} : {KEY_COLUMNS}"), symbolSize=70,
                            rowPadding=KEY_ROW - 12)  # fmt: skip
        colour = alt.Color("b:N").scale(alt.Scale(domain=names, range=[one.colour for _, one in key])).legend(legend)
        sign = alt.Shape("b:N").scale(alt.Scale(domain=names, range=[one.shape for _, one in key])).legend(legend)
    limit = alt.expr("bandwidth('x') - 10")
    layers = [
        won.mark_rect(cornerRadius=3).encode(color=colour, tooltip=tooltip),
        open_.mark_rect(cornerRadius=3, fill=PLAIN, fillOpacity=0.18).encode(tooltip=tooltip),
        won.mark_text(dy=-8, fontWeight=600, limit=limit).encode(
            text=alt.condition(TIGHT, alt.value(""), "n:N") if key else alt.Text("n:N"),
            color=alt.Color("i:N").scale(None).legend(None),
        ),
        *(
            [
                won.mark_point(filled=True, size=90, yOffset=-8).encode(
                    shape=sign,
                    color=alt.Color("i:N").scale(None).legend(None),
                    opacity=alt.condition(TIGHT, alt.value(1), alt.value(0)),
                )
            ]
            if key
            else []
        ),
        won.mark_text(dy=8, limit=limit).encode(text="l:N", color=alt.Color("i:N").scale(None).legend(None)),
        open_.mark_text(dy=-8, limit=limit, style="label").encode(
            text=alt.condition(f"{TIGHT} && datum.n == '{NOBODY}'", alt.value("unclear"), "n:N")
        ),
        open_.mark_text(dy=8, limit=limit, style="note").encode(text="l:N"),
    ]
    titles = 2 if goes_with else 1
    return finished(alt.layer(*layers), ABOVE + TITLE_LINE * titles + KEY_ROW * math.ceil(len(key) / ON_A_PHONE_COLUMNS)
                    + (KEY_ROW if key else 0))  # fmt: skip


CHART = Chart(rank=2, draw=draw)
