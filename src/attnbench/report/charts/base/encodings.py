"""Axes, encodings and sizes that charts share; the layout of a chart with one row per backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnbench.report.charts.base.figure import Spec

if TYPE_CHECKING:
    import altair as alt

STEP = 24
"Pixels a row."
TITLE_LINE = 14
BELOW, TWO_LINES = 52, 52 + TITLE_LINE
"Pixels of an axis below the plot, with a title of one line or of two."


ON_A_PHONE = "containerSize()[0] < 460"
"""Too narrow for names, plot and figures side by side: the figures stay in the table and the tooltip.
Without a browser there is no container, and no such size."""


def backends_axis() -> alt.Y:
    """Rows named by their backends; long names end in an ellipsis, the whole one is in the tooltip."""
    import altair as alt

    axis = alt.Axis(ticks=False, domain=False, grid=True, gridDash=[1, 3], labelPadding=8, labelLimit=label_limit())
    return alt.Y("b:N").sort(None).title(None).axis(axis)


def label_limit() -> alt.ExprRef:
    """Pixels of a name left of the plot."""
    import altair as alt

    return alt.expr(f"{ON_A_PHONE} ? 96 : 190")


def colour() -> alt.Color:
    """The backend's own colour, which the data carry."""
    import altair as alt

    return alt.Color("c:N").scale(None).legend(None)


def shape() -> alt.Shape:
    """The backend's own sign, which the data carry."""
    import altair as alt

    return alt.Shape("g:N").scale(None).legend(None)


def figures_at_the_right(base: alt.Chart) -> alt.Chart:
    """The figure of each row (``t`` of the data) in a column beyond the plot."""
    import altair as alt

    text = alt.condition(ON_A_PHONE, alt.value(""), "t:N")
    return base.mark_text(align="left", dx=10, style="label").encode(x=alt.value("width"), text=text)


def log_or_linear(log: bool, **more: Any) -> alt.Scale:
    """A scale that ends with the data, wherever that is from zero."""
    import altair as alt

    return alt.Scale(type="log", nice=False, **more) if log else alt.Scale(nice=False, zero=False, **more)


def finished(chart: Any, around: int = BELOW) -> Spec:
    """The definition of a chart, for a container of any width, without data and look.

    Args:
        chart: layers and encodings.
        around: pixels that axes, titles and legends take above and below the plot.  A page gives the chart its height
            plus these before it is drawn: nothing on the page moves when it is.
    """
    whole = chart.properties(width="container", autosize={"type": "fit", "contains": "padding"})
    spec: Spec = whole.to_dict(validate=False)  # a tenth of a second each; tests validate every form
    spec["usermeta"] = {"around": around}
    for name in ("$schema", "config", "datasets"):
        spec.pop(name, None)
    return spec
