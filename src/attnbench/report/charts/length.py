"""Time and TFLOP/s over sequence length, a line a backend; causal, head size and the like apart."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.record import Record
from attnbench.report.charts.base.by_axis import figure_over
from attnbench.report.charts.base.columns import interval_of
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.figure import Chart, Figure
from attnbench.report.charts.base.lines import Quantity
from attnbench.report.charts.base.panels import LENGTH, panels
from attnbench.report.charts.base.style import Styles


def _time(table: Table, record: Record) -> float | None:
    return record.time.median_ms if record.time else None


def _tflops(table: Table, record: Record) -> float | None:
    return record.rate.tflops if record.rate else None


TIME = Quantity("time.median_ms", "time_ms", "median time", "ms", _time, interval_of("time.median_ms"))
TFLOPS = Quantity("rate.tflops", "tflops", "useful work", "TFLOP/s", _tflops, interval_of("rate.tflops"), may_log=False)
OVER = Quantity(f"case.{LENGTH}", LENGTH, "sequence length", "tokens", lambda table, record: table.case.get(LENGTH))


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Two figures for each set of cases that differ in their length."""
    parts = data.by_conditions()
    for number, tables in enumerate(parts):
        conditions = tables[0].conditions.words() if len(parts) > 1 else []
        mark = f"_{number + 1}" if number else ""
        for panel in panels([table for table in tables if LENGTH in table.case], LENGTH):
            for metric in (TIME, TFLOPS):
                yield from figure_over(panel, OVER, metric, styles, kind="length", conditions=conditions, mark=mark)


CHART = Chart(rank=1, draw=draw)
