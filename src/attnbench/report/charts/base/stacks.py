"""Stacked bars: the parts of each row's time, one colour per part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from attnbench.presentation import figures
from attnbench.report.charts.base.encodings import STEP, TWO_LINES, backends_axis, figures_at_the_right, finished
from attnbench.report.charts.base.figure import Figure, Spec, filled, row, short
from attnbench.report.charts.base.style import COLOURS, PLAIN

LEGEND = 24
"Height of a line of the legend, pixels."
NAMES_A_LINE = 3
FIRST = ("attention", "attention preparation")
GREY = {"other": "#66707b", "the rest": PLAIN, "idle": "#bcc3ca"}
"Parts that come last, without a colour of their own."


def stacks(name: str, title: str, of_what: str, bars: Mapping[str, Mapping[str, float]], **more: Any) -> Figure:
    """Return a figure of bars.

    Args:
        name: of its file, and its kind.
        title: of the figure.
        of_what: the whole, for the axis title: step, generation, capture.
        bars: ms of each part of each row, in the order of drawing.
        more: further fields of `Figure`.
    """
    parts = sorted(dict.fromkeys(part for bar in bars.values() for part in bar), key=_place)
    totals = {key: sum(bar.values()) for key, bar in bars.items()}
    unit = figures.unit_for(totals.values())
    rows = []
    for key, bar in bars.items():
        start = 0.0
        for part in (part for part in parts if part in bar):
            ms = bar[part]
            share = f"{figures.plain(ms * unit.per_ms)} {unit.name}, {100 * ms / totals[key]:.1f} %"
            rows.append(row(b=key, p=part, s=short(start * unit.per_ms), e=short((start + ms) * unit.per_ms), t=share))
            start += ms
    ends = [row(b=key, t=f"{figures.plain(total * unit.per_ms)} {unit.name}") for key, total in totals.items()]
    summary = "; ".join(
        f"{key} " + ", ".join(f"{part} {figures.plain(ms * unit.per_ms)} {unit.name}" for part, ms in bar.items())
        for key, bar in bars.items()
    )
    return Figure(
        name=name,
        kind=more.pop("kind", name),
        title=title,
        alt=f"{title}: {summary}.",
        spec=filled(
            _definition(unit.name, of_what, tuple(parts)), {"rows": rows, "ends": ends}, height=STEP * len(bars)
        ),
        **more,
    )


def colours_of(parts: tuple[str, ...]) -> list[str]:
    """Return a colour per part; grey for those of `GREY`."""
    own = iter(COLOURS * (len(parts) // len(COLOURS) + 1))
    return [GREY.get(part) or next(own) for part in parts]


def _place(part: str) -> int:
    if part in FIRST:
        return FIRST.index(part)
    return len(FIRST) + (1 + list(GREY).index(part) if part in GREY else 0)


@cache
def _definition(unit: str, of_what: str, parts: tuple[str, ...]) -> Spec:
    import altair as alt

    legend = alt.Legend(
        title=None, orient="top", columns=NAMES_A_LINE, symbolType="square", labelLimit=150, columnPadding=14
    )
    fill = alt.Color("p:N").scale(alt.Scale(domain=list(parts), range=colours_of(parts))).legend(legend)
    x = alt.X("s:Q").scale(alt.Scale(zero=True)).axis(alt.Axis(tickCount=6)).title(f"time of a {of_what}, {unit}")
    tooltip = [alt.Tooltip("b:N", title="backend"), alt.Tooltip("p:N", title="part"), alt.Tooltip("t:N", title="time")]
    base = alt.Chart(alt.NamedData(name="rows")).encode(y=backends_axis())
    bars = base.mark_bar(height=14).encode(x=x, x2="e:Q", color=fill, tooltip=tooltip)
    ends = alt.Chart(alt.NamedData(name="ends")).encode(y=backends_axis())
    lines = -(-len(parts) // NAMES_A_LINE)
    return finished(alt.layer(bars, figures_at_the_right(ends)), TWO_LINES + LEGEND * lines)
