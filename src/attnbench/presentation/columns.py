"""The columns of a table: titles, cell texts, and the order of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from attnbench.presentation import figures, sparse
from attnbench.presentation.block import Column, Line, backend_name, filled
from attnbench.record import Record, Time
from attnbench.store.replicates import Processes

FASTEST = "*"
GAPS_WORTH_SAYING = 0.02
"Share of time without a running kernel, above which the busy time is shown."
ALL = "all"
PLAN = "plan"
"Rows in the order of the run."
UNIT = "{unit}"

COLUMNS = (
    Column("backend", "backend", 0, number=False),
    Column("median", f"median {UNIT}", 0),
    Column("mean", f"mean {UNIT}", 0),
    Column("margin", "95 %", 1),
    Column("spread", "spread", 1),
    Column("speedup", "speed-up", 1),
    Column("speedup_margin", "95 %", 3),
    Column("verdict", "", 3, number=False),
    Column("processes", "processes", 4),
    Column("tflops", "TFLOP/s", 2),
    Column("effective", "effective TFLOP/s", 3),
    Column("density", "density", 3),
    Column("efficiency", "E", 2),
    Column("peak", "% peak", 6),
    Column("peak_executed", "% peak executed", 6),
    Column("gbps", "GB/s", 8),
    Column("memory", "MiB", 5),
    Column("error", "max error", 9),
    Column("budget", "% budget", 7),
    Column("samples", "samples", 10),
    Column("busy", f"busy {UNIT}", 5),
    Column("host", "host µs", 11),
    Column("first", "1st call ms", 12),
    Column("setup", "set-up ms", 13),
)
KEYS = tuple(column.key for column in COLUMNS)

VALUES: dict[str, Callable[[Record], float | None]] = {
    "median": lambda record: record.time.median_ms if record.time else None,
    "mean": lambda record: record.time.mean_ms if record.time else None,
    "margin": lambda record: figures.time_half(record.time) if record.time else None,
    "speedup": lambda record: record.speedup.ratio if record.speedup else None,
    "tflops": lambda record: record.rate.tflops if record.rate else None,
    "effective": sparse.effective,
    "density": sparse.density,
    "efficiency": sparse.efficiency,
    "peak": lambda record: _share(record, executed=False),
    "peak_executed": lambda record: _share(record, executed=True),
    "gbps": lambda record: record.rate.gbps if record.rate else None,
    "memory": lambda record: record.memory.peak_allocated_mb if record.memory else None,
    "error": lambda record: _worst_error(record)[0],
    "budget": lambda record: _worst_error(record)[1],
    "samples": lambda record: record.time.num_samples if record.time else None,
    "busy": lambda record: record.time.busy_ms if record.time else None,
    "host": lambda record: record.time.host_ms if record.time else None,
    "first": lambda record: record.time.first_call_ms if record.time else None,
    "setup": lambda record: record.time.setup_ms if record.time else None,
}
"""Value of each column, in milliseconds for times; rows are sorted by it."""
MOST_FIRST = ("speedup", "tflops", "effective", "efficiency", "peak", "peak_executed", "gbps", "samples")


@dataclass(frozen=True, slots=True)
class View:
    """Columns and row order of a table; by default the columns that fit, and the fastest row first."""

    columns: tuple[str, ...] = ()
    "keys of `COLUMNS`; empty: as many as fit on the page"
    sort: str = "median"
    "a key of `VALUES`, backend or plan"
    reverse: bool = False
    "reverses the usual order, in which the best row is first"

    @property
    def metric(self) -> str:
        """The value shown in the matrix of a run: the first requested numeric column, else the median."""
        return next((key for key in self.columns if key in VALUES), "median")

    def sorted(self, records: Iterable[Record]) -> list[Record]:
        """Sort rows as requested; rows without the value come last, and equal ones keep the run's order."""
        rows = list(records)
        if self.sort == PLAN:
            return rows[::-1] if self.reverse else rows
        if self.sort == "backend":
            return sorted(rows, key=backend_name, reverse=self.reverse)
        sign = -1.0 if (self.sort in MOST_FIRST) != self.reverse else 1.0
        value = VALUES[self.sort] if self.sort != "median" else lambda record: figures.typical_ms(record.time)
        found = [(value(record), record) for record in rows]
        known = sorted(((number, record) for number, record in found if number is not None),
                       key=lambda pair: sign * pair[0])  # fmt: skip
        return [record for _, record in known] + [record for number, record in found if number is None]


