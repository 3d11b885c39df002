"""Axes, encodings and sizes that charts share; the layout of a chart with one row per backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnbench.report.charts.base.figure import Spec

if TYPE_CHECKING:
    import altair as alt

STEP = 24
"Pixels per row."
TITLE_LINE = 14
BELOW, TWO_LINES = 52, 52 + TITLE_LINE
"Pixels of an axis below the plot, with a title of one line or of two."


ON_A_PHONE = "containerSize()[0] < 460"
"""Condition for a page too narrow for names, plot and numbers side by side: numbers stay in table and tooltip only.
Without a browser there is no container, and the condition is false."""


def backends_axis() -> alt.Y:
    """Rows named by their backends; long names are shortened with an ellipsis, and complete in the tooltip."""
    import altair as alt

    axis = alt.Axis(ticks=False, domain=False, grid=True, gridDash=[1, 3], labelPadding=8, labelLimit=label_limit())
    return alt.Y("b:N").sort(None).title(None).axis(axis)


def label_limit() -> alt.ExprRef:
    """Pixels available for a name left of the plot."""
    import altair as alt

    return alt.expr(f"{ON_A_PHONE} ? 96 : 190")


def colour() -> alt.Color:
    """The backend's colour, from the data."""
    import altair as alt

    return alt.Color("c:N").scale(None).legend(None)


def shape() -> alt.Shape:
    """The backend's marker, from the data."""
    import altair as alt

    return alt.Shape("g:N").scale(None).legend(None)


def figures_at_the_right(base: alt.Chart) -> alt.Chart:
    """The number of each row (``t`` in the data) in a column right of the plot."""
    import altair as alt

    text = alt.condition(ON_A_PHONE, alt.value(""), "t:N")
    return base.mark_text(align="left", dx=10, style="label").encode(x=alt.value("width"), text=text)


def log_or_linear(log: bool, **more: Any) -> alt.Scale:
    """A scale that ends with the data, even if that is far from zero."""
    import altair as alt

    return alt.Scale(type="log", nice=False, **more) if log else alt.Scale(nice=False, zero=False, **more)


def finished(chart: Any, around: int = BELOW) -> Spec:
    """Return the definition of a chart for a container of any width, without data and config.

    Args:
        chart: layers and encodings.
        around: pixels of axes, titles and legends above and below the plot.  A page reserves the chart's height
            plus these before it is drawn, so that nothing moves when it is.
    """
    whole = chart.properties(width="container", autosize={"type": "fit", "contains": "padding"})
    spec: Spec = whole.to_dict(validate=False)  # validation takes a tenth of a second; tests validate every form
    spec["usermeta"] = {"around": around}
    for name in ("$schema", "config", "datasets"):
        spec.pop(name, None)
    return spec
