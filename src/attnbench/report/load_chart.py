"""Chart of a load's latency over its rate, in the style of the other charts."""

from __future__ import annotations

from pathlib import Path

from attnbench.report.charts.base.figure import Figure, slug
from attnbench.report.charts.base.lines import Point, Quantity, lines
from attnbench.report.charts.base.style import Styles
from attnbench.report.plots import FORMATS, pictures
from attnbench.store.files import write_bytes
from attnbench.store.load_file import LoadRun

PERCENTILES = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9"}
LIMIT = (5, 4)
"Dash of a latency limit."
RATE = Quantity("offered", "rate", "offered rate", "requests/s", lambda table, record: None)
LATENCY = Quantity("latency", "latency_ms", "latency from the scheduled time", "ms", lambda table, record: None)


def figure(run: LoadRun) -> Figure | None:
    """Return latency over the offered rate, one line per percentile; None if no load had both a rate and an answer.

    A limit is drawn only within the range of the data: far above it would compress the rest.
    """
    found = [Point(name, rate, value, name) for key, name in PERCENTILES.items() for rate, value in _line(run, key)]
    if not found:
        return None
    rates = sorted({point.x for point in found})
    highest = max(point.y for point in found)
    slos = sorted({one.slo_ms for point in run.points for one in point.goodput})
    found += [
        Point(f"limit {slo:g} ms", rate, slo, "limit", dash=LIMIT)
        for slo in slos
        if slo <= 2 * highest
        for rate in (rates[0], rates[-1])
    ]
    words = ", ".join(
        f"{name} {value:.3g} ms at {rate:.4g}/s"
        for key, name in PERCENTILES.items()
        for rate, value in _line(run, key)[-1:]
    )
    return Figure(
        name=f"latency_over_rate_{slug(run.model)}",
        kind="load",
        title=f"Latency over rate: model {run.model} on {run.environment.gpu or run.device}",
        alt=f"Latency over the offered rate; at the highest one {words}.",
        spec=lines(found, RATE, LATENCY, Styles([])),
    )


def _line(run: LoadRun, key: str) -> list[tuple[float, float]]:
    found = [
        (point.offered_rate, getattr(point.latency, key))
        for point in run.points
        if point.offered_rate and point.latency
    ]
    return sorted((rate, value) for rate, value in found if value is not None)


def write_chart(run: LoadRun, folder: str | Path) -> list[Path]:
    """Write the chart as PNG and SVG, if there is one."""
    drawn = figure(run)
    if drawn is None:
        return []
    written = []
    for ending, picture in zip(FORMATS, pictures(drawn, FORMATS), strict=True):
        path = Path(folder) / f"{drawn.stem}.{ending}"
        write_bytes(path, picture)
        written.append(path)
    return written
