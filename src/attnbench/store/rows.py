"""A run as a flat table: one row per record, blocks flattened to ``time.median_ms``, raw series omitted.

Columns that every run can have come in one fixed order, so tables of two runs can be concatenated.  Columns that
depend on the workload (fields of the case, outputs, phases) are inserted at their place, in the order of the run.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from attnbench.record import Environment, Error, Memory, Rate, Record, Run, Speedup, Time, Work
from attnbench.store.environments import input_of

Row = dict[str, Any]

SERIES = ("samples_ms", "rounds", "at_s", "sm_mhz")
ENVIRONMENT = tuple(field.name for field in dataclasses.fields(Environment) if field.name != "packages")


def rows(run: Run) -> list[Row]:
    """Return one dict per record, each with all of `columns(run)`; missing values are None."""
    names = columns(run)
    return [{name: row.get(name) for name in names} for row in map(_flat, [run] * len(run.records), run.records)]


def columns(run: Run) -> list[str]:
    """Return the names of all columns, in order."""
    records = run.records
    return [
        *("run.id", "run.suite", "run.started", "workload", "case_id", "group", "replicate"),
        *_named("case", (record.case for record in records)),
        *("backend", "input", "version", "config", "source_hash", "status", "reason", "notes"),
        *(f"time.{name}" for name in (*_scalars(Time), "sm_mhz_median")),
        *(f"speedup.{name}" for name in _scalars(Speedup)),
        *(f"rate.{name}" for name in _scalars(Rate)),
        *(f"memory.{name}" for name in _scalars(Memory)),
        *(f"work.{name}" for name in _scalars(Work)),
        *_blocks("errors", (record.errors for record in records), _scalars(Error)),
        *_blocks("timers", (record.timers for record in records), _scalars(Time)),
        *_blocks("phases", (record.phases for record in records), _scalars(Time)),
        *_named("counters", (record.counters for record in records)),
        *_named("ceilings", (record.ceilings for record in records)),
        "power_w.median",
        *("kernels", "kernel_launches", "kernel_ms"),
        *(f"environment.{name}" for name in ENVIRONMENT),
        "repro",
    ]


def _flat(run: Run, record: Record) -> Row:
    row: Row = {"run.id": run.id, "run.suite": run.suite, "run.started": run.started}
    for field in dataclasses.fields(record):
        _put(row, field.name, getattr(record, field.name))
    row["input"] = input_of(run, record)
    row["power_w.median"] = _median(record.power_w.watts if record.power_w else ())
    place = record.environment
    if place is not None and 0 <= place < len(run.environments):
        row |= {f"environment.{name}": getattr(run.environments[place], name) for name in ENVIRONMENT}
    return row


def _put(row: Row, name: str, value: Any) -> None:
    if isinstance(value, Time):
        row[f"{name}.sm_mhz_median"] = _median(value.sm_mhz)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in _scalars(type(value)):
            _put(row, f"{name}.{field}", getattr(value, field))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _put(row, f"{name}.{key}", item)
    else:
        row[name] = None if isinstance(value, float) and not math.isfinite(value) else value


def _scalars(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in SERIES)


def _named(block: str, mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    return [f"{block}.{name}" for name in dict.fromkeys(name for mapping in mappings for name in mapping)]


def _blocks(block: str, mappings: Iterable[Mapping[str, Any]], fields: Iterable[str]) -> list[str]:
    return [f"{name}.{field}" for name in _named(block, mappings) for field in fields]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
