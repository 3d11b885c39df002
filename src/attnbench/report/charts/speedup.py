"""Speed-up of each backend over the baseline for one case, with its 95 % interval."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attnbench.presentation import figures
from attnbench.presentation.block import backend_name
from attnbench.record import Record
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.encodings import STEP
from attnbench.report.charts.base.figure import Chart, Figure, filled, row, short
from attnbench.report.charts.base.ratios import ratios
from attnbench.report.charts.base.style import Styles

TITLE = ("speed-up, times the baseline's speed", "(median of the ratios, 95 % interval)")


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield a figure for each case and baseline, with the backends compared with it, fastest first."""
    for table in data.tables:
        for number, baseline in enumerate(_baselines(table)):
            compared = [record for record in table.records if _is_against(record, baseline)]
            yield _figure(table, baseline, compared, styles, f"-{number + 1}" if number else "")


def _baselines(table: Table) -> list[str]:
    found = (record.speedup.baseline for record in table.records if record.speedup)
    return [name for name in dict.fromkeys(found)
            if any(_is_against(record, name) for record in table.records)]  # fmt: skip


def _is_against(record: Record, baseline: str) -> bool:
    return record.speedup is not None and record.speedup.baseline == baseline != record.backend


def _figure(table: Table, baseline: str, compared: list[Record], styles: Styles, mark: str) -> Figure:
    rows = [_row(record, styles) for record in compared]
    alt = (f"Speed-up against {baseline} on {table.case_id}; above 1 is faster: "
           + ", ".join(f"{one['b']} {one['t']}" for one in rows) + ".")  # fmt: skip
    return Figure(
        name=f"speedup{mark}",
        folder=table.folder,
        kind="speedup",
        title=f"Speed-up against {baseline}, {table.case_id}",
        alt=alt,
        case_id=table.case_id,
        spec=filled(ratios(TITLE, "speed-up"), {"rows": rows, "even": [{"m": 1}]}, height=STEP * len(rows)),
    )


def _row(record: Record, styles: Styles) -> dict[str, Any]:
    speedup, style = record.speedup, styles.of(backend_name(record))
    assert speedup is not None  # callers pass compared records only
    return row(
        b=backend_name(record), c=style.colour, g=style.shape, m=short(speedup.ratio), l=short(speedup.ci_low),
        h=short(speedup.ci_high), v=speedup.verdict,
        t=" ".join(filter(None, (*figures.ratio(speedup), speedup.verdict))),
    )  # fmt: skip


CHART = Chart(rank=11, draw=draw)
