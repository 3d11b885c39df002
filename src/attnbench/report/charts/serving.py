"""Time of a ranking step over cached tokens, candidates and users, one line per way to run it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from attnbench.report.charts.base.by_axis import along
from attnbench.report.charts.base.columns import TIME, axis
from attnbench.report.charts.base.data import RunData
from attnbench.report.charts.base.figure import Chart, Figure
from attnbench.report.charts.base.style import Styles

CACHED = axis("cached")
AXES = (CACHED, axis("num_candidates"), replace(axis("batch"), title="users of a step"))


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield a figure for each set of steps that differ only in one of `AXES`; none for other workloads."""
    if any(CACHED.short in table.case for table in data.tables):
        for x in AXES:
            yield from along(data, x, (TIME,), styles, kind="serving")


CHART = Chart(rank=3, draw=draw)
