"""From what was sampled to the block of a record."""

from __future__ import annotations

from attnbench.measure.sampling import Timing
from attnbench.record import Time
from attnbench.stats.summary import summarise


def to_time(timing: Timing, setup_ms: float | None = None, first_call_ms: float | None = None) -> Time:
    """A `Time` with every statistic worked out from the timing's samples."""
    found = summarise(timing.samples_ms)
    return Time(
        timer=timing.timer,
        l2=timing.l2,
        regime=timing.regime,
        stopped_by=timing.stopped_by,
        tick_ms=timing.tick_ms or None,
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
        busy_ms=timing.busy_ms,
        host_ms=timing.host_ms,
        setup_ms=setup_ms,
        first_call_ms=first_call_ms,
        samples_ms=tuple(timing.samples_ms),
        rounds=tuple(timing.rounds),
        at_s=tuple(timing.at_s),
        sm_mhz=tuple(timing.sm_mhz),
    )
