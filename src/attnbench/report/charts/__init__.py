"""All charts of a page, one file per kind, each defined once for the page and for PNG and SVG.

A file defines ``CHART`` (`base.figure.Chart`) and is found by scanning.  Charts are built with
Altair, once for each form they can have; what differs between cases is data.  Tests verify that the output
is valid Vega-Lite; reports do not check it again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from attnbench.formats import scan
from attnbench.record import Run
from attnbench.report.charts.base.data import RunData
from attnbench.report.charts.base.figure import Chart, Figure, run_folders
from attnbench.report.charts.base.overlay import overlays
from attnbench.report.charts.base.style import Styles
from attnbench.report.compared import Compared, compare

__all__ = ["Figure", "chart_names", "figures"]


def chart_names() -> list[str]:
    """Kinds of charts, in the order of a page."""
    return [name for name, _ in _charts()]


def figures(runs: Sequence[Run], comparisons: Sequence[Compared] | None = None) -> list[Figure]:
    """Return every figure with data: run by run, those of the whole run before its cases; then comparisons of runs.

    Args:
        runs: with their statistics derived (`store.runfile.read`).  A backend has the same colour in all of them.
        comparisons: of the later runs with the first (`compared.compare`); None: they are computed here.
    """
    styles, found = Styles(runs), []
    charts = [chart for _, chart in _charts()]
    prepared = [RunData(run) for run in runs]
    for run, data, place in zip(runs, prepared, run_folders(runs), strict=True):
        drawn = [figure for chart in charts for figure in chart.draw(data, styles)]
        found += [figure.of_run(run.id, place) for figure in _by_case(drawn)]
    found_of_two = compare(runs) if comparisons is None else comparisons
    for later, compared in zip(prepared[1:], found_of_two, strict=True):
        found += overlays(prepared[0], later, compared, styles)
    return found


def _charts() -> list[tuple[str, Chart]]:
    room = sys.modules[__name__]
    found = [(name, scan.load(room, name).CHART) for name in scan.names(room)]
    return sorted(found, key=lambda item: item[1].rank)


def _by_case(drawn: Iterable[Figure]) -> list[Figure]:
    """Return those of the run first, then all of one case before those of the next, otherwise in the given order."""
    cases: dict[str | None, list[Figure]] = {None: []}
    for figure in drawn:
        cases.setdefault(figure.case_id, []).append(figure)
    return [figure for figures_of_one in cases.values() for figure in figures_of_one]
