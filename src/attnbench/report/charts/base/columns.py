"""Columns of `store.rows` as quantities of a chart: found by name, with unit and title."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attnbench.errors import UsageError, unknown
from attnbench.record import Record, Run
from attnbench.report.charts.base.data import Table
from attnbench.report.charts.base.figure import slug
from attnbench.report.charts.base.lines import Interval, Quantity, is_number
from attnbench.store.rows import Row, columns, rows

CASE = "case."
OF_NO_RECORD = ("run.", "environment.", "repro", "workload", "case_id", "group", "backend", "version", "config",
                "source_hash", "status", "reason", "notes", "kernels", "kernel_launches", "kernel_ms",
                "replicate")  # fmt: skip
SHORT = {"time.median_ms": "time_ms", "rate.tflops": "tflops"}
"Names in files of the seed documents' scripts."
TITLES = {
    "case.seqlen": ("sequence length", "tokens"),
    "case.cached": ("cached tokens of a user", ""),
    "case.num_candidates": ("candidates of a user", ""),
    "time.median_ms": ("median time", "ms"),
    "rate.tflops": ("useful work", "TFLOP/s"),
    "rate.executed_tflops": ("executed work", "TFLOP/s"),
    "rate.gbps": ("useful traffic", "GB/s"),
    "rate.percent_of_peak": ("share of the data sheet's roof", "%"),
    "memory.peak_allocated_mb": ("peak memory allocated", "MiB"),
    "memory.peak_reserved_mb": ("peak memory reserved", "MiB"),
    "speedup.ratio": ("speed-up against the baseline", ""),
    "power_w.median": ("board power", "W"),
}
UNITS = {"_ms": "ms", "tflops": "TFLOP/s", "gbps": "GB/s", "_mb": "MiB", "_mhz": "MHz", "_mhz_median": "MHz",
         "_percent": "%", "flops": "FLOP", "bytes": "bytes"}  # fmt: skip


class Columns:
    """Columns of some tables that can be drawn."""

    def __init__(self, run: Run, tables: Sequence[Table]) -> None:
        records = [record for table in tables for record in table.records]
        # A table of several processes is drawn from their combined record.
        drawn = dataclasses.replace(run, records=tuple(records))
        self._rows: dict[int, Row] = {id(record): row for record, row in zip(records, rows(drawn), strict=True)}
        self._kept = records
        there = self._rows.values()
        self.axes = [name for name in columns(drawn) if name.startswith(CASE)
                     and any(row[name] is not None for row in there)]  # fmt: skip
        self.measured = [name for name in columns(drawn) if not name.startswith((CASE, *OF_NO_RECORD))
                         and any(_finite(row[name]) for row in there)]  # fmt: skip

    def quantity(self, column: str) -> Quantity:
        """The column as a quantity."""
        title, unit = TITLES.get(column) or (_words(column), _unit(column))

        def of(table: Table, record: Record) -> Any:
            value = self._rows[id(record)][column]
            if column.startswith(CASE):
                # An axis may have the value None (no window); a case without that axis has no value.
                return "none" if value is None and column.removeprefix(CASE) in table.case else value
            return value if _finite(value) else None

        return Quantity(
            column, short_name(column), title, unit, of, interval_of(column), may_log=unit not in ("TFLOP/s", "%", "W")
        )


def resolve(who: str, flag: str, name: str, known: Iterable[str]) -> str:
    """Return the column that `name` means: itself, its short name, or the only column that ends in it.

    Raises:
        UsageError: none or several; the message lists the accepted ones.
    """
    known = list(dict.fromkeys(known))
    spelled = name.replace("-", "_")
    exact = [column for column in known if spelled in (column, column.removeprefix(CASE), short_name(column))]
    found = exact[:1] or [column for column in known if column.endswith(f".{spelled}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{who}: {flag}={name} is the end of several; one of {', '.join(found)}")
    raise unknown(who, flag, name, (SHORT.get(column, column.removeprefix(CASE)) for column in known))


def short_name(column: str) -> str:
    """Return the column's name in file names: time_ms, seqlen, actual_sparsity, memory.peak_allocated_mb."""
    return SHORT.get(column) or slug(column.removeprefix(CASE).removeprefix("counters."))


def interval_of(column: str) -> Callable[[Record], Interval]:
    """Return a function for the 95 % interval of a column: the median time, rates that follow from it, or the speed-up.

    It returns None for a record without an interval, or if the interval reaches 0, where a rate has no upper end.
    """

    def of(record: Record) -> Interval:
        if column == "speedup.ratio":
            found = record.speedup
            return (
                None
                if found is None or found.ci_low is None or found.ci_high is None
                else (found.ci_low, found.ci_high)
            )
        time = record.time
        if time is None or not time.median_ms or not time.ci_low_ms or not time.ci_high_ms or time.ci_low_ms < 0:
            return None
        if column == "time.median_ms":
            return time.ci_low_ms, time.ci_high_ms
        rate = getattr(record.rate, column.removeprefix("rate."), None) if column.startswith("rate.") else None
        if rate is None:
            return None
        return rate * time.median_ms / time.ci_high_ms, rate * time.median_ms / time.ci_low_ms

    return of


def _words(column: str) -> str:
    return column.removeprefix(CASE).removeprefix("counters.").replace("_", " ").replace(".", " ")


def _unit(column: str) -> str:
    return next((unit for ending, unit in UNITS.items() if column.endswith(ending)), "")


def _finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _time(table: Table, record: Record) -> float | None:
    return record.time.median_ms if record.time else None


def _tflops(table: Table, record: Record) -> float | None:
    return record.rate.tflops if record.rate else None


TIME = Quantity("time.median_ms", "time_ms", "median time", "ms", _time, interval_of("time.median_ms"))
TFLOPS = Quantity("rate.tflops", "tflops", "useful work", "TFLOP/s", _tflops, interval_of("rate.tflops"), may_log=False)


def axis(name: str) -> Quantity:
    """Return a field of the cases as a quantity."""
    column = CASE + name
    title, unit = TITLES.get(column, (_words(column), ""))
    return Quantity(column, short_name(column), title, unit, lambda table, record: table.case.get(name))


SEQLEN = axis("seqlen")
