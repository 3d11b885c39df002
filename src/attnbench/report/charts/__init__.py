"""Every chart of a page, one file a kind, each defined once for the page and for PNG and SVG.

A file defines ``CHART`` (`base.figure.Chart`) and is found by scanning.  Charts are built with
Altair, once for each form they can take; what differs from case to case is data.  That what comes out
is Vega-Lite is held by tests, not checked again in every report.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from attnbench.formats import scan
from attnbench.record import Run
from attnbench.report.charts.base.data import RunData
from attnbench.report.charts.base.figure import Chart, Figure, run_folders
from attnbench.report.charts.base.style import Styles

__all__ = ["Figure", "chart_names", "figures"]


def chart_names() -> list[str]:
    """Kinds of charts, in the order in which a page shows them."""
    return [name for name, _ in _charts()]


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Every figure that has something to show: run by run, those of the whole run before its cases.

    Args:
        runs: with their statistics derived (`store.runfile.read`).  A backend has one colour in all
            of them; runs are never mixed in a figure.
    """
    styles, found = Styles(runs), []
    charts = [chart for _, chart in _charts()]
    for run, place in zip(runs, run_folders(runs), strict=True):
        data = RunData(run)
        drawn = [figure for chart in charts for figure in chart.draw(data, styles)]
        found += [figure.of_run(run.id, place) for figure in _by_case(drawn)]
    return found


def _charts() -> list[tuple[str, Chart]]:
    room = sys.modules[__name__]
    found = [(name, scan.load(room, name).CHART) for name in scan.names(room)]
    return sorted(found, key=lambda item: item[1].rank)


def _by_case(drawn: Iterable[Figure]) -> list[Figure]:
    """Those of the run first, then all of one case before those of the next; else as they come."""
    cases: dict[str | None, list[Figure]] = {None: []}
    for figure in drawn:
        cases.setdefault(figure.case_id, []).append(figure)
    return [figure for figures_of_one in cases.values() for figure in figures_of_one]
