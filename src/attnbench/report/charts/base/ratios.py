"""Chart of ratios around 1 with their intervals, one row per backend."""

from __future__ import annotations

from functools import cache

from attnbench.report.charts.base.encodings import (
    TWO_LINES,
    backends_axis,
    colour,
    figures_at_the_right,
    finished,
    shape,
)
from attnbench.report.charts.base.figure import Spec
from attnbench.report.charts.base.style import PLAIN


@cache
def ratios(title: tuple[str, ...], what: str) -> Spec:
    """Return a chart with one row per backend: its ratio (``m``) with interval (``l``, ``h``) and text (``t``).

    Args:
        title: lines below the axis.
        what: the ratio, in a tooltip.
    """
    import altair as alt

    # Logarithmic, so that a ratio and its inverse are equally far from 1; the baseline is always in view.
    scale = alt.Scale(type="log", nice=False, padding=14)
    base = alt.Chart(alt.NamedData(name="rows")).encode(y=backends_axis())
    even = alt.Chart(alt.NamedData(name="even")).mark_rule(strokeDash=[4, 3], color=PLAIN, strokeWidth=1.5)
    even = even.encode(x=alt.X("m:Q").scale(scale).title(list(title)))
    stem = base.mark_rule(strokeWidth=1.5, opacity=0.5).encode(
        x=alt.X("m:Q").scale(scale).title(list(title)), x2=alt.datum(1), color=colour()
    )
    interval = (
        base.transform_filter("isValid(datum.l)").mark_rule(strokeWidth=4, strokeCap="round")
        .encode(x=alt.X("l:Q").scale(scale).title(list(title)), x2="h:Q", color=colour())
    )  # fmt: skip
    tooltip = [alt.Tooltip("b:N", title="backend"), alt.Tooltip("t:N", title=what),
               alt.Tooltip("l:Q", title="95 % low"), alt.Tooltip("h:Q", title="95 % high")]  # fmt: skip
    point = base.mark_point(filled=True, size=52, opacity=1).encode(
        x=alt.X("m:Q").scale(scale).title(list(title)), color=colour(), shape=shape(), tooltip=tooltip
    )
    return finished(alt.layer(even, stem, interval, point, figures_at_the_right(base)), TWO_LINES)
