"""Distance of each backend's latents from the reference, over the steps of a generation."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.presentation.block import backend_name
from attnbench.presentation.video import DISTANCE
from attnbench.record import Record
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.figure import Chart, Figure
from attnbench.report.charts.base.lines import Point, Quantity, lines
from attnbench.report.charts.base.style import Styles

OVER = Quantity("case.step", "step", "denoising step", "", lambda table, record: None, may_log=False)
DISTANCE_OF = Quantity("distance", "latents", "relative L1 of the latents", "", lambda table, record: None)


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield a figure for each case in which a backend has at least two steps."""
    for table in data.tables:
        points = list(_points(table))
        if len({point.x for point in points}) > 1:
            last = {point.backend: f"{point.y:.1e}" for point in points}
            summary = ", ".join(f"{name} {distance}" for name, distance in (last | _equal(table)).items())
            yield Figure(
                name="latents",
                folder=table.folder,
                kind="latents",
                title=f"Distance of the latents by step, {table.case_id}",
                alt=f"Relative L1 of the latents after each step of {table.case_id}; after the last one {summary}.",
                case_id=table.case_id,
                spec=lines(points, OVER, DISTANCE_OF, styles),
            )


def _distances(record: Record) -> dict[int, float]:
    found = {name: value for name, value in record.counters.items() if name.startswith(DISTANCE)}
    return {int(name.removeprefix(DISTANCE)): value for name, value in found.items() if value is not None}


def _points(table: Table) -> Iterable[Point]:
    """Return the distances above 0, as a logarithmic axis cannot show others."""
    for record in table.records:
        name = backend_name(record)
        yield from (Point(name, step, value, name) for step, value in sorted(_distances(record).items()) if value > 0)


def _equal(table: Table) -> dict[str, str]:
    """Return the backends whose latents never differ."""
    found = {backend_name(record): _distances(record).values() for record in table.records}
    return {name: "equal" for name, values in found.items() if values and not any(values)}


CHART = Chart(rank=16, draw=draw)
