"""Time and TFLOP/s over sequence length, one line per backend, with separate charts for causal, head size and so on."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.report.charts.base.by_axis import figure_over
from attnbench.report.charts.base.columns import SEQLEN, TFLOPS, TIME
from attnbench.report.charts.base.data import RunData
from attnbench.report.charts.base.figure import Chart, Figure
from attnbench.report.charts.base.panels import LENGTH, panels
from attnbench.report.charts.base.style import Styles


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield two figures for each set of cases that differ only in length."""
    parts = data.by_conditions()
    for number, tables in enumerate(parts):
        conditions = tables[0].conditions.words() if len(parts) > 1 else []
        mark = f"_{number + 1}" if number else ""
        for panel in panels([table for table in tables if LENGTH in table.case], LENGTH):
            for metric in (TIME, TFLOPS):
                yield from figure_over(panel, SEQLEN, metric, styles, kind="length", conditions=conditions, mark=mark,
                                       lost=data.without_point)  # fmt: skip


CHART = Chart(rank=1, draw=draw)
