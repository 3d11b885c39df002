"""Time and TFLOP/s over the density of block maps, one line per backend, with separate charts for mask and pattern."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.report.charts.base.by_axis import along
from attnbench.report.charts.base.columns import TFLOPS, TIME, axis
from attnbench.report.charts.base.data import RunData
from attnbench.report.charts.base.figure import Chart, Figure
from attnbench.report.charts.base.style import Styles

DENSITY = axis("density")
FEWEST = 3
"Densities that make a sweep; the two of a sweep over length are lines of its own charts."


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield two figures for each set of cases that differ only in density."""
    if len({table.case.get(DENSITY.short) for table in data.tables} - {None}) >= FEWEST:
        yield from along(data, DENSITY, (TIME, TFLOPS), styles, kind="density")


CHART = Chart(rank=2, draw=draw)
