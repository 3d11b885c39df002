"""Statistics from raw samples: what a file says of them is not believed, it is worked out again.

Records without samples (imported from another program's file) keep what they came with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from attnbench.record import Rate, Record, Run, Speedup, Time, Work

Place = tuple[str, int, str]
"""Group, replicate and backend: one record of a run."""


def derive(run: Run) -> Run:
    """Work out every statistic, rate and speed-up of `run` again from its samples."""
    records = tuple(_with_statistics(record) for record in run.records)
    by_place = {_place(record): record for record in records}
    return dataclasses.replace(run, records=tuple(_with_speedup(record, by_place) for record in records))


def time_of(time: Time) -> Time:
    """`time` with the statistics of its own samples; as it is where there are none."""
    if not time.samples_ms:
        return time
    from attnbench.stats.summary import summarise

    found = summarise(time.samples_ms)
    return dataclasses.replace(
        time,
        num_samples=found.num_samples,
        median_ms=found.median,
        mean_ms=found.mean,
        std_ms=found.std,
        min_ms=found.min,
        max_ms=found.max,
        p95_ms=found.p95,
        p99_ms=found.p99,
        ci_low_ms=found.ci_low,
        ci_high_ms=found.ci_high,
    )


def rate_of(work: Work, median_ms: float, percent_of_peak: float | None = None) -> Rate:
    """Useful work over a median time; the share of the peak is the caller's, who knows the card."""
    return Rate(
        tflops=work.flops / median_ms / 1e9,
        executed_tflops=None if work.executed_flops is None else work.executed_flops / median_ms / 1e9,
        gbps=work.bytes / median_ms / 1e6,
        percent_of_peak=percent_of_peak,
    )


def speedup_of(baseline: Record, own: Record) -> Speedup | None:
    """`own` against `baseline`, pair by pair within rounds; None where they share no round."""
    theirs, ours = _by_round(baseline.time), _by_round(own.time)
    if not theirs.keys() & ours.keys():
        return None
    from attnbench.stats.ratio import paired_ratio

    found = paired_ratio(theirs, ours)
    return Speedup(
        baseline=baseline.backend,
        ratio=found.ratio,
        ci_low=found.ci_low,
        ci_high=found.ci_high,
        verdict=found.verdict,
    )


def _place(record: Record) -> Place:
    return record.group, record.replicate, record.backend


def _with_statistics(record: Record) -> Record:
    if record.time is None or not record.time.samples_ms:
        return record
    time = time_of(record.time)
    return dataclasses.replace(
        record,
        time=time,
        timers={name: time_of(other) for name, other in record.timers.items()},
        phases={name: time_of(phase) for name, phase in record.phases.items()},
        rate=_rate_again(record, time.median_ms),
    )


def _rate_again(record: Record, median_ms: float | None) -> Rate | None:
    stored, old = record.rate, record.time.median_ms if record.time else None
    if stored is None or record.work is None or not median_ms:
        return stored
    share = stored.percent_of_peak
    if share is not None and old:
        share *= old / median_ms  # the peak stays what it was, only the time is corrected
    return rate_of(record.work, median_ms, share)


def _with_speedup(record: Record, by_place: Mapping[Place, Record]) -> Record:
    if record.speedup is None or record.speedup.baseline == record.backend:
        return record
    baseline = by_place.get((record.group, record.replicate, record.speedup.baseline))
    again = speedup_of(baseline, record) if baseline else None
    return dataclasses.replace(record, speedup=again) if again else record


def _by_round(time: Time | None) -> Mapping[int, float]:
    if time is None or not time.rounds:
        return {}
    return {index: sample for index, sample in zip(time.rounds, time.samples_ms, strict=True) if sample > 0}
