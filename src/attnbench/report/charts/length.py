"""Time and TFLOP/s over sequence length, a line a backend; causal, head size and the like apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attnbench.record import Record
from attnbench.report.charts.base.figure import Chart, Figure, slug
from attnbench.report.charts.base.ink import Inks
from attnbench.report.charts.base.lines import Quantity, lines, points_of
from attnbench.report.charts.base.matter import Matter, Table
from attnbench.report.charts.base.panels import LENGTH, Panel, panels
from attnbench.store.block import backend_name

FOLDER = "seq_len_plots"


def _time(table: Table, record: Record) -> float | None:
    return record.time.median_ms if record.time else None


def _tflops(table: Table, record: Record) -> float | None:
    return record.rate.tflops if record.rate else None


TIME = Quantity("time.median_ms", "time_ms", "median time", "ms", _time)
TFLOPS = Quantity("rate.tflops", "tflops", "useful work", "TFLOP/s", _tflops, may_log=False)
OVER = Quantity(f"case.{LENGTH}", LENGTH, "sequence length", "tokens", lambda table, record: table.case.get(LENGTH))


def draw(matter: Matter, inks: Inks) -> Iterable[Figure]:
    """Two figures for each set of cases that differ in their length."""
    parts = matter.by_conditions()
    for number, tables in enumerate(parts):
        mark = f"_{number + 1}" if number else ""
        for panel in panels([table for table in tables if LENGTH in table.case], LENGTH):
            for quantity in (TIME, TFLOPS):
                yield from _figure(panel, quantity, inks, mark, tables[0].conditions.words() if len(parts) > 1 else [])


def _figure(panel: Panel, quantity: Quantity, inks: Inks, mark: str, conditions: Sequence[str]) -> Iterator[Figure]:
    points = points_of(panel.tables, OVER, quantity, backend_name)
    lengths = sorted({point.x for point in points})
    if len(lengths) < 2:
        return
    following = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in panel.following.items())
    what = {"time_ms": "Time", "tflops": "TFLOP/s"}[quantity.short]
    words = ", ".join(filter(None, (panel.words, *conditions)))
    best = min if quantity is TIME else max
    leaders = (best((point for point in points if point.x == length), key=lambda point: point.y) for length in lengths)
    told = ", ".join(f"{point.line} at {point.x} ({point.y:.3g} {quantity.unit})" for point in leaders)
    yield Figure(
        name=f"{quantity.short}{panel.ending}{mark}",
        folder=FOLDER + _sparsity(panel),
        kind="length",
        title=f"{what} over sequence length" + (f": {words}" if words else ""),
        alt=f"{what} of {len({point.line for point in points})} backends over sequence length; best are {told}.",
        spec=lines(points, OVER, quantity, inks, following),
    )


def _sparsity(panel: Panel) -> str:
    """``_30`` for cases that leave out 30 % of the blocks: the older plots have a folder for each."""
    share = panel.tables[0].case.get("sparsity")
    return f"_{slug(round(100 * share))}" if isinstance(share, int | float) and share else ""


CHART = Chart(rank=1, draw=draw)
