"""The form of a chart of one case: a row a backend in the order of the data, its figure at the right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnbench.report.charts.base.figure import Spec

if TYPE_CHECKING:
    import altair as alt

STEP = 24
"Pixels a row."


def backends_axis() -> alt.Y:
    """Rows named by their backends; long names end in an ellipsis, the whole one is in the tooltip."""
    import altair as alt

    axis = alt.Axis(ticks=False, domain=False, grid=True, gridDash=[1, 3], labelPadding=8)
    return alt.Y("b:N").sort(None).title(None).axis(axis)


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

    return base.mark_text(align="left", dx=10, style="label").encode(x=alt.value("width"), text="t:N")


def finished(chart: Any) -> Spec:
    """The checked definition of a chart, for a container of any width, without data and look."""
    spec: Spec = chart.properties(width="container", autosize={"type": "fit-x", "contains": "padding"}).to_dict()
    for name in ("$schema", "config", "datasets"):
        spec.pop(name, None)
    return spec
