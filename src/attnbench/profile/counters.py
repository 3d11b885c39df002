"""Nsight Compute's metrics as counters of ours, by `counters.toml`."""

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
"""Prefix of the counters that say why warps wait."""

Metrics = Mapping[str, tuple[float | None, str]]
"""Value and printed unit by ncu's name."""


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter and the metrics that may hold it."""

    name: str
    title: str
    unit: str
    metrics: tuple[str, ...]


@cache
def known() -> tuple[tuple[Counter, ...], tuple[re.Pattern[str], ...]]:
    """Counters in the file's order, and the patterns of stall reasons."""
    data = tomllib.loads(Path(__file__).with_name("counters.toml").read_text(encoding="utf-8"))
    rows = tuple(Counter(one["name"], one["title"], one["unit"], tuple(one["metrics"])) for one in data["counter"])
    return rows, tuple(re.compile(one) for one in data["stalls"]["metrics"])


def counters(metrics: Metrics) -> dict[str, float | None]:
    """Our counters of one launch.

    A counter whose metrics the capture lacks is left out; one that is there without a value is None.
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
    """One metric, or the sum of several; None if one of them has no value or another kind of unit."""
    parts = [in_unit(*metrics[part.strip()], unit) for part in metric.split(" + ")]
    values = [part for part in parts if part is not None]
    return sum(values) if len(values) == len(parts) else None


def means(many: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Mean of each counter over launches; None where one of them has no value."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for one in many for name in one):
        values = [one.get(name) for one in many]
        known_values = [value for value in values if value is not None]
        found[name] = sum(known_values) / len(known_values) if len(known_values) == len(values) else None
    return found


def worst_stall(row: KernelRow) -> tuple[str, float] | None:
    """The reason most warps wait for, and how many do for every instruction issued."""
    reasons = {
        name.removeprefix(STALL): value
        for name, value in row.counters.items()
        if name.startswith(STALL) and value is not None and name != f"{STALL}selected"
    }
    return max(reasons.items(), key=lambda item: item[1]) if reasons else None


def of_record(rows: Iterable[KernelRow], launches: int | None = None) -> dict[str, float | None]:
    """Counters for one record: those of its longest kernel, and the sums over all kernels of a launch.

    Occupancy and hit rates of several kernels have no sum that means anything, so they are those of
    the kernel that takes most of the time.

    Args:
        rows: of one backend and case.
        launches: of the backend in the window; None is as often as its rarest kernel.
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
