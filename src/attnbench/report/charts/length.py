"""Time and TFLOP/s over sequence length, one line per backend, with separate charts for causal, head size and so on."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.report.charts.base.by_axis import along
from attnbench.report.charts.base.columns import SEQLEN, TFLOPS, TIME
from attnbench.report.charts.base.data import RunData
from attnbench.report.charts.base.figure import Chart, Figure
from attnbench.report.charts.base.style import Styles


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield two figures for each set of cases that differ only in length."""
    yield from along(data, SEQLEN, (TIME, TFLOPS), styles, kind="length")


CHART = Chart(rank=1, draw=draw)
