"""Group the single launches in ncu's CSV or report file into rows of kernels."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from attnbench.profile.capture import Advice, KernelRow, split_range
from attnbench.profile.categories import Categories, by_range
from attnbench.profile.counters import Metrics, counters, means
from attnbench.profile.names import short_name
from attnbench.profile.timeline import same


@dataclass(slots=True)
class Profiled:
    """One launch that ncu profiled."""

    name: str
    ranges: tuple[str, ...] = ()
    "ranges open at the launch, innermost last"
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    device: str | None = None
    metrics: Metrics = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()


def kernel_rows(launches: Iterable[Profiled], rules: Categories) -> tuple[KernelRow, ...]:
    """Return rows by range and kernel, longest first."""
    groups: dict[tuple[tuple[str, ...], str], list[Profiled]] = defaultdict(list)
    for launch in launches:
        groups[launch.ranges, launch.name].append(launch)
    rows = [_row(ranges, name, found, rules) for (ranges, name), found in groups.items()]
    return by_range(sorted(rows, key=lambda row: -(row.total_ms or 0.0)))


def _row(ranges: tuple[str, ...], name: str, found: list[Profiled], rules: Categories) -> KernelRow:
    values = [counters(launch.metrics) for launch in found]
    ms = [value for one in values if (value := one.get("duration_ms")) is not None]
    whole = ms if len(ms) == len(found) else []
    owner = next((owner for owner in map(split_range, reversed(ranges)) if owner[0]), (None, None))
    return KernelRow(
        name=name,
        short=short_name(name),
        category=rules.of(name),
        backend=owner[0],
        case=owner[1],
        range=ranges[-1] if ranges else None,
        within=ranges[:-1],
        calls=len(found),
        total_ms=sum(whole) if whole else None,
        mean_ms=statistics.fmean(whole) if whole else None,
        median_ms=statistics.median(whole) if whole else None,
        min_ms=min(whole, default=None),
        max_ms=max(whole, default=None),
        grid=same([launch.grid for launch in found]),
        block=same([launch.block for launch in found]),
        counters=means(values),
        advice=_advice(found),
    )


def _advice(found: Iterable[Profiled]) -> tuple[Advice, ...]:
    """Return each remark once, highest promise first."""
    remarks: dict[tuple[str, str], Advice] = {}
    for launch in found:
        for advice in launch.advice:
            remarks.setdefault((advice.rule, advice.text), advice)
    return tuple(sorted(remarks.values(), key=lambda one: one.promise))