def columns_for(unit: figures.Unit, lines: Sequence[Line], view: View | None = None) -> list[Column]:
    """The columns asked for, or else those of which at least one line has something to say.

    Means are among these where a line has no median.
    """
    bases = baselines(line.record for line in lines)
    titles = {"speedup": f"vs {bases.pop()}"} if len(bases) == 1 else {}
    every = [replace(column, title=titles.get(column.key, column.title.replace(UNIT, unit.name))) for column in COLUMNS]
    asked = view.columns if view else ()
    if not asked:
        means_alone = any(line.cells.get("mean") and not line.cells.get("median") for line in lines)
        return [column for column in filled(every, lines) if column.key != "mean" or means_alone]
    shown = (
        filled(every, lines)
        if asked == (ALL,)
        else [column for key in dict.fromkeys(("backend", *asked)) for column in every if column.key == key]
    )
    return [replace(column, rank=0) for column in shown]


def line_of(
    record: Record, unit: figures.Unit, bases: Collection[str], fastest: bool, processes: Processes | None = None
) -> Line:
    """Return the texts of one timed record's row.

    Args:
        record: with a time.
        unit: of all times of the table.
        bases: backends that the table's speed-ups refer to.
        fastest: whether its median is the lowest of its case.
        processes: with replicates: the processes whose values `record` combines.
    """
    time, rate, memory = record.time, record.rate, record.memory
    assert time is not None  # callers pass timed records only
    median = unit.of(time.median_ms)
    half, spread = unit.of(figures.time_half(time)), unit.of(processes.spread_ms if processes else None)
    doubt = half if spread is None else spread
    relative = doubt / median if median and doubt is not None else None
    tflops = rate.tflops if rate else None
    cells = {
        "backend": backend_name(record) + (f" {FASTEST}" if fastest else ""),
        "median": figures.measured(median, doubt),
        "mean": figures.measured(unit.of(time.mean_ms), None),
        "margin": figures.interval(time, unit),
        "spread": figures.spread(median, spread),
        "processes": str(processes or ""),
        "tflops": figures.measured(tflops, tflops * relative if tflops and relative is not None else None),
        "peak": figures.plain(_share(record, executed=False)),
        "peak_executed": figures.plain(_share(record, executed=True)),
        "gbps": figures.plain(rate.gbps if rate else None),
        "memory": _fixed(memory.peak_allocated_mb if memory else None, 1),
        "samples": "" if time.num_samples is None else str(time.num_samples),
    }
    cells |= sparse.cells(record) | _cost_cells(time, unit) | _speedup_cells(record, bases) | _error_cells(record)
    return Line(record, cells, fastest, processes)


def _share(record: Record, *, executed: bool) -> float | None:
    """Return the percent of peak if it counts the requested work: useful and executed work never share a column."""
    rate = record.rate
    return rate.percent_of_peak if rate and (rate.peak_counts == "executed") == executed else None


def _speedup_cells(record: Record, bases: Collection[str]) -> dict[str, str]:
    speedup = record.speedup
    if speedup is None or speedup.baseline == record.backend:
        return {"verdict": "baseline"} if speedup or record.backend in bases else {}
    ratio, margin = figures.ratio(speedup)
    return {"speedup": ratio, "speedup_margin": margin, "verdict": speedup.verdict}


def _cost_cells(time: Time, unit: figures.Unit) -> dict[str, str]:
    """Cells for time spent elsewhere: gaps between kernels, the host, the first call, the set-up."""
    busy, median = time.busy_ms, time.median_ms
    gaps = busy is not None and median is not None and busy < (1 - GAPS_WORTH_SAYING) * median
    return {
        "busy": figures.plain(busy * unit.per_ms if busy is not None and gaps else None, figures.STEADY_DIGITS),
        "host": figures.plain(None if time.host_ms is None else 1e3 * time.host_ms),
        "first": figures.plain(time.first_call_ms),
        "setup": figures.plain(time.setup_ms),
    }


def _error_cells(record: Record) -> dict[str, str]:
    largest, share = _worst_error(record)
    if largest is None:
        return {}
    return {"error": f"{largest:.1e}", "budget": "" if share is None else f"{share:.0f}"}


def _worst_error(record: Record) -> tuple[float | None, float | None]:
    """Return the error of the output closest to its budget or beyond it, and its percentage of the budget."""
    known = [(error.max_abs, error.budget) for error in record.errors.values() if error.max_abs is not None]
    if not known:
        return None, None
    largest, budget = max(known, key=lambda pair: pair[0] / pair[1] if pair[1] else float(pair[0] > 0))
    return largest, 100 * largest / budget if budget else None


def baselines(records: Iterable[Record]) -> set[str]:
    """Return the backends that speed-ups of these records refer to."""
    return {record.speedup.baseline for record in records if record.speedup}


def _fixed(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}f}"
