"""Counters of captures put into the records of a run."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

from attnbench.profile.capture import Capture, KernelRow
from attnbench.profile.counters import of_record
from attnbench.record import Run


def attach(run: Run, captures: Iterable[Capture]) -> tuple[Run, int]:
    """Give records the counters that ncu measured for their case and backend.

    Args:
        run: as read; everything but the counters stays.
        captures: those without counters change nothing.

    Returns:
        The run, and how many records have counters from these captures.
    """
    rows: dict[tuple[str | None, str | None], list[KernelRow]] = defaultdict(list)
    launches: dict[tuple[str | None, str | None], set[int | None]] = defaultdict(set)
    for capture in captures:
        for row in capture.kernels:
            rows[row.backend, row.case].append(row)
            launches[row.backend, row.case].add(capture.launches)
    found = {
        owner: counters
        for owner, kernels in rows.items()
        if (counters := of_record(kernels, next(iter(launches[owner])) if len(launches[owner]) == 1 else None))
    }
    records = [
        dataclasses.replace(record, counters={**record.counters, **found[record.backend, record.case_id]})
        if (record.backend, record.case_id) in found
        else record
        for record in run.records
    ]
    count = sum((record.backend, record.case_id) in found for record in run.records)
    return dataclasses.replace(run, records=tuple(records)), count
