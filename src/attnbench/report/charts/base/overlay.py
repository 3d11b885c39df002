"""Two runs in one chart: their times over the length, and the time of the later one relative to the first's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attnbench.presentation import figures
from attnbench.presentation.block import backend_name
from attnbench.report.charts.base.by_axis import file_name
from attnbench.report.charts.base.columns import SEQLEN, TIME
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.encodings import STEP
from attnbench.report.charts.base.figure import Figure, filled, row, short, slug
from attnbench.report.charts.base.lines import Point, Quantity, lines, points_of
from attnbench.report.charts.base.panels import LENGTH, Lost, Panel, lost_places, panels
from attnbench.report.charts.base.ratios import ratios
from attnbench.report.charts.base.style import Styles
from attnbench.report.compared import FIRST, Compared
from attnbench.verdict.change import Change

OF_FIRST, OF_LATER = (4, 3), (1, 0)
"Dashes of the lines of either run."

CaseKey = tuple[str, str]
"Workload and id."


def overlays(first: RunData, later: RunData, compared: Compared, styles: Styles) -> Iterator[Figure]:
    """Yield figures of the cases that both runs have; none if they were measured under different conditions.

    Args:
        first: run A.
        later: the other run.
        compared: their rows, with verdicts.
        styles: of the page.
    """
    changes: dict[CaseKey, list[Change]] = {}
    for change in compared.found.changes if compared.found else ():
        changes.setdefault((change.a.workload, change.a.case_id), []).append(change)
    others = {(_key(table), table.conditions.key[1:]): table for table in later.tables}
    folder = overlay_folder(compared)
    for number, tables in enumerate(first.by_conditions()):
        shared = {
            _key(table): other
            for table in tables
            if _key(table) in changes and (other := others.get((_key(table), table.conditions.key[1:])))
        }
        mark = f"_{number + 1}" if number else ""
        for panel in panels([table for table in tables if _key(table) in shared], LENGTH):
            over_length = len({table.case.get(LENGTH) for table in panel.tables} - {None}) > 1
            drawn = _over_length(panel, shared, changes, compared, styles, first.without_point) if over_length else (
                _of_case(table, changes[_key(table)], compared, styles) for table in panel.tables)  # fmt: skip
            yield from (dataclasses.replace(figure, folder=folder, name=figure.name + mark) for figure in drawn)


def overlay_folder(compared: Compared) -> str:
    """Return the folder of a comparison's image files, below that of plots; no run has a folder of that name."""
    return f"{FIRST}-and-{slug(compared.letter)}"


def _key(table: Table) -> CaseKey:
    return table.workload, table.case_id


def _over_length(
    panel: Panel, shared: Mapping[CaseKey, Table], changes: Mapping[CaseKey, Sequence[Change]], compared: Compared,
    styles: Styles, lost: Sequence[Lost],
) -> Iterator[Figure]:  # fmt: skip
    """Yield the times of both runs, and their ratio, over the length."""
    words, pair = f": {panel.words}" if panel.words else "", f"{FIRST} and {compared.letter}"
    gaps = lost_places(panel, LENGTH, lost)
    both = {backend_name(change.a) for table in panel.tables for change in changes[_key(table)]}
    times = [*_of_run(panel.tables, FIRST, OF_FIRST, both),
             *_of_run([shared[_key(table)] for table in panel.tables], compared.letter, OF_LATER, both)]  # fmt: skip
    yield Figure(
        name=file_name(panel, SEQLEN, TIME), kind="overlay",
        title=f"Time of {pair} over {SEQLEN.title}{words}",
        alt=f"Time of {len(both)} backends in the runs {pair} ({FIRST} dashed) over {SEQLEN.title}{words}.",
        spec=lines(times, SEQLEN, TIME, styles, panel.goes_with, gaps),
    )  # fmt: skip
    quantity = _ratio(compared.letter)
    judged = [(table.case[LENGTH], change) for table in panel.tables for change in changes[_key(table)]]
    known = [Point(name := backend_name(change.a), length, 1.0 + change.change, name, _ends(change))
             for length, change in judged if change.change is not None]  # fmt: skip
    if known:
        yield Figure(
            name=file_name(panel, SEQLEN, quantity), kind="ratio",
            title=f"{quantity.heading} over {SEQLEN.title}{words}",
            alt=f"{quantity.heading} over {SEQLEN.title}{words}: "
                + _described(change for _, change in judged) + ".",
            spec=lines(known, SEQLEN, quantity, styles, panel.goes_with, gaps),
        )  # fmt: skip


def _of_run(tables: Sequence[Table], name: str, dash: tuple[int, int], backends: set[str]) -> list[Point]:
    return [dataclasses.replace(point, line=f"{point.line} · {name}", dash=dash)
            for point in points_of(tables, SEQLEN, TIME, backend_name) if point.backend in backends]  # fmt: skip


def _of_case(table: Table, changes: Sequence[Change], compared: Compared, styles: Styles) -> Figure:
    """Return the ratios of one case, one row per backend."""
    rows = []
    for change in changes:
        style, ends = styles.of(backend_name(change.a)), _ends(change)
        if change.change is not None:
            rows.append(row(
                b=backend_name(change.a), c=style.colour, g=style.shape, m=short(1.0 + change.change),
                l=short(ends[0]) if ends else None, h=short(ends[1]) if ends else None, v=change.verdict,
                t=_words(change)))  # fmt: skip
    quantity = _ratio(compared.letter)
    return Figure(
        name=f"ratio-{slug(table.case_id)}", kind="ratio", title=f"{quantity.heading}, {table.case_id}",
        alt=f"{quantity.heading} on {table.case_id}: {_described(changes)}.",
        spec=filled(ratios((quantity.title, "(95 % interval; below 1 is faster)"), "ratio"),
                    {"rows": rows, "even": [{"m": 1}]}, height=STEP * max(len(rows), 1)),
    )  # fmt: skip


def _ratio(name: str) -> Quantity:
    title = f"time of {name} / time of {FIRST}"
    return Quantity(f"ratio.{name}", "ratio", title, "", lambda table, record: None, even=1.0)


def _ends(change: Change) -> tuple[float, float] | None:
    """Return the ends of the interval; None if it reaches 0, which a ratio cannot."""
    if change.low is None or change.high is None or change.low <= -1.0:
        return None
    return 1.0 + change.low, 1.0 + change.high


def _words(change: Change) -> str:
    if change.change is None:
        return change.verdict
    half = figures.half_interval(1.0 + change.change, *(_ends(change) or (None, None)))
    ratio = figures.measured(1.0 + change.change, half)
    return " ".join(filter(None, (f"{ratio}x", figures.margin(1.0 + change.change, half), change.verdict)))


def _described(changes: Iterable[Change]) -> str:
    return "; ".join(f"{backend_name(change.a)} at {change.a.case_id} {_words(change)}" for change in changes)
