"""Charts of any metric over any axis of the cases or any measured quantity (`--x`, `--metric`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from attnbench.presentation.block import backend_name
from attnbench.record import Record, Run
from attnbench.report.charts.base.columns import CASE, Columns, resolve
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.figure import Figure, run_folders, slug
from attnbench.report.charts.base.lines import Point, Quantity, is_number, lines, points_of
from attnbench.report.charts.base.panels import LENGTH, Lost, Panel, differing, lost_places, panels
from attnbench.report.charts.base.style import Styles

WHO = "attnbench report"
FOLDERS = {LENGTH: "seq_len_plots", "actual_sparsity": "sparge_sparsity_plots"}
"Folder names of the seed documents' scripts; other axes have folders of their own name."
USUAL = ("time.median_ms", "rate.tflops")


def figures_over(runs: Sequence[Run], x: str | None, metric: str | None) -> list[Figure]:
    """Figures of `metric` over `x`, one for each set of cases that differ in nothing else.

    Args:
        runs: with their statistics derived.
        x: name of an axis or a column of numbers; None: seqlen.
        metric: name of a numeric column; None: time and TFLOP/s.

    Raises:
        UsageError: a name is unknown in all of the runs.
    """
    styles, prepared = Styles(runs), [RunData(run) for run in runs]
    found = [Columns(data.run, data.tables) for data in prepared]
    axes = [name for one in found for name in one.axes]
    measured = [name for one in found for name in one.measured]
    over = resolve(WHO, "--x", x or LENGTH, axes + measured)
    wanted = USUAL if metric is None else (resolve(WHO, "--metric", metric, measured),)
    drawn = []
    for data, columns, place in zip(prepared, found, run_folders(runs), strict=True):
        if over in columns.axes + columns.measured:
            quantities = [columns.quantity(name) for name in wanted if name in columns.measured]
            drawn += [figure.of_run(data.run.id, place)
                      for figure in along(data, columns.quantity(over), quantities, styles, kind="plot")]  # fmt: skip
    return drawn


def along(data: RunData, x: Quantity, metrics: Sequence[Quantity], styles: Styles, *, kind: str) -> Iterator[Figure]:
    """Yield a figure of each metric for each set of cases that differ only in x, apart by measuring conditions."""
    parts = data.by_conditions()
    for number, tables in enumerate(parts):
        conditions = tables[0].conditions.words() if len(parts) > 1 else []
        for panel in _panels(tables, x):
            for metric in metrics:
                yield from figure_over(panel, x, metric, styles, kind=kind, conditions=conditions,
                                       mark=f"_{number + 1}" if number else "", lost=data.without_point)  # fmt: skip


def _panels(tables: Sequence[Table], x: Quantity) -> list[Panel]:
    """Group cases along an axis; for a measured quantity, along the axis that changes it."""
    if x.column.startswith(CASE):
        return panels([table for table in tables if x.column.removeprefix(CASE) in table.case],
                      x.column.removeprefix(CASE))  # fmt: skip
    found = panels(tables, None)
    if any(_is_line(points_of(panel.tables, x, x, line_of(x))) for panel in found):
        return found
    numbers = [name for name in differing(tables) if name != LENGTH
               and all(is_number(table.case.get(name)) for table in tables)]  # fmt: skip
    moving = max(numbers, key=lambda name: len({table.case[name] for table in tables}), default=None)
    along = [] if moving is None else panels(tables, moving)
    return along if any(_is_line(points_of(panel.tables, x, x, line_of(x))) for panel in along) else found


def line_of(x: Quantity) -> Callable[[Record], str]:
    """Draw configurations of one backend that a measured quantity distinguishes as one line."""
    return backend_name if x.column.startswith(CASE) else base_name


def base_name(record: Record) -> str:
    """The backend without its configuration."""
    return record.backend.partition("[")[0]


def _is_line(points: Sequence[Point]) -> bool:
    seen: dict[str, set[object]] = {}
    for point in points:
        seen.setdefault(point.line, set()).add(point.x)
    return any(len(values) > 1 for values in seen.values())


def figure_over(
    panel: Panel, x: Quantity, metric: Quantity, styles: Styles, *, kind: str, conditions: Sequence[str] = (),
    mark: str = "", lost: Sequence[Lost] = (),
) -> Iterator[Figure]:  # fmt: skip
    """Yield the figure of one panel, named as in the seed documents' scripts; none for a single value of x.

    Args:
        panel: with the tables.
        x: quantity of the x axis.
        metric: quantity shown.
        styles: of the page.
        kind: of the figure.
        conditions: measuring conditions, if they differ within the run.
        mark: suffix of its name in that case.
        lost: workload and case of those without a table.
    """
    points = points_of(panel.tables, x, metric, line_of(x))
    if len({point.x for point in points}) < 2:
        return
    words = ", ".join(filter(None, (panel.words, *conditions)))
    gaps = lost_places(panel, x.column.removeprefix(CASE), lost) if x.column.startswith(CASE) else ()
    yield Figure(
        name=file_name(panel, x, metric) + mark,
        folder=_folder(panel, x),
        kind=kind,
        title=f"{metric.heading} over {x.title}" + (f": {words}" if words else ""),
        alt=_alt(points, x, metric) + (f", {words}." if words else "."),
        spec=lines(points, x, metric, styles, panel.goes_with, gaps),
    )


def file_name(panel: Panel, x: Quantity, metric: Quantity) -> str:
    """``time_ms_causal_false``; for another axis than the length ``time_ms_actual_sparsity_seq32768_causal_false``."""
    if x.column == CASE + LENGTH:
        told = {axis: value for axis, value in panel.fixed.items() if axis != "density"}  # its folder says it
        return slug(metric.short) + dataclasses.replace(panel, fixed=told).ending
    lengths = {table.case.get(LENGTH) for table in panel.tables}
    length = f"_seq{slug(*lengths)}" if len(lengths) == 1 and None not in lengths else ""
    rest = {axis: value for axis, value in panel.fixed.items() if axis != LENGTH}
    return f"{slug(metric.short)}_{slug(x.short)}{length}{dataclasses.replace(panel, fixed=rest).ending}"


def _folder(panel: Panel, x: Quantity) -> str:
    """Folder as in the seed documents' scripts; for lengths one per share of omitted blocks: ``_30``."""
    density = panel.tables[0].case.get("density")
    omitted = round(100 * (1 - (density or 1)), 4) if x.short == LENGTH and is_number(density) else 0
    name = FOLDERS.get(x.short, f"{slug(x.short)}_plots")
    return f"{name}_{omitted:g}" if omitted else name


def _alt(points: Sequence[Point], x: Quantity, metric: Quantity) -> str:
    text = f"{metric.heading} of {len({point.line for point in points})} backends over {x.title}"
    best = {"time.median_ms": min, "rate.tflops": max}.get(metric.column)
    places = list(dict.fromkeys(point.x for point in points))
    if best is None or not x.column.startswith(CASE):
        return text
    leaders = [best((point for point in points if point.x == place), key=lambda point: point.y) for place in places]
    return f"{text}; best " + ", ".join(
        f"{point.line} at {point.x} ({point.y:.3g} {metric.unit})" for point in leaders)  # fmt: skip
