"""Map the metrics of Nsight Compute to attnbench's counters, by `counters.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attnbench.profile.capture import KernelRow
from attnbench.profile.figures import in_unit

STALL = "stall_"
"""Prefix of the counters of warp stall reasons."""

Metrics = Mapping[str, tuple[float | None, str]]
"""Value and printed unit, by ncu's name."""


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter and the metrics that can supply it."""

    name: str
    title: str
    unit: str
    metrics: tuple[str, ...]


@cache
def known() -> tuple[tuple[Counter, ...], tuple[re.Pattern[str], ...]]:
    """Return the counters in the order of the file, and the patterns of stall reasons."""
    data = tomllib.loads(Path(__file__).with_name("counters.toml").read_text(encoding="utf-8"))
    rows = tuple(Counter(one["name"], one["title"], one["unit"], tuple(one["metrics"])) for one in data["counter"])
    return rows, tuple(re.compile(one) for one in data["stalls"]["metrics"])


def counters(metrics: Metrics) -> dict[str, float | None]:
    """Return the counters of one launch.

    A counter whose metrics the capture lacks is omitted; a metric without a value gives None.
    """
    rows, patterns = known()
    found: dict[str, float | None] = {}
    for counter in rows:
        values = [
            _value(metrics, metric, counter.unit)
            for metric in counter.metrics
            if all(part.strip() in metrics for part in metric.split(" + "))
        ]
        if values:
            found[counter.name] = next((value for value in values if value is not None), None)
    for pattern in patterns:
        reasons = {STALL + match[1]: metrics[name][0] for name in metrics if (match := pattern.fullmatch(name))}
        if reasons:
            return found | reasons
    return found


def _value(metrics: Metrics, metric: str, unit: str) -> float | None:
    """Return one metric, or the sum of several; None if one of them has no value or a unit of another kind."""
    parts = [in_unit(*metrics[part.strip()], unit) for part in metric.split(" + ")]
    values = [part for part in parts if part is not None]
    return sum(values) if len(values) == len(parts) else None


def means(many: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the mean of each counter over launches; None if a launch has no value."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for one in many for name in one):
        values = [one.get(name) for one in many]
        known_values = [value for value in values if value is not None]
        found[name] = sum(known_values) / len(known_values) if len(known_values) == len(values) else None
    return found


def worst_stall(row: KernelRow) -> tuple[str, float] | None:
    """Return the most frequent stall reason, and the warps stalled by it per issued instruction."""
    reasons = {
        name.removeprefix(STALL): value
        for name, value in row.counters.items()
        if name.startswith(STALL) and value is not None and name != f"{STALL}selected"
    }
    return max(reasons.items(), key=lambda item: item[1]) if reasons else None


def of_record(rows: Iterable[KernelRow], launches: int | None = None) -> dict[str, float | None]:
    """Return the counters of one record: those of its longest kernel, and the sums over all kernels of a launch.

    Occupancy and hit rates of several kernels have no meaningful sum, so they are those of the kernel that takes the
    most time.

    Args:
        rows: rows of one backend and case.
        launches: launches of the backend in the window; None takes the count of its least frequent kernel.
    """
    rows = [row for row in rows if row.counters]
    if not rows:
        return {}
    longest = max(rows, key=lambda row: row.total_ms or 0.0)
    found = dict(longest.counters)
    for name in ("duration_ms", "cycles", "dram_bytes"):
        values = [row.counters.get(name) for row in rows]
        times = [row.calls / (launches or min(one.calls for one in rows)) for row in rows]
        if name in found:
            found[name] = (
                None
                if None in values
                else sum(value * count for value, count in zip(values, times, strict=True) if value is not None)
            )
    return found
