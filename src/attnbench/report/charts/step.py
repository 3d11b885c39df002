"""Parts of a step of a whole model, one stacked bar per backend: attention, its preparation, and the rest."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.presentation.block import backend_name
from attnbench.presentation.parts import parts_of
from attnbench.report.charts.base.data import RunData
from attnbench.report.charts.base.figure import Chart, Figure
from attnbench.report.charts.base.stacks import stacks
from attnbench.report.charts.base.style import Styles


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield a figure for each case with known parts of a step, in the order of times."""
    for table in data.tables:
        bars = {backend_name(record): parts for record in table.records if (parts := parts_of(record))}
        if bars:
            title = f"What a step is made of, {table.case_id}"
            yield stacks("step", title, "step", bars, folder=table.folder, case_id=table.case_id)


CHART = Chart(rank=14, draw=draw)
