"""Add to the records of a run the counters of captures and the time of one launch by category of kernel."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

from attnbench.profile.capture import Capture, KernelRow
from attnbench.profile.categories import IDLE, ORDER
from attnbench.profile.counters import of_record
from attnbench.record import Run

OF_LAUNCH, WHOLE = "launch_ms_", "Inference"
"Prefix of the counters; and the range of a whole generation, whose time is not the time of one launch."


def attach(run: Run, captures: Iterable[Capture]) -> tuple[Run, int]:
    """Add the figures of captures to the records of the same case and backend.

    Captures of ncu add its counters.  Captures of tools that time kernels as they run add the time of one launch by
    category, in ms, as counters ``launch_ms_…``, and the idle time if the capture has one backend only.

    Args:
        run: the run as read; only the counters of its records change.
        captures: captures of ncu, nsys or torch.profiler; those of a whole generation are ignored.

    Returns:
        The run, and the number of records with counters from these captures.
    """
    captures = list(captures)
    rows: dict[tuple[str | None, str | None], list[KernelRow]] = defaultdict(list)
    launches: dict[tuple[str | None, str | None], set[int | None]] = defaultdict(set)
    for capture in captures:
        for row in capture.kernels:
            rows[row.backend, row.case].append(row)
            launches[row.backend, row.case].add(capture.launches)
    found: dict[tuple[str | None, str | None], dict[str, float | None]] = {
        owner: dict(counters)
        for owner, kernels in rows.items()
        if (counters := of_record(kernels, next(iter(launches[owner])) if len(launches[owner]) == 1 else None))
    }
    for capture in captures:
        for owner, times in by_category(capture).items():
            found.setdefault(owner, {}).update(times)
    records = [
        dataclasses.replace(record, counters={**record.counters, **found[record.backend, record.case_id]})
        if (record.backend, record.case_id) in found
        else record
        for record in run.records
    ]
    count = sum((record.backend, record.case_id) in found for record in run.records)
    return dataclasses.replace(run, records=tuple(records)), count


def by_category(capture: Capture) -> dict[tuple[str | None, str | None], dict[str, float | None]]:
    """Return the time of one launch by category per backend and case; nothing for ncu, which serializes kernels."""
    if capture.tool == "ncu" or not capture.launches or any(row.name == WHOLE for row in capture.ranges):
        return {}
    found: dict[tuple[str | None, str | None], dict[str, float | None]] = {}
    for row in capture.kernels:
        if row.backend and row.total_ms is not None:
            times, name = found.setdefault((row.backend, row.case), {}), OF_LAUNCH + row.category
            times[name] = (times.get(name) or 0.0) + row.total_ms / capture.launches
    if len(found) == 1 and capture.idle_ms is not None:
        next(iter(found.values()))[OF_LAUNCH + IDLE] = capture.idle_ms / capture.launches
    order = [OF_LAUNCH + name for name in ORDER]
    place = {name: number for number, name in enumerate(order)}
    return {
        owner: dict(sorted(times.items(), key=lambda item: place.get(item[0], len(order))))
        for owner, times in found.items()
    }
