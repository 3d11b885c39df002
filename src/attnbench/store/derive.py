"""Compute statistics from raw samples; a file's own statistics are never trusted.

Records without samples (imported from another program's file) keep the statistics they have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.record import Rate, Record, Run, Speedup, Status, Time


def derive(run: Run) -> Run:
    """Return `run` with every statistic, rate and speed-up computed again from its samples."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in run.records:
        groups.setdefault((record.group, record.replicate), []).append(record)
    again = {place: iter(derive_group(records, run.settings.baseline)) for place, records in groups.items()}
    records = tuple(next(again[record.group, record.replicate]) for record in run.records)
    return dataclasses.replace(run, records=records)


def derive_group(records: Sequence[Record], baseline: str | None) -> list[Record]:
    """Return the records of one group and replicate with their statistics computed again.

    A record that already agrees with its samples is returned itself, not a copy.

    Args:
        records: one per backend.
        baseline: the backend with which records without a speed-up are compared; a record with one keeps its own
            baseline.
    """
    fresh = [_with_statistics(record) for record in records]
    by_backend = {record.backend: record for record in fresh}
    compared = [_with_speedup(record, by_backend, baseline) for record in fresh]
    return [old if old == new else new for old, new in zip(records, compared, strict=True)]


def time_of(time: Time) -> Time:
    """Return `time` with the statistics of its own samples; unchanged without samples."""
    if not time.samples_ms:
        return time
    from attnbench.stats.summary import summarise

    statistics: dict[str, Any] = summarise(time.samples_ms, tick=time.tick_ms or 0.0).in_ms()
    return dataclasses.replace(time, **statistics)


def speedup_of(baseline: Record, own: Record) -> Speedup | None:
    """Return `own` against `baseline`, pair by pair within rounds; None if they share no round or not the timer."""
    if baseline.time is None or own.time is None or baseline.time.timer != own.time.timer:
        return None
    theirs, ours = by_round(baseline.time), by_round(own.time)
    if not theirs.keys() & ours.keys():
        return None
    from attnbench.stats.ratio import paired_ratio
    from attnbench.stats.summary import is_wild

    tick = max(baseline.time.tick_ms or 0.0, own.time.tick_ms or 0.0)
    found = paired_ratio(theirs, ours, tick=tick)
    wild = any(is_wild(one.median_ms, one.ci_low_ms, one.ci_high_ms) for one in (baseline.time, own.time))
    return Speedup(
        baseline=baseline.backend,
        ratio=found.ratio,
        ci_low=found.ci_low,
        ci_high=found.ci_high,
        verdict="unclear" if wild else found.verdict,
    )


def rate_at(record: Record, median_ms: float | None) -> Rate | None:
    """Return the rate of `record` at another median time; its own if that time is unknown."""
    stored, old = record.rate, record.time.median_ms if record.time else None
    if stored is None or record.work is None or not median_ms:
        return stored
    share = stored.percent_of_peak
    if share is not None and old:
        share *= old / median_ms  # the peak stays the same, only the time changes
    if share is not None and stored.peak_counts is None and record.work.flops:
        # Older files count useful work, even if it was skipped.  For a memory-bound case the share is then too low.
        share *= record.work.least_flops / record.work.flops
    return Rate.of(record.work, median_ms, share)


def _with_statistics(record: Record) -> Record:
    if record.time is None or not record.time.samples_ms:
        return record
    time = time_of(record.time)
    return dataclasses.replace(
        record,
        time=time,
        timers={name: time_of(other) for name, other in record.timers.items()},
        phases={name: time_of(phase) for name, phase in record.phases.items()},
        rate=rate_at(record, time.median_ms),
    )


def _with_speedup(record: Record, by_backend: Mapping[str, Record], baseline: str | None) -> Record:
    name = record.speedup.baseline if record.speedup else baseline
    if name is None or name == record.backend or name not in by_backend:
        return record
    if by_backend[name].status is not Status.PASSED:
        return dataclasses.replace(record, speedup=None) if record.speedup else record
    again = speedup_of(by_backend[name], record)
    return dataclasses.replace(record, speedup=again) if again else record


def by_round(time: Time) -> dict[int, float]:
    """Return samples by round, without times of 0 ms (a clock too coarse for the launch), which have no ratio."""
    if not time.rounds:
        return {}
    return {index: sample for index, sample in zip(time.rounds, time.samples_ms, strict=True) if sample > 0}
